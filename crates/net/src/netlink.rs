//! Just enough netlink: build a request, send it, read the acknowledgement or the answers.
//!
//! Written by hand because the node needs a dozen messages of two families (links and nftables), synchronously
//! and inside another network namespace, and must work on a machine where neither `ip` nor `nft` is installed.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt,
    socket, sockopt,
};

pub(crate) const REQUEST: u16 = 1;
pub(crate) const ACK: u16 = 4;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const EXCL: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const APPEND: u16 = 0x800;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NESTED: u16 = 0x8000;

/// A message being built: the header is filled in when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub kind: u16,
    pub flags: u16,
    pub body: Vec<u8>,
}

impl Message {
    /// `head` is the fixed part of the family (`ifinfomsg`, `nfgenmsg`, …).
    pub fn new(kind: u16, flags: u16, head: &[u8]) -> Message {
        let mut message = Message { kind, flags: flags | REQUEST, body: head.to_vec() };
        message.align();
        message
    }

    fn align(&mut self) {
        self.body.resize(self.body.len().next_multiple_of(4), 0);
    }

    pub fn bytes(mut self, attribute: u16, value: &[u8]) -> Message {
        self.push(attribute, value);
        self
    }

    fn push(&mut self, attribute: u16, value: &[u8]) {
        self.body.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
        self.body.extend_from_slice(&attribute.to_ne_bytes());
        self.body.extend_from_slice(value);
        self.align();
    }

    pub fn text(self, attribute: u16, value: &str) -> Message {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(attribute, &bytes)
    }

    pub fn u32(self, attribute: u16, value: u32) -> Message {
        self.bytes(attribute, &value.to_ne_bytes())
    }

    /// Network byte order, as nftables wants its numbers.
    pub fn be32(self, attribute: u16, value: u32) -> Message {
        self.bytes(attribute, &value.to_be_bytes())
    }

    pub fn be64(self, attribute: u16, value: u64) -> Message {
        self.bytes(attribute, &value.to_be_bytes())
    }

    /// An attribute that contains attributes.
    pub fn nest(mut self, attribute: u16, fill: impl FnOnce(Message) -> Message) -> Message {
        let inner = fill(Message { kind: 0, flags: 0, body: Vec::new() });
        self.push(attribute | NESTED, &inner.body);
        self
    }

    fn encode(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.body.len() + 16);
        bytes.extend_from_slice(&(self.body.len() as u32 + 16).to_ne_bytes());
        bytes.extend_from_slice(&self.kind.to_ne_bytes());
        bytes.extend_from_slice(&self.flags.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A netlink socket of one family, in the network namespace of the thread that opened it.
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    pub fn route() -> io::Result<Socket> {
        Socket::open(SockProtocol::NetlinkRoute)
    }

    pub fn netfilter() -> io::Result<Socket> {
        Socket::open(SockProtocol::NetlinkNetFilter)
    }

    fn open(protocol: SockProtocol) -> io::Result<Socket> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        // Large transactions are one datagram each; ask for room, and live with less.
        let _ = setsockopt(&fd, sockopt::SndBuf, &(4 << 20));
        let _ = setsockopt(&fd, sockopt::RcvBuf, &(4 << 20));
        Ok(Socket { fd, sequence: 0 })
    }

    /// Sends one request and waits until the kernel has done it.
    pub fn request(&mut self, message: Message) -> io::Result<()> {
        self.sequence += 1;
        let message = Message { flags: message.flags | ACK, ..message };
        send(self.fd.as_raw_fd(), &message.encode(self.sequence), MsgFlags::empty())?;
        self.answers(1).map(drop)
    }

    /// Sends one request and collects the bodies of all answers.
    pub fn dump(&mut self, message: Message) -> io::Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let message = Message { flags: message.flags | DUMP, ..message };
        send(self.fd.as_raw_fd(), &message.encode(self.sequence), MsgFlags::empty())?;
        self.answers(1)
    }

    /// Sends several messages as one datagram; the kernel does all or nothing (nftables).
    /// Every message with the ACK flag is answered; the first failure is the outcome.
    pub fn batch(&mut self, messages: &[Message]) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut expected = 0;
        for message in messages {
            self.sequence += 1;
            bytes.extend_from_slice(&message.encode(self.sequence));
            expected += usize::from(message.flags & ACK != 0);
        }
        send(self.fd.as_raw_fd(), &bytes, MsgFlags::empty())?;
        self.answers(expected).map(drop)
    }

    fn answers(&mut self, mut acknowledgements: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut bodies = Vec::new();
        let mut buffer = vec![0u8; 64 * 1024];
        let mut failure = None;
        while acknowledgements > 0 {
            let count = recv(self.fd.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            for (kind, body) in split(&buffer[..count]) {
                match kind {
                    DONE => acknowledgements = 0,
                    ERROR => {
                        acknowledgements = acknowledgements.saturating_sub(1);
                        let code = body.get(..4).map_or(0, |b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
                        if code != 0 && failure.is_none() {
                            failure = Some(io::Error::from_raw_os_error(-code));
                            // A refused batch answers each refused message, not each message.
                            if acknowledgements > 0 {
                                return Err(failure.unwrap_or_else(|| io::Error::other("netlink")));
                            }
                        }
                    }
                    _ => bodies.push(body.to_vec()),
                }
            }
        }
        failure.map_or(Ok(bodies), Err)
    }
}

fn split(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.get(..16)?;
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = u16::from_ne_bytes([head[4], head[5]]);
        let body = bytes.get(16..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The attributes of a body after its fixed head.
pub(crate) fn attributes(body: &[u8], head: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut bytes = body.get(head..).unwrap_or_default();
    std::iter::from_fn(move || {
        let start = bytes.get(..4)?;
        let length = u16::from_ne_bytes([start[0], start[1]]) as usize;
        let kind = u16::from_ne_bytes([start[2], start[3]]) & !NESTED;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
