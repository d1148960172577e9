//! QUIC as the carrier.

use std::io::IoSliceMut;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{
    AsyncUdpSocket, Endpoint, EndpointConfig, RecvStream, Runtime, SendStream, TokioRuntime, TransportConfig,
    UdpPoller, VarInt,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{BoxIo, TunnelError};

const ALPN: &[u8] = b"tombolo/1";
/// Bytes in flight per stream that the receiver has not read.
const STREAM_WINDOW: u32 = 1 << 20;
/// Above the patience of any heartbeat: the heartbeat decides, not the transport.
const IDLE: Duration = Duration::from_secs(180);

/// Bytes the kernel holds for a hub's socket, which all sites share, and for a site's.
const HUB_BUFFER: usize = 16 << 20;
const SITE_BUFFER: usize = 1 << 20;

/// Streams that a site may have open to its hub, and a hub to a site. Room for each is made at once, and a hub has many sites.
const FROM_SITE: u32 = 100;
const FROM_HUB: u32 = 256;

fn transport(streams: u32) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config.max_idle_timeout(Some(IDLE.try_into().unwrap_or_else(|_| VarInt::MAX.into())));
    config.stream_receive_window(STREAM_WINDOW.into());
    // Not bounded as a whole: a bulk stream that nobody reads must not stop the control streams. Streams times their window bound it.
    config.receive_window(VarInt::MAX);
    config.max_concurrent_bidi_streams(streams.into());
    config.max_concurrent_uni_streams(0u32.into());
    // Path probing costs bytes on idle links.
    config.mtu_discovery_config(None);
    config.initial_rtt(Duration::from_millis(100));
    config.congestion_controller_factory(Arc::new(crate::congestion::Factory));
    Arc::new(config)
}

/// The hub's endpoint: clients must show a certificate that `tls` accepts.
pub fn listen(address: SocketAddr, mut tls: rustls::ServerConfig) -> Result<Endpoint, TunnelError> {
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.max_early_data_size = 0;
    let crypto = QuicServerConfig::try_from(tls).map_err(|error| TunnelError::Protocol(error.to_string()))?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(transport(FROM_SITE));
    config.migration(true);
    let socket = socket(address, HUB_BUFFER)?;
    Ok(Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?)
}

/// A socket that holds what comes while nobody looks. With the kernel's 200 KB, a thousand sites that speak at
/// once lose one packet in six, and those that lose most are silent for a minute.
fn socket(address: SocketAddr, buffer: usize) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    // Beyond the system's limit where we may, up to it where we may not.
    if setsockopt(&socket, sockopt::RcvBufForce, &buffer).is_err() {
        let _ = setsockopt(&socket, sockopt::RcvBuf, &buffer);
    }
    if setsockopt(&socket, sockopt::SndBufForce, &buffer).is_err() {
        let _ = setsockopt(&socket, sockopt::SndBuf, &buffer);
    }
    Ok(socket)
}

/// A site's socket, which takes datagrams one by one. Where the kernel may hand over many as one, quinn makes room for 2,048
/// of them: 3 MB, a fifth of an idle agent. A site hears little, and hears it as well so.
#[derive(Debug)]
struct OneByOne(Arc<dyn AsyncUdpSocket>);

impl OneByOne {
    fn new(socket: UdpSocket) -> std::io::Result<Self> {
        let same = socket.try_clone()?;
        let wrapped = TokioRuntime.wrap_udp_socket(socket)?;
        // Wrapping it asked for the opposite, where the kernel knows of it.
        let _ = setsockopt(&same, sockopt::UdpGroSegment, &false);
        Ok(Self(wrapped))
    }
}

impl AsyncUdpSocket for OneByOne {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.0.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> std::io::Result<()> {
        self.0.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<std::io::Result<usize>> {
        self.0.poll_recv(cx, buffers, meta)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.0.max_transmit_segments()
    }

    fn may_fragment(&self) -> bool {
        self.0.may_fragment()
    }
}

/// Dials a hub.
pub async fn dial(
    address: SocketAddr,
    name: &str,
    mut tls: rustls::ClientConfig,
) -> Result<quinn::Connection, TunnelError> {
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicClientConfig::try_from(tls).map_err(|error| TunnelError::Protocol(error.to_string()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport(FROM_HUB));
    let any: SocketAddr =
        if address.is_ipv6() { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    let socket = Arc::new(OneByOne::new(socket(any, SITE_BUFFER)?)?);
    let runtime = Arc::new(TokioRuntime);
    let mut endpoint = Endpoint::new_with_abstract_socket(EndpointConfig::default(), None, socket, runtime)?;
    endpoint.set_default_client_config(config);
    let connecting =
        endpoint.connect(address, name).map_err(|error| TunnelError::Protocol(error.to_string()))?;
    connecting.await.map_err(|error| TunnelError::Closed(error.to_string()))
}

/// One bidirectional QUIC stream as a byte stream.
pub fn stream(send: SendStream, recv: RecvStream) -> BoxIo {
    Box::new(Stream { send, recv })
}

struct Stream {
    send: SendStream,
    recv: RecvStream,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    /// What one call to receive brings of ten datagrams that were sent as one.
    async fn received(socket: &dyn AsyncUdpSocket, from: &UdpSocket) -> Vec<(usize, usize)> {
        let to = socket.local_addr().expect("address");
        let state = quinn::udp::UdpSocketState::new(from.into()).expect("sender");
        let contents = [7; 10 * 100];
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: &contents,
            segment_size: Some(100),
            src_ip: None,
        };
        state.send(from.into(), &transmit).expect("sent");
        let mut rooms = vec![[0; 2000]; 4];
        let mut buffers: Vec<_> = rooms.iter_mut().map(|room| IoSliceMut::new(room)).collect();
        let mut meta = vec![RecvMeta::default(); 4];
        let count = poll_fn(|cx| socket.poll_recv(cx, &mut buffers, &mut meta)).await.expect("received");
        meta[..count].iter().map(|meta| (meta.len, meta.stride)).collect()
    }

    #[tokio::test]
    async fn a_site_gets_datagrams_one_by_one_and_a_hub_many_at_once() {
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let sender = socket(here, SITE_BUFFER).expect("sender");
        let hub = TokioRuntime.wrap_udp_socket(socket(here, HUB_BUFFER).expect("socket")).expect("hub");
        let site = OneByOne::new(socket(here, SITE_BUFFER).expect("socket")).expect("site");
        assert_eq!(received(&*hub, &sender).await, [(1000, 100)]);
        assert_eq!(received(&site, &sender).await, [(100, 100); 4]);
        assert_eq!(site.max_receive_segments(), 1);
    }
}
