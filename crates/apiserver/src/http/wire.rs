//! A socket that sends one piece as one piece, at once.
//!
//! TLS hands over what it has as a list of buffers, nearly always of one. `send` takes a shorter way through the kernel than
//! `writev` does, and a thousand watchers are a thousand calls. Whether the socket can take it, the kernel knows best: what the
//! runtime last heard of it lies in memory that nobody touched for a while.

use std::io::{IoSlice, Result};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::sys::socket::{MsgFlags, send};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

pub struct Wire(pub TcpStream);

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let socket = &mut self.get_mut().0;
        let turn = ready!(tokio::task::coop::poll_proceed(cx));
        if let Ok(count) = send(socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            turn.made_progress();
            return Poll::Ready(Ok(count));
        }
        drop(turn);
        // It is full, or broken: the runtime sees the same, and waits if there is something to wait for.
        Pin::new(socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match parts {
            [one] => self.poll_write(cx, one),
            _ => Pin::new(&mut self.get_mut().0).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}
