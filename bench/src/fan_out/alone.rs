//! Watchers that each have a TLS connection of their own.
//!
//! The generator must not be what is measured, so while it measures it only takes the bytes off each socket and
//! notes the time; they are decrypted afterwards, to prove that every watcher was sent the whole event.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use mio::{Events, Interest, Poll, Token};
use rustls::{ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

use super::{Access, GATHER, PATIENCE};

/// So many connections are made at the same time.
const OPENERS: usize = 16;

struct Watcher {
    socket: mio::net::TcpStream,
    session: ClientConnection,
    /// What came since the write, still encrypted.
    sealed: Vec<u8>,
    last: Option<Instant>,
}

pub struct Watchers {
    poll: Poll,
    all: Vec<Watcher>,
}

impl Watchers {
    pub fn open(access: &Access, path: &str, count: usize) -> Result<Self> {
        let mut streams = Vec::new();
        std::thread::scope(|scope| -> Result<()> {
            let openers: Vec<_> = (0..OPENERS)
                .map(|n| {
                    scope.spawn(move || {
                        (n..count).step_by(OPENERS).map(|_| watch(access, path)).collect::<Result<Vec<_>>>()
                    })
                })
                .collect();
            for opener in openers {
                streams.extend(opener.join().map_err(|_| anyhow::anyhow!("an opener panicked"))??);
            }
            Ok(())
        })?;
        let poll = Poll::new()?;
        let mut all = Vec::with_capacity(count);
        for (n, stream) in streams.into_iter().enumerate() {
            let (session, socket) = stream.into_parts();
            socket.set_nonblocking(true)?;
            let mut socket = mio::net::TcpStream::from_std(socket);
            poll.registry().register(&mut socket, Token(n), Interest::READABLE)?;
            all.push(Watcher { socket, session, sealed: Vec::with_capacity(4096), last: None });
        }
        Ok(Self { poll, all })
    }
}

impl super::Watchers for Watchers {
    /// Nothing is decrypted here.
    fn wait(&mut self, _: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut events = Events::with_capacity(1024);
        let mut missing = self.all.len();
        while missing > 0 {
            let left =
                deadline.checked_duration_since(Instant::now()).context("not every watcher saw the write")?;
            self.poll.poll(&mut events, Some(left))?;
            std::thread::sleep(GATHER);
            for event in &events {
                let watcher = &mut self.all[event.token().0];
                if watcher.take()? && watcher.last.replace(Instant::now()).is_none() {
                    missing -= 1;
                }
            }
        }
        Ok(())
    }

    fn last_saw(&mut self, name: &str) -> Result<Instant> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = None;
        for watcher in &mut self.all {
            watcher.finish(name, deadline)?;
            last = last.max(watcher.last.take());
        }
        last.context("there are no watchers")
    }
}

impl Watcher {
    /// Takes what the socket holds; says whether there was anything.
    fn take(&mut self) -> Result<bool> {
        let before = self.sealed.len();
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => bail!("the server closed a watch"),
                Ok(count) => {
                    self.sealed.extend_from_slice(&buffer[..count]);
                    // A short read emptied the socket; the next bytes give a new event.
                    if count < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.sealed.len() > before)
    }

    /// Decrypts what came. Where the event is not whole yet, waits for the rest and counts that time too.
    fn finish(&mut self, name: &str, deadline: Instant) -> Result<()> {
        let mut plain = Vec::new();
        loop {
            let mut sealed = &self.sealed[..];
            while !sealed.is_empty() {
                self.session.read_tls(&mut sealed)?;
                let state = self.session.process_new_packets()?;
                let start = plain.len();
                plain.resize(start + state.plaintext_bytes_to_read(), 0);
                self.session.reader().read_exact(&mut plain[start..])?;
            }
            self.sealed.clear();
            let text = String::from_utf8_lossy(&plain);
            if text.find(name).is_some_and(|at| text[at..].contains("}\n")) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "a watcher got something else than the event: {text}");
            if self.take()? {
                self.last = Some(Instant::now());
            }
        }
    }
}

/// One connection with an established watch: the answer's head has been read.
fn watch(access: &Access, path: &str) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let socket = TcpStream::connect(&access.address)?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from(access.host().to_owned())?;
    let mut stream = StreamOwned::new(ClientConnection::new(access.tls.clone(), name)?, socket);
    let token = access.token.as_ref().map(|t| format!("Authorization: Bearer {t}\r\n")).unwrap_or_default();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\n{token}\r\n",
        access.address
    )?;
    stream.flush()?;
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the server closed the connection");
        head.extend_from_slice(&buffer[..count]);
    }
    ensure!(head.starts_with(b"HTTP/1.1 200"), "watch: {}", String::from_utf8_lossy(&head));
    Ok(stream)
}
