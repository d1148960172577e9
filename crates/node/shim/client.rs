//! A connection from the node: request lines in, answer lines out; or, after `attach`, frames.
//!
//! A frame is one byte of stream number, four bytes of length (big endian), then the data.
//! Towards the node: 1 and 2 are output. From the node: 0 is input, an empty one ends it.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// A client that reads slower than this is cut off: a container never waits for a viewer.
const OUT_BACKLOG: usize = 4 * 1024 * 1024;

#[derive(PartialEq)]
pub enum Mode {
    Requests,
    Events,
    Attached { container: String },
}

pub struct Client {
    pub number: u64,
    pub socket: UnixStream,
    pub mode: Mode,
    pub input: Vec<u8>,
    pub output: Vec<u8>,
    pub closed: bool,
    /// Close when everything has been sent.
    pub ending: bool,
}

impl Client {
    pub fn new(number: u64, socket: UnixStream) -> Client {
        let _ = socket.set_nonblocking(true);
        let mode = Mode::Requests;
        Client { number, socket, mode, input: Vec::new(), output: Vec::new(), closed: false, ending: false }
    }

    pub fn read(&mut self) {
        let mut buffer = [0u8; 16 * 1024];
        match self.socket.read(&mut buffer) {
            Ok(0) => self.closed = true,
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.closed = true,
        }
    }

    pub fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return self.closed = true,
            }
        }
        self.closed |= self.output.len() > OUT_BACKLOG || (self.ending && self.output.is_empty());
    }

    pub fn answer(&mut self, line: &str) {
        self.output.extend_from_slice(line.as_bytes());
        self.output.push(b'\n');
        self.flush();
    }

    pub fn frame(&mut self, stream: u8, data: &[u8]) {
        self.output.push(stream);
        self.output.extend_from_slice(&(data.len() as u32).to_be_bytes());
        self.output.extend_from_slice(data);
        self.flush();
    }

    /// The next whole request line, if one has arrived.
    pub fn request(&mut self) -> Option<String> {
        let end = self.input.iter().position(|b| *b == b'\n')?;
        let line: Vec<u8> = self.input.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    /// The next whole frame of input.
    pub fn next_frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let head: [u8; 5] = self.input.get(..5)?.try_into().ok()?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let data = self.input.get(5..5 + length)?.to_vec();
        self.input.drain(..5 + length);
        Some((head[0], data))
    }
}
