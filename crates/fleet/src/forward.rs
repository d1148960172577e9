//! Between replicas of one hub: a stream to a site whose tunnel ends at another replica is opened there.
//!
//! The replica that is asked upgrades a connection at [`names::FORWARD_PATH`] of the other one, says which site and which
//! class of stream it means, and then has the site's stream. Only the site's Lease says where its tunnel ends; a replica
//! never forwards what was forwarded to it, so nothing goes round in circles.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use kube::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tombolo_api::names;
use tombolo_tunnel::{BoxIo, Class, Dialer, Io, answer, verdict};

use crate::sites::replica_of;
use crate::tunnels::TunnelHub;

/// Opens a stream to a site through another replica, or says why not.
pub type Forward =
    Arc<dyn Fn(String, Class) -> Pin<Box<dyn Future<Output = Result<BoxIo, String>> + Send>> + Send + Sync>;

/// How replicas know each other: TLS with a certificate that only the hub's own CA gives.
pub type ReplicaTls = Arc<dyn Fn() -> Result<rustls::ClientConfig, String> + Send + Sync>;

/// Asks the replica that the site's Lease names.
pub fn forward(client: Client, own: String, tls: ReplicaTls) -> Forward {
    Arc::new(move |site, class| {
        let (client, own, tls) = (client.clone(), own.clone(), tls.clone());
        Box::pin(async move {
            let holder = replica_of(&client, &site).await.map_err(|error| error.to_string())?;
            let Some(replica) = holder.filter(|replica| *replica != own) else {
                return Err(format!("site {site} is not tied to this hub now"));
            };
            open_at(&replica, &site, class, tls()?)
                .await
                .map_err(|why| format!("site {site} is tied to replica {replica} of this hub: {why}"))
        })
    })
}

async fn open_at(
    replica: &str,
    site: &str,
    class: Class,
    tls: rustls::ClientConfig,
) -> Result<BoxIo, String> {
    let (host, port) = replica.rsplit_once(':').ok_or("its address has no port")?;
    let dialer = Dialer {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: port.parse().map_err(|_| "its address has no port")?,
        quic_port: None,
        tls: Arc::new(tls),
        path: names::FORWARD_PATH.into(),
        session: Default::default(),
    };
    let mut io = dialer.open_path().await.map_err(|error| error.to_string())?;
    let io_error = |error: std::io::Error| error.to_string();
    io.write_u8(u8::from(class == Class::Bulk)).await.map_err(io_error)?;
    io.write_u8(u8::try_from(site.len()).map_err(|_| "the site's name is too long")?)
        .await
        .map_err(io_error)?;
    io.write_all(site.as_bytes()).await.map_err(io_error)?;
    io.flush().await.map_err(io_error)?;
    match verdict(&mut io).await.map_err(|error| error.to_string())? {
        None => Ok(Box::new(io)),
        Some(why) => Err(why),
    }
}

impl TunnelHub {
    /// The other end: a replica asks for a stream of a site that is tied here.
    pub async fn serve_forwarded(&self, mut io: impl Io) {
        let asked = async {
            let class = if io.read_u8().await? == 1 { Class::Bulk } else { Class::Control };
            let mut name = vec![0; usize::from(io.read_u8().await?)];
            io.read_exact(&mut name).await?;
            Ok::<_, std::io::Error>((class, String::from_utf8_lossy(&name).into_owned()))
        };
        let Ok((class, site)) = asked.await else { return };
        let opened = self.open_here(&site, class).await.map_err(|error| error.to_string());
        if answer(&mut io, opened.as_ref().map(drop).map_err(String::as_str)).await.is_err() {
            return;
        }
        if let Ok(mut stream) = opened {
            let _ = tokio::io::copy_bidirectional(&mut io, &mut stream).await;
        }
    }
}
