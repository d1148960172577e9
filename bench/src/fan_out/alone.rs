//! Watchers that each have a TLS connection of their own.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use rustls::{ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

use super::arrivals::Arrivals;
use super::wire::{Departures, Wire};
use super::{Access, PATIENCE, REST, ROOM};

/// So many connections are made at the same time.
const OPENERS: usize = 16;

pub struct Watchers<'w> {
    all: Vec<Arrivals>,
    /// What is between them and the server, if it is anything but loopback.
    beyond: Option<(&'w Wire, Departures)>,
}

impl<'w> Watchers<'w> {
    pub fn open(access: &Access, path: &str, count: usize, wire: Option<&'w Wire>) -> Result<Self> {
        let mut streams = Vec::new();
        std::thread::scope(|scope| -> Result<()> {
            let openers: Vec<_> = (0..OPENERS)
                .map(|n| {
                    scope.spawn(move || {
                        if let Some(wire) = wire {
                            tombolo_wan::enter(wire.far())?;
                        }
                        (n..count).step_by(OPENERS).map(|_| watch(access, path)).collect::<Result<Vec<_>>>()
                    })
                })
                .collect();
            for opener in openers {
                streams.extend(opener.join().map_err(|_| anyhow::anyhow!("an opener panicked"))??);
            }
            Ok(())
        })?;
        let all = streams.into_iter().map(|stream| {
            let (session, socket) = stream.into_parts();
            Arrivals::new(socket, session)
        });
        let all = all.collect::<Result<_>>()?;
        let beyond = wire.map(|wire| Departures::note().map(|departures| (wire, departures))).transpose()?;
        Ok(Self { all, beyond })
    }
}

impl super::Watchers for Watchers<'_> {
    fn expect(&mut self) -> Result<()> {
        if let Some((wire, departures)) = &mut self.beyond {
            wire.hold();
            departures.take()?;
        }
        Ok(())
    }

    /// An event fits into a socket's buffer: nothing needs to be taken out of it meanwhile.
    fn rest(&mut self) -> Result<()> {
        std::thread::sleep(REST);
        Ok(())
    }

    fn last_saw(&mut self, name: &str) -> Result<SystemTime> {
        let departed = match &mut self.beyond {
            None => None,
            Some((wire, departures)) => {
                let departed = departures.take()?;
                wire.release();
                Some(departed)
            }
        };
        let deadline = Instant::now() + PATIENCE;
        let mut last = None;
        let mut room = vec![0; ROOM];
        for watcher in &mut self.all {
            let mut at = saw(watcher, name, deadline, &mut room)?;
            if let Some(departed) = &departed {
                at = *departed.get(&watcher.port()?).context("a watcher was sent nothing in time")?;
            }
            last = last.max(Some(at));
        }
        last.context("there are no watchers")
    }
}

/// When this watcher had the whole event.
fn saw(watcher: &mut Arrivals, name: &str, deadline: Instant, room: &mut [u8]) -> Result<SystemTime> {
    let mut plain = Vec::new();
    loop {
        watcher.take(room)?;
        watcher.unseal(&mut plain)?;
        let text = String::from_utf8_lossy(&plain);
        if text.find(name).is_some_and(|at| text[at..].contains("}\n")) {
            return watcher.last().context("an event without a time");
        }
        ensure!(Instant::now() < deadline, "a watcher got something else than the event: {text}");
        std::thread::sleep(REST / 10);
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
