//! Dialing a hub: QUIC first, TLS over TCP through the API port where UDP does not pass.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;

use crate::{Class, Connection, Io, Preamble, SessionId, TunnelError};

/// A slow link needs several round trips for the handshake; at 400 ms one way that is below three seconds.
const QUIC_WAIT: Duration = Duration::from_secs(5);
const TCP_WAIT: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("cannot find the address of {host}: {source}")]
    Resolve {
        host: String,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot reach {address}: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("the hub refused ({status}): {message}")]
    Refused { status: u16, message: String },
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
}

/// Where and as whom to dial.
#[derive(Clone)]
pub struct Dialer {
    pub host: String,
    pub port: u16,
    /// UDP port of the hub's QUIC endpoint; without it only TCP is tried.
    pub quic_port: Option<u16>,
    /// TLS with the site's certificate.
    pub tls: Arc<rustls::ClientConfig>,
    /// Path on the API port that upgrades.
    pub path: String,
    /// Drawn anew for every connection.
    pub session: SessionId,
}

impl Dialer {
    pub async fn dial(&self) -> Result<Connection, DialError> {
        if let Some(port) = self.quic_port {
            match self.dial_quic(port).await {
                Ok(connection) => return Ok(connection),
                Err(error) => tracing::info!(hub = %self.host, port, %error, "no QUIC, dialing over TCP"),
            }
        }
        self.dial_tcp().await
    }

    /// Only over QUIC, for a site that had to fall back: `None` while UDP does not pass.
    pub async fn dial_better(&self) -> Option<Connection> {
        self.dial_quic(self.quic_port?).await.ok()
    }

    async fn dial_quic(&self, port: u16) -> Result<Connection, DialError> {
        let address = self.resolve(port).await?;
        let tls = rustls::ClientConfig::clone(&self.tls);
        let connecting = crate::quic::dial(address, &self.host, tls);
        let (connection, refusals) = match tokio::time::timeout(QUIC_WAIT, connecting).await {
            Ok(connected) => connected?,
            Err(_) => {
                let reason = format!("no answer over UDP within {QUIC_WAIT:?}");
                return Err(DialError::Unreachable { address: address.to_string(), reason });
            }
        };
        let connection = Connection::over_quic(connection, true, crate::DEFAULT_INTERVAL);
        connection.doubt_when(refusals);
        Ok(connection)
    }

    async fn dial_tcp(&self) -> Result<Connection, DialError> {
        let timed = |class| async move {
            tokio::time::timeout(TCP_WAIT, self.upgrade(class)).await.unwrap_or_else(|_| {
                let address = format!("{}:{}", self.host, self.port);
                Err(DialError::Unreachable { address, reason: format!("no tunnel within {TCP_WAIT:?}") })
            })
        };
        let (control, bulk) = tokio::try_join!(timed(Class::Control), timed(Class::Bulk))?;
        let connection = Connection::over_io(control, true, crate::DEFAULT_INTERVAL);
        connection.add_bulk(bulk, true)?;
        Ok(connection)
    }

    async fn upgrade(&self, class: Class) -> Result<impl Io, DialError> {
        let mut io = self.open_path().await?;
        Preamble { class, session: self.session }.write(&mut io).await?;
        match crate::preamble::verdict(&mut io).await? {
            None => Ok(io),
            Some(message) => Err(DialError::Refused { status: 410, message }),
        }
    }

    /// A connection over TLS on TCP that upgraded at `path`.
    pub async fn open_path(&self) -> Result<impl Io + use<>, DialError> {
        let address = self.resolve(self.port).await?;
        let unreachable = |reason: String| DialError::Unreachable {
            address: format!("{}:{}", self.host, self.port),
            reason,
        };
        let tcp = TcpStream::connect(address).await.map_err(|error| unreachable(error.to_string()))?;
        drop(tcp.set_nodelay(true));
        let name = ServerName::try_from(self.host.clone()).map_err(|error| unreachable(error.to_string()))?;
        let mut tls = rustls::ClientConfig::clone(&self.tls);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tls = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, tcp).await;
        let tls = tls.map_err(|error| unreachable(error.to_string()))?;
        self.switch(tls).await
    }

    async fn switch<T: Io>(&self, io: T) -> Result<impl Io + use<T>, DialError> {
        let broken = |error: hyper::Error| DialError::Tunnel(TunnelError::Protocol(error.to_string()));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(broken)?;
        tokio::spawn(connection.with_upgrades());
        let request = Request::get(&self.path)
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "tombolo")
            .body(Empty::<bytes::Bytes>::new())
            .map_err(|error| DialError::Tunnel(TunnelError::Protocol(error.to_string())))?;
        let mut response = sender.send_request(request).await.map_err(broken)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), 64 << 10).collect().await;
            let message =
                body.map(|b| String::from_utf8_lossy(&b.to_bytes()).into_owned()).unwrap_or_default();
            return Err(DialError::Refused { status, message });
        }
        Ok(TokioIo::new(hyper::upgrade::on(&mut response).await.map_err(broken)?))
    }

    async fn resolve(&self, port: u16) -> Result<SocketAddr, DialError> {
        let lookup = tokio::net::lookup_host((self.host.as_str(), port)).await;
        let found = lookup.and_then(|mut all| {
            all.next().ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "no address"))
        });
        found.map_err(|source| DialError::Resolve { host: self.host.clone(), source })
    }
}
