//! The node's connections to its cluster: API calls, and the tunnel for the way back.

use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tombolo_tunnel::{Backoff, BoxIo, Dialer, TunnelError, random_fraction};

use super::{Credentials, JoinError};

const CONNECT_WAIT: Duration = Duration::from_secs(20);
const FIRST_REDIAL: Duration = Duration::from_millis(500);
const LAST_REDIAL: Duration = Duration::from_secs(30);

fn place(url: &str) -> Result<(String, u16), JoinError> {
    let bad = || JoinError::Address(url.to_owned());
    let parsed: http::Uri = url.parse().map_err(|_| bad())?;
    let host = parsed.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
    Ok((host, parsed.port_u16().unwrap_or(443)))
}

/// A client whose every new connection shows the certificate that is current then.
pub(super) fn client(url: &str, credentials: Credentials) -> Result<kube::Client, JoinError> {
    let (host, port) = place(url)?;
    let name = ServerName::try_from(host.clone()).map_err(|_| JoinError::Address(url.to_owned()))?;
    Ok(tombolo_tunnel::client_with(move || {
        let (host, name, credentials) = (host.clone(), name.clone(), credentials.clone());
        async move {
            let connecting = connect(host, port, name, credentials);
            let late = || TunnelError::Io(std::io::ErrorKind::TimedOut.into());
            tokio::time::timeout(CONNECT_WAIT, connecting).await.map_err(|_| late())?
        }
    }))
}

async fn connect(
    host: String,
    port: u16,
    name: ServerName<'static>,
    credentials: Credentials,
) -> Result<BoxIo, TunnelError> {
    let tcp = TcpStream::connect((host.as_str(), port)).await?;
    tcp.set_nodelay(true)?;
    let mut tls = rustls::ClientConfig::clone(&credentials.tls());
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, tcp).await?;
    Ok(Box::new(stream))
}

/// Dials the site again and again; what the site opens on the connection is served the kubelet API.
pub(super) async fn keep_tunnel(
    url: &str,
    path: &str,
    credentials: &Credentials,
    kubelet: crate::StreamServer,
) {
    let Ok((host, port)) = place(url) else { return };
    let mut backoff = Backoff::new(FIRST_REDIAL, LAST_REDIAL);
    loop {
        let dialer = Dialer {
            host: host.clone(),
            port,
            quic_port: None,
            tls: credentials.tls(),
            path: path.to_owned(),
            session: *uuid::Uuid::new_v4().as_bytes(),
        };
        match dialer.dial().await {
            Ok(connection) => {
                tracing::info!(site = host, "the site reaches this node through its tunnel");
                backoff.reset();
                while let Some((_, stream)) = connection.accept().await {
                    let kubelet = kubelet.clone();
                    tokio::spawn(async move { kubelet.serve(stream).await });
                }
                let why = connection.closed().await;
                tracing::info!(site = host, why, "the tunnel ended");
            }
            Err(error) => tracing::debug!(site = host, %error, "no tunnel to the site yet"),
        }
        tokio::time::sleep(backoff.next(random_fraction())).await;
    }
}
