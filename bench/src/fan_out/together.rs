//! Watchers that share HTTP/2 connections.
//!
//! Just enough of HTTP/2 to ask for watches and to take their events off the wire; a whole client would cost more than
//! the servers that are compared.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use rustls::ClientConnection;
use rustls_pki_types::ServerName;

use super::arrivals::Arrivals;
use super::{Access, PATIENCE, REST, ROOM};

/// kube-apiserver takes no more streams on a connection.
const EACH: usize = 100;
const WINDOW: u32 = 1 << 30;
/// A hundred events may fill a socket's buffer, so it is emptied so often.
const LOOK: Duration = Duration::from_millis(5);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
/// The whole request is in one frame: end of the stream, end of the headers.
const WHOLE: u8 = 5;
/// HPACK for `:status: 200`.
const OK: u8 = 0x88;

pub struct Watchers(Vec<Connection>);

struct Connection {
    arrivals: Arrivals,
    /// Decrypted and not taken apart yet: less than a frame.
    plain: Vec<u8>,
    /// What each watcher was sent since the last write; a watcher that was answered has an entry.
    watchers: HashMap<u32, Vec<u8>>,
}

impl Watchers {
    pub fn open(access: &Access, path: &str, count: usize) -> Result<Self> {
        let starts = (0..count).step_by(EACH);
        let all = starts.map(|start| Connection::open(access, path, EACH.min(count - start)));
        Ok(Self(all.collect::<Result<_>>()?))
    }
}

impl super::Watchers for Watchers {
    fn rest(&mut self) -> Result<()> {
        let end = Instant::now() + REST;
        let mut room = vec![0; ROOM];
        while Instant::now() < end {
            std::thread::sleep(LOOK);
            for connection in &mut self.0 {
                connection.arrivals.take(&mut room)?;
            }
        }
        Ok(())
    }

    fn last_saw(&mut self, name: &str) -> Result<SystemTime> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = None;
        for connection in &mut self.0 {
            connection.read()?;
            while !connection.is_served(name) {
                ensure!(Instant::now() < deadline, "not every watcher saw the write");
                std::thread::sleep(LOOK);
                connection.read()?;
            }
            connection.watchers.values_mut().for_each(Vec::clear);
            last = last.max(connection.arrivals.last());
        }
        last.context("there are no watchers")
    }
}

impl Connection {
    fn open(access: &Access, path: &str, count: usize) -> Result<Self> {
        let mut tls = access.tls.as_ref().clone();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(access.host().to_owned())?;
        let mut session = ClientConnection::new(Arc::new(tls), name)?;
        let mut socket = TcpStream::connect(&access.address)?;
        socket.set_nodelay(true)?;
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // No pushes, and a window that no event fills.
        let settings = [[0, 2, 0, 0, 0, 0].as_slice(), &[0, 4], &WINDOW.to_be_bytes()].concat();
        frame(&mut hello, SETTINGS, 0, 0, &settings);
        frame(&mut hello, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        let head = request(access, path);
        for n in 0..u32::try_from(count)? {
            frame(&mut hello, HEADERS, WHOLE, 2 * n + 1, &head);
        }
        session.writer().write_all(&hello)?;
        while session.is_handshaking() || session.wants_write() {
            session.complete_io(&mut socket)?;
        }
        ensure!(session.alpn_protocol() == Some(b"h2"), "the server does not speak HTTP/2");
        let arrivals = Arrivals::new(socket, session)?;
        let mut this = Self { arrivals, plain: Vec::new(), watchers: HashMap::new() };
        let deadline = Instant::now() + PATIENCE;
        while this.watchers.len() < count {
            ensure!(Instant::now() < deadline, "{} of {count} watches are answered", this.watchers.len());
            std::thread::sleep(LOOK);
            this.read()?;
        }
        Ok(this)
    }

    fn is_served(&self, name: &str) -> bool {
        let names = |event: &[u8]| event.windows(name.len()).any(|part| part == name.as_bytes());
        self.watchers.values().all(|event| event.ends_with(b"}\n") && names(event))
    }

    /// Takes what the socket holds, and apart.
    fn read(&mut self) -> Result<()> {
        self.arrivals.take(&mut vec![0; ROOM])?;
        self.arrivals.unseal(&mut self.plain)?;
        let mut taken = 0;
        let mut answers = Vec::new();
        while let Some(head) = self.plain.get(taken..taken + 9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & (u32::MAX >> 1);
            let Some(payload) = self.plain.get(taken + 9..taken + 9 + length) else { break };
            match kind {
                DATA => {
                    let event = self.watchers.get_mut(&stream).context("an event before the answer")?;
                    event.extend_from_slice(payload);
                }
                HEADERS => {
                    ensure!(payload.first() == Some(&OK), "a watch was refused");
                    self.watchers.insert(stream, Vec::with_capacity(4096));
                }
                SETTINGS if flags & ACK == 0 => frame(&mut answers, SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => frame(&mut answers, PING, ACK, 0, payload),
                GO_AWAY => bail!("the server goes away: {}", String::from_utf8_lossy(payload)),
                _ => {}
            }
            taken += 9 + length;
        }
        self.plain.drain(..taken);
        self.arrivals.send(&answers)
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The request's head in HPACK: names from the static table, values as they are.
fn request(access: &Access, path: &str) -> Vec<u8> {
    let mut head = vec![0x82, 0x87];
    let mut literal = |name: &[u8], value: &str| {
        head.extend_from_slice(name);
        let mut length = value.len();
        if length < 0x7f {
            head.push(length as u8);
        } else {
            head.push(0x7f);
            length -= 0x7f;
            while length >= 0x80 {
                head.push((length % 0x80) as u8 | 0x80);
                length /= 0x80;
            }
            head.push(length as u8);
        }
        head.extend_from_slice(value.as_bytes());
    };
    literal(&[1], &access.address);
    literal(&[4], path);
    literal(&[0x0f, 4], "application/json");
    if let Some(token) = &access.token {
        literal(&[0x0f, 8], &format!("Bearer {token}"));
    }
    head
}
