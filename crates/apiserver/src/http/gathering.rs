//! Writes that leave together.
//!
//! A controller holds dozens of watches on one HTTP/2 connection. One change wakes them all, each hands its event to the
//! connection, and the connection would encrypt and send each as soon as it has it: a system call for every event. Here a
//! flush first lets everybody else who is ready have a turn, and sends what came of that in one piece.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// So much is kept at most before it is sent.
const MOST: usize = 64 * 1024;
/// A flush gives way so often at most, however much keeps coming.
const TURNS: u8 = 8;

pub struct Gathering<I> {
    io: I,
    gathered: Vec<u8>,
    /// How much of it is sent already.
    sent: usize,
    /// How much there was when the flush last gave way, and how often it did.
    seen: usize,
    turns: u8,
}

impl<I: AsyncWrite + Unpin> Gathering<I> {
    pub fn new(io: I) -> Self {
        Self { io, gathered: Vec::new(), sent: 0, seen: 0, turns: 0 }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.gathered.len() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, &self.gathered[self.sent..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
        }
        // The room is given back: most connections are silent most of the time.
        self.gathered = Vec::new();
        (self.sent, self.seen, self.turns) = (0, 0, 0);
        Poll::Ready(Ok(()))
    }

    /// Whether more may come: more came since the last turn, or there was none yet.
    fn give_way(&mut self) -> bool {
        let more = self.sent == 0 && self.gathered.len() > self.seen && self.turns < TURNS;
        if more {
            self.seen = self.gathered.len();
            self.turns += 1;
        }
        more
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Gathering<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.sent > 0 || this.gathered.len() + bytes.len() > MOST {
            ready!(this.poll_send(cx))?;
        }
        if bytes.len() >= MOST {
            return Pin::new(&mut this.io).poll_write(cx, bytes);
        }
        this.gathered.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.give_way() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.io).poll_shutdown(cx)
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Gathering<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Counts the writes that reach it, and takes at most `most` bytes with each.
    struct Counting {
        most: usize,
        writes: Vec<Vec<u8>>,
    }

    impl AsyncWrite for Counting {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let this = self.get_mut();
            let count = bytes.len().min(this.most);
            this.writes.push(bytes[..count].to_vec());
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn gathering(most: usize) -> Gathering<Counting> {
        Gathering::new(Counting { most, writes: Vec::new() })
    }

    #[tokio::test]
    async fn what_comes_while_a_flush_gives_way_leaves_with_it() {
        let mut io = gathering(usize::MAX);
        let mut first = true;
        io.write_all(b"one").await.expect("written");
        std::future::poll_fn(|cx| {
            let flushed = Pin::new(&mut io).poll_flush(cx);
            if std::mem::take(&mut first) {
                assert!(flushed.is_pending(), "others have a turn first");
                let written = Pin::new(&mut io).poll_write(cx, b"two");
                assert!(matches!(written, Poll::Ready(Ok(3))));
            }
            flushed
        })
        .await
        .expect("flushed");
        assert_eq!(io.io.writes, [b"onetwo"]);
    }

    #[tokio::test]
    async fn nothing_is_lost_or_mixed_up_by_writes_that_take_a_part() {
        let mut io = gathering(1000);
        let sizes = [1, 999, 30_000, 40_000, 70_000, 5, 64 * 1024, 3];
        let mut all = Vec::new();
        for (n, size) in sizes.iter().enumerate() {
            let piece = vec![n as u8; *size];
            io.write_all(&piece).await.expect("written");
            all.extend(piece);
            if n % 3 == 2 {
                io.flush().await.expect("flushed");
            }
        }
        io.shutdown().await.expect("shut down");
        assert!(io.io.writes.concat() == all);
    }

    #[tokio::test]
    async fn a_flush_ends_although_more_keeps_coming() {
        let mut io = gathering(usize::MAX);
        let mut polls = 0;
        io.write_all(b".").await.expect("written");
        std::future::poll_fn(|cx| {
            polls += 1;
            let flushed = Pin::new(&mut io).poll_flush(cx);
            if flushed.is_pending() {
                assert!(Pin::new(&mut io).poll_write(cx, b".").is_ready());
            }
            flushed
        })
        .await
        .expect("flushed");
        assert_eq!((polls, io.io.writes.len()), (usize::from(TURNS) + 1, 1));
    }

    #[tokio::test]
    async fn reading_is_left_alone() {
        let (near, mut far) = tokio::io::duplex(64);
        far.write_all(b"hello").await.expect("written");
        let mut text = [0; 5];
        Gathering::new(near).read_exact(&mut text).await.expect("read");
        assert_eq!(&text, b"hello");
    }
}
