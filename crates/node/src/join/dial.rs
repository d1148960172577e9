//! The node's connections to its cluster: API calls, and the tunnel for the way back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::WaitForCancellationFutureOwned;
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
    let replaced = credentials.replaced();
    let mut tls = rustls::ClientConfig::clone(&credentials.tls());
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, tcp).await?;
    Ok(Box::new(UntilReplaced { stream, replaced: Box::pin(replaced.cancelled_owned()) }))
}

/// A connection that ends with the certificate it was made with. A node that comes back with an outdated one is nobody on
/// that connection, and would stay nobody for as long as it keeps using it.
struct UntilReplaced<S> {
    stream: S,
    replaced: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for UntilReplaced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.replaced.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UntilReplaced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn a_connection_ends_when_its_certificate_is_replaced() {
        let (near, mut far) = tokio::io::duplex(64);
        let token = CancellationToken::new();
        let mut stream = UntilReplaced { stream: near, replaced: Box::pin(token.clone().cancelled_owned()) };
        far.write_all(b"a").await.expect("written");
        assert_eq!(stream.read_u8().await.expect("read"), b'a');
        let reading = tokio::spawn(async move { stream.read(&mut [0; 8]).await });
        token.cancel();
        assert_eq!(reading.await.expect("ran").expect("an end"), 0);
    }
}
