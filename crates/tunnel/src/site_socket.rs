//! A site's UDP socket.

use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use tokio::sync::Notify;

/// Room for what the kernel tells beside one error.
const ROOM: usize = 256;

/// Takes datagrams one by one, and notices when the other machine says that nobody has the port.
///
/// One by one: where the kernel may hand over many as one, quinn makes room for 2,048 of them: 3 MB, a fifth of an idle
/// agent. A site hears little, and hears it as well so.
///
/// Not connected, though a connected socket would be told of errors without asking for it: its own address would be fixed,
/// and the tie would not survive that the site's machine changes networks.
#[derive(Debug)]
pub struct SiteSocket {
    wrapped: Arc<dyn AsyncUdpSocket>,
    same: UdpSocket,
    refused: Arc<Notify>,
    room: Mutex<Vec<u8>>,
}

/// Tells when a datagram was refused. Anybody on the way may forge that: it is a reason to ask the peer, no proof.
#[derive(Clone, Debug)]
pub struct Refusals(Arc<Notify>);

impl Refusals {
    /// Waits for the next one. Only the latest is kept while nobody waits.
    pub async fn next(&self) {
        self.0.notified().await;
    }
}

impl SiteSocket {
    pub fn new(socket: UdpSocket) -> std::io::Result<Self> {
        let same = socket.try_clone()?;
        let wrapped = TokioRuntime.wrap_udp_socket(socket)?;
        // Wrapping it asked for the opposite, where the kernel knows of it.
        let _ = setsockopt(&same, sockopt::UdpGroSegment, &false);
        // Where the kernel does not tell of errors, heartbeats find out later.
        let _ = match same.local_addr()? {
            SocketAddr::V4(_) => setsockopt(&same, sockopt::Ipv4RecvErr, &true),
            SocketAddr::V6(_) => setsockopt(&same, sockopt::Ipv6RecvErr, &true),
        };
        let room = Mutex::new(vec![0; ROOM]);
        Ok(Self { wrapped, same, refused: Arc::default(), room })
    }

    pub fn refusals(&self) -> Refusals {
        Refusals(self.refused.clone())
    }

    /// Takes the errors that came back for earlier datagrams. Left there, the first would make the next datagram fail.
    fn take_errors(&self) {
        let mut room = self.room.lock();
        let mut returned = [0; 1];
        let mut buffers = [IoSliceMut::new(&mut returned)];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        while let Ok(error) =
            recvmsg::<SockaddrStorage>(self.same.as_raw_fd(), &mut buffers, Some(&mut room), flags)
        {
            let refused = |told: ControlMessageOwned| match told {
                ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
                    error.ee_errno == libc::ECONNREFUSED as u32
                }
                _ => false,
            };
            if error.cmsgs().is_ok_and(|mut told| told.any(refused)) {
                self.refused.notify_one();
            }
        }
    }
}

impl AsyncUdpSocket for SiteSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.wrapped.clone().create_io_poller()
    }

    /// A datagram that nobody answers is sent again, and then it shows why: nothing need be awake for it.
    fn try_send(&self, transmit: &Transmit<'_>) -> std::io::Result<()> {
        self.take_errors();
        self.wrapped.try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<std::io::Result<usize>> {
        self.wrapped.poll_recv(cx, buffers, meta)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.wrapped.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.wrapped.max_transmit_segments()
    }

    fn may_fragment(&self) -> bool {
        self.wrapped.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::{HUB_BUFFER, SITE_BUFFER, socket};
    use std::future::poll_fn;
    use std::net::Ipv4Addr;

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
        let site = SiteSocket::new(socket(here, SITE_BUFFER).expect("socket")).expect("site");
        assert_eq!(received(&*hub, &sender).await, [(1000, 100)]);
        assert_eq!(received(&site, &sender).await, [(100, 100); 4]);
        assert_eq!(site.max_receive_segments(), 1);
    }
}
