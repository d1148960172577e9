//! A TLS connection whose packets the kernel stamps as they arrive.

use std::io::{IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use rustls::ClientConnection;

pub struct Arrivals {
    socket: TcpStream,
    session: ClientConnection,
    /// What came, still encrypted.
    sealed: Vec<u8>,
    /// When the last of it came.
    last: Option<SystemTime>,
}

impl Arrivals {
    pub fn new(socket: TcpStream, session: ClientConnection) -> Result<Self> {
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).context("SO_TIMESTAMPNS")?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, session, sealed: Vec::new(), last: None })
    }

    pub fn port(&self) -> Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Takes what the socket holds, as it is. `buffer` is only room to do it in.
    pub fn take(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut control = nix::cmsg_space!(TimeSpec);
        loop {
            let mut parts = [IoSliceMut::new(buffer)];
            let flags = MsgFlags::MSG_DONTWAIT;
            let message = match recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut control), flags)
            {
                Ok(message) => message,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let count = message.bytes;
            let stamp = message.cmsgs()?.find_map(|control| match control {
                ControlMessageOwned::ScmTimestampns(at) => Some(at),
                _ => None,
            });
            if count == 0 {
                bail!("the server closed the connection");
            }
            let stamp = stamp.context("the kernel stamps no packets")?;
            self.last = Some(SystemTime::UNIX_EPOCH + Duration::from(stamp));
            self.sealed.extend_from_slice(&buffer[..count]);
        }
    }

    /// Decrypts what was taken, behind what `plain` holds.
    pub fn unseal(&mut self, plain: &mut Vec<u8>) -> Result<()> {
        let mut sealed = &self.sealed[..];
        while !sealed.is_empty() {
            self.session.read_tls(&mut sealed)?;
            let state = self.session.process_new_packets()?;
            let start = plain.len();
            plain.resize(start + state.plaintext_bytes_to_read(), 0);
            self.session.reader().read_exact(&mut plain[start..])?;
        }
        self.sealed.clear();
        Ok(())
    }

    /// When the last bytes came since this was last asked.
    pub fn last(&mut self) -> Option<SystemTime> {
        self.last.take()
    }

    pub fn send(&mut self, plain: &[u8]) -> Result<()> {
        self.session.writer().write_all(plain)?;
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}
