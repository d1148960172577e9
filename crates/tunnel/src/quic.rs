//! QUIC as the carrier.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Endpoint, EndpointConfig, RecvStream, SendStream, TokioRuntime, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::site_socket::{Refusals, SiteSocket};
use crate::{BoxIo, TunnelError};

const ALPN: &[u8] = b"tombolo/1";
/// Bytes in flight per stream that the receiver has not read.
const STREAM_WINDOW: u32 = 1 << 20;
/// Above the patience of any heartbeat: the heartbeat decides, not the transport.
const IDLE: Duration = Duration::from_secs(180);

/// Bytes the kernel holds for a hub's socket, which all sites share, and for a site's.
pub(crate) const HUB_BUFFER: usize = 16 << 20;
pub(crate) const SITE_BUFFER: usize = 1 << 20;

/// Streams that a site may have open to its hub, and a hub to a site. Room for each is made at once, and a hub has many sites.
const FROM_SITE: u32 = 100;
const FROM_HUB: u32 = 256;

/// Between two words that a tie is gone: a thousand sites may ask within one heartbeat.
const RESET_PAUSE: Duration = Duration::from_millis(1);

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

/// The hub's endpoint: clients must show a certificate that `tls` accepts. With the same `secret` and address as before, it
/// tells the sites of a process that was killed, as soon as they say a word, that their ties are gone.
pub fn listen(
    address: SocketAddr,
    mut tls: rustls::ServerConfig,
    secret: &[u8],
) -> Result<Endpoint, TunnelError> {
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.max_early_data_size = 0;
    let crypto = QuicServerConfig::try_from(tls).map_err(|error| TunnelError::Protocol(error.to_string()))?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(transport(FROM_SITE));
    config.migration(true);
    let socket = socket(address, HUB_BUFFER)?;
    let known = known_after_restart(secret, socket.local_addr()?);
    Ok(Endpoint::new(known, Some(config), socket, Arc::new(TokioRuntime))?)
}

/// Keys that a process started anew finds again. The address is part of them: with those of another replica, whoever sees a
/// packet could have a living tie reset by sending it there.
fn known_after_restart(secret: &[u8], address: SocketAddr) -> EndpointConfig {
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    let derive = |what: &str| ring::hmac::sign(&secret, format!("tombolo quic {what} {address}").as_bytes());
    let reset = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, derive("reset").as_ref());
    let ids =
        derive("connection ids").as_ref().iter().take(8).fold(0, |key, byte| key << 8 | u64::from(*byte));
    let mut config = EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config.min_reset_interval(RESET_PAUSE);
    config
}

/// A socket that holds what comes while nobody looks. With the kernel's 200 KB, a thousand sites that speak at
/// once lose one packet in six, and those that lose most are silent for a minute.
pub(crate) fn socket(address: SocketAddr, buffer: usize) -> std::io::Result<UdpSocket> {
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

/// Dials a hub. Gives also the place where it shows when the hub's machine says that nobody has the port any more.
pub async fn dial(
    address: SocketAddr,
    name: &str,
    mut tls: rustls::ClientConfig,
) -> Result<(quinn::Connection, Refusals), TunnelError> {
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicClientConfig::try_from(tls).map_err(|error| TunnelError::Protocol(error.to_string()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport(FROM_HUB));
    let any: SocketAddr =
        if address.is_ipv6() { (Ipv6Addr::UNSPECIFIED, 0).into() } else { (Ipv4Addr::UNSPECIFIED, 0).into() };
    let socket = SiteSocket::new(socket(any, SITE_BUFFER)?)?;
    let refusals = socket.refusals();
    let runtime = Arc::new(TokioRuntime);
    let mut endpoint =
        Endpoint::new_with_abstract_socket(EndpointConfig::default(), None, Arc::new(socket), runtime)?;
    endpoint.set_default_client_config(config);
    let connecting =
        endpoint.connect(address, name).map_err(|error| TunnelError::Protocol(error.to_string()))?;
    tokio::select! {
        connected = connecting => match connected {
            Ok(connection) => Ok((connection, refusals)),
            Err(error) => Err(TunnelError::Closed(error.to_string())),
        },
        () = refusals.next() => Err(TunnelError::Io(std::io::ErrorKind::ConnectionRefused.into())),
    }
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
