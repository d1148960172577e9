//! A wire between the server that is measured and watchers on other machines.
//!
//! On loopback, the receiver's half of the network runs within the sender's system calls, as if the server did it. So the
//! watchers live in a network namespace of their own. What the server sends waits in its device while the wire is held, and the
//! kernel notes when each packet came there; the watchers' kernel gets it afterwards.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeSpec;
use tombolo_wan::{Namespace, enter};
use tun_rs::{DeviceBuilder, SyncDevice};

/// Where the servers are reached, by their neighbours and over the wire.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const WATCHERS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// No packet may be dropped while the wire is held.
const QUEUE: u32 = 10_000;
/// How often the wire looks whether it is held.
const LOOK: Duration = Duration::from_millis(10);

pub struct Wire {
    watchers: Namespace,
    held: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    _server: Namespace,
}

impl Wire {
    /// Moves this process to a network of its own, with a wire to another. To be called before there are other threads.
    pub fn lay() -> Result<Self> {
        let name = |end: &str| format!("tombolo-bench-{end}-{}", std::process::id());
        let (server, watchers) = (Namespace::create(&name("server"))?, Namespace::create(&name("watchers"))?);
        let near = Arc::new(server.run(|| device(SERVER))??);
        let far = Arc::new(watchers.run(|| device(WATCHERS))??);
        enter(server.name())?;
        let (held, ended) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let pause = held.clone();
        carry(near.clone(), far.clone(), ended.clone(), move || pause.load(Ordering::SeqCst));
        carry(far, near, ended.clone(), || false);
        Ok(Self { watchers, held, ended, _server: server })
    }

    /// The network that watchers are to be in.
    pub fn far(&self) -> &str {
        self.watchers.name()
    }

    /// What the server sends from now on waits.
    pub fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
        std::thread::sleep(2 * LOOK);
    }

    pub fn release(&self) {
        self.held.store(false, Ordering::SeqCst);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
    }
}

fn device(address: Ipv4Addr) -> std::io::Result<SyncDevice> {
    let device = DeviceBuilder::new().name("wire").ipv4(address, 24, None).mtu(1500).build_sync()?;
    device.set_tx_queue_len(QUEUE)?;
    Ok(device)
}

/// Carries packets from one end to the other, on a thread of its own.
fn carry(
    from: Arc<SyncDevice>,
    to: Arc<SyncDevice>,
    ended: Arc<AtomicBool>,
    held: impl Fn() -> bool + Send + 'static,
) {
    std::thread::spawn(move || {
        let mut packet = vec![0; 65_536];
        while !ended.load(Ordering::SeqCst) {
            if held() {
                std::thread::sleep(LOOK);
                continue;
            }
            let timeout = PollTimeout::from(LOOK.as_millis() as u8);
            let ready = poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], timeout);
            if ready.is_ok_and(|count| count > 0)
                && let Ok(length) = from.recv(&mut packet)
            {
                // What the other end does not take is lost, and sent again.
                let _ = to.send(&packet[..length]);
            }
        }
    });
}

/// Notes when the server's packets to watchers come to the wire.
pub struct Departures(OwnedFd);

impl Departures {
    pub fn note() -> Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).context("SO_TIMESTAMPNS")?;
        // A thousand packets take the room of a few thousand bytes each.
        setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20)).context("SO_RCVBUFFORCE")?;
        Ok(Self(socket))
    }

    /// By port of a watcher: when the last of what was sent to it for the first time came to the wire. Forgets it.
    pub fn take(&mut self) -> Result<HashMap<u16, SystemTime>> {
        let mut sent: HashMap<u16, (u32, SystemTime)> = HashMap::new();
        let mut bytes = [0; 128];
        let mut control = nix::cmsg_space!(TimeSpec);
        loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            let message = match recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut control), flags) {
                Ok(message) => message,
                Err(Errno::EAGAIN) => break,
                Err(error) => return Err(error.into()),
            };
            let stamp = message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::ScmTimestampns(at) => Some(SystemTime::UNIX_EPOCH + Duration::from(at)),
                _ => None,
            });
            if let Some(Data { port, end }) = data(&bytes) {
                let stamp = stamp.context("the kernel stamps no packets")?;
                let entry = sent.entry(port).or_insert((end, stamp));
                // Sequence numbers wrap around.
                if (end.wrapping_sub(entry.0) as i32) > 0 {
                    *entry = (end, stamp);
                }
            }
        }
        Ok(sent.into_iter().map(|(port, (_, stamp))| (port, stamp)).collect())
    }
}

/// Bytes of a stream to a watcher.
#[derive(Debug, PartialEq)]
struct Data {
    port: u16,
    /// The sequence number behind them.
    end: u32,
}

/// What an IP packet carries to a watcher, if that is anything.
fn data(packet: &[u8; 128]) -> Option<Data> {
    let half = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    const TCP: u8 = 6;
    if packet[0] >> 4 != 4 || packet[9] != TCP || packet[16..20] != WATCHERS.octets() {
        return None;
    }
    let tcp = usize::from(packet[0] & 0xf) * 4;
    let headers = tcp + usize::from(packet[tcp + 12] >> 4) * 4;
    let length = u32::from(half(2)).checked_sub(headers as u32).filter(|length| *length > 0)?;
    let sequence = u32::from(half(tcp + 4)) << 16 | u32::from(half(tcp + 6));
    Some(Data { port: half(tcp + 2), end: sequence.wrapping_add(length) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_of_a_stream_to_a_watcher_count() {
        let mut packet = [0; 128];
        packet[0] = 0x45;
        packet[9] = 6;
        packet[16..20].copy_from_slice(&WATCHERS.octets());
        packet[20 + 2..20 + 4].copy_from_slice(&40_000_u16.to_be_bytes());
        packet[20 + 4..20 + 8].copy_from_slice(&(u32::MAX - 9).to_be_bytes());
        // Eight words: twelve bytes of options.
        packet[20 + 12] = 0x80;
        packet[2..4].copy_from_slice(&(20_u16 + 32).to_be_bytes());
        assert_eq!(data(&packet), None, "an acknowledgement");
        packet[2..4].copy_from_slice(&(20_u16 + 32 + 30).to_be_bytes());
        assert_eq!(data(&packet), Some(Data { port: 40_000, end: 20 }));
        packet[16..20].copy_from_slice(&SERVER.octets());
        assert_eq!(data(&packet), None, "the other direction");
    }
}
