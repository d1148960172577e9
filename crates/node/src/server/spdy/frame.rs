//! SPDY/3.1 frames: just the ones Kubernetes uses.
//!
//! Header blocks are one zlib stream per direction, primed with the dictionary of the SPDY draft. Reading needs it;
//! writing may leave it out, which every reader accepts.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use thiserror::Error;

/// The dictionary of SPDY/3, as in the draft (and every implementation).
const DICTIONARY: &[u8] = include_bytes!("dictionary.bin");

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;
/// Larger frames are refused: clients send at most 32 KiB at a time.
const LARGEST: usize = 1 << 20;
const LARGEST_HEADERS: usize = 64 * 1024;

#[derive(Debug, Error)]
pub(crate) enum FrameError {
    #[error("a frame of {0} bytes is too large")]
    TooLarge(usize),
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
    #[error("header block: {0}")]
    Headers(#[from] flate2::DecompressError),
    #[error("SPDY version {0} is not supported")]
    Version(u16),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A new stream with its headers (names in lower case).
    Open {
        stream: u32,
        headers: Vec<(String, String)>,
        fin: bool,
    },
    /// The stream is accepted.
    Reply {
        stream: u32,
    },
    Data {
        stream: u32,
        data: Bytes,
        fin: bool,
    },
    Reset {
        stream: u32,
        status: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
    /// A kind that needs no answer.
    Other,
}

pub(crate) struct Decoder {
    inflate: Decompress,
    started: bool,
    /// Bytes of the zlib head still to be skipped.
    head: usize,
}

impl Decoder {
    pub fn new() -> Decoder {
        Decoder { inflate: Decompress::new(false), started: false, head: 6 }
    }

    /// The next frame, or nothing until more bytes arrive.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        if buffer.len() < 8 {
            return Ok(None);
        }
        let length = usize::from(buffer[5]) << 16 | usize::from(buffer[6]) << 8 | usize::from(buffer[7]);
        if length > LARGEST {
            return Err(FrameError::TooLarge(length));
        }
        if buffer.len() < 8 + length {
            return Ok(None);
        }
        let mut head = buffer.split_to(8);
        let mut body = buffer.split_to(length).freeze();
        let first = head.get_u32();
        let fin = head[0] & FIN != 0;
        if first & 0x8000_0000 == 0 {
            return Ok(Some(Frame::Data { stream: first, data: body, fin }));
        }
        let (version, kind) = ((first >> 16) as u16 & 0x7fff, first as u16);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let need = |count: usize, body: &Bytes| {
            if body.len() < count { Err(FrameError::Malformed("too short")) } else { Ok(()) }
        };
        Ok(Some(match kind {
            SYN_STREAM => {
                need(10, &body)?;
                let stream = body.get_u32() & 0x7fff_ffff;
                body.advance(6);
                Frame::Open { stream, headers: self.headers(&body)?, fin }
            }
            SYN_REPLY => {
                need(4, &body)?;
                let stream = body.get_u32() & 0x7fff_ffff;
                // Must pass through the decompressor to keep it in step.
                self.headers(&body)?;
                Frame::Reply { stream }
            }
            RST_STREAM => {
                need(8, &body)?;
                Frame::Reset { stream: body.get_u32() & 0x7fff_ffff, status: body.get_u32() }
            }
            PING => {
                need(4, &body)?;
                Frame::Ping { id: body.get_u32() }
            }
            GOAWAY => Frame::GoAway,
            8 => {
                need(4, &body)?;
                body.advance(4);
                self.headers(&body)?;
                Frame::Other
            }
            _ => Frame::Other,
        }))
    }

    fn headers(&mut self, block: &[u8]) -> Result<Vec<(String, String)>, FrameError> {
        if !self.started {
            // A stored block with the dictionary fills the window, as a preset dictionary would.
            self.started = true;
            let size = DICTIONARY.len() as u16;
            let mut stored = vec![0];
            stored.extend_from_slice(&size.to_le_bytes());
            stored.extend_from_slice(&(!size).to_le_bytes());
            stored.extend_from_slice(DICTIONARY);
            let mut scratch = Vec::with_capacity(DICTIONARY.len() + 64);
            self.inflate.decompress_vec(&stored, &mut scratch, FlushDecompress::Sync)?;
        }
        let skip = self.head.min(block.len());
        self.head -= skip;
        let mut input = &block[skip..];
        let mut text = Vec::with_capacity(1024);
        while !input.is_empty() {
            let before = self.inflate.total_in();
            if text.len() >= LARGEST_HEADERS {
                return Err(FrameError::Malformed("headers too large"));
            }
            text.reserve(4096);
            self.inflate.decompress_vec(input, &mut text, FlushDecompress::Sync)?;
            let used = (self.inflate.total_in() - before) as usize;
            input = &input[used..];
            if used == 0 && text.len() < text.capacity() {
                break;
            }
        }
        parse_headers(&text)
    }
}

fn parse_headers(mut text: &[u8]) -> Result<Vec<(String, String)>, FrameError> {
    fn number(text: &mut &[u8]) -> Result<usize, FrameError> {
        if text.len() < 4 {
            return Err(FrameError::Malformed("headers"));
        }
        Ok(text.get_u32() as usize)
    }
    fn word(text: &mut &[u8]) -> Result<String, FrameError> {
        let length = number(text)?;
        if text.len() < length {
            return Err(FrameError::Malformed("headers"));
        }
        let (word, rest) = text.split_at(length);
        *text = rest;
        Ok(String::from_utf8_lossy(word).into_owned())
    }
    let count = number(&mut text)?;
    (0..count.min(256)).map(|_| Ok((word(&mut text)?.to_lowercase(), word(&mut text)?))).collect()
}

pub(crate) struct Encoder {
    deflate: Compress,
}

impl Encoder {
    pub fn new() -> Encoder {
        Encoder { deflate: Compress::new(Compression::fast(), true) }
    }

    pub fn encode(&mut self, frame: &Frame, out: &mut BytesMut) {
        match frame {
            Frame::Data { stream, data, fin } => {
                out.put_u32(*stream & 0x7fff_ffff);
                out.put_u32(u32::from(if *fin { FIN } else { 0 }) << 24 | data.len() as u32);
                out.extend_from_slice(data);
            }
            Frame::Open { stream, headers, fin } => {
                let mut body = BytesMut::new();
                body.put_u32(*stream);
                body.put_bytes(0, 6);
                body.extend_from_slice(&self.headers(headers));
                control(out, SYN_STREAM, *fin, &body);
            }
            Frame::Reply { stream } => {
                let mut body = BytesMut::new();
                body.put_u32(*stream);
                body.extend_from_slice(&self.headers(&[]));
                control(out, SYN_REPLY, false, &body);
            }
            Frame::Reset { stream, status } => {
                let mut body = BytesMut::new();
                body.put_u32(*stream);
                body.put_u32(*status);
                control(out, RST_STREAM, false, &body);
            }
            Frame::Ping { id } => control(out, PING, false, &id.to_be_bytes()),
            Frame::GoAway => control(out, GOAWAY, false, &[0; 8]),
            Frame::Other => {}
        }
    }

    fn headers(&mut self, headers: &[(String, String)]) -> Vec<u8> {
        let mut text = BytesMut::new();
        text.put_u32(headers.len() as u32);
        for (name, value) in headers {
            for word in [name, value] {
                text.put_u32(word.len() as u32);
                text.extend_from_slice(word.as_bytes());
            }
        }
        let mut block = Vec::with_capacity(text.len() + 128);
        // Cannot fail: the buffer has room for an incompressible block and its flush.
        let _ = self.deflate.compress_vec(&text, &mut block, FlushCompress::Sync);
        block
    }
}

fn control(out: &mut BytesMut, kind: u16, fin: bool, body: &[u8]) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u32(u32::from(if fin { FIN } else { 0 }) << 24 | body.len() as u32);
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What Go's SPDY library sends: a zlib head that names the dictionary, then a stored block.
    fn primed(headers: &[u8]) -> Vec<u8> {
        let mut block = vec![0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2, 0];
        block.extend_from_slice(&(headers.len() as u16).to_le_bytes());
        block.extend_from_slice(&(!(headers.len() as u16)).to_le_bytes());
        block.extend_from_slice(headers);
        block
    }

    #[test]
    fn a_stream_opened_with_the_dictionary_is_read() {
        let mut text = BytesMut::new();
        text.put_u32(1);
        for word in ["streamtype", "stdout"] {
            text.put_u32(word.len() as u32);
            text.extend_from_slice(word.as_bytes());
        }
        let mut body = BytesMut::new();
        body.put_u32(3);
        body.put_bytes(0, 6);
        body.extend_from_slice(&primed(&text));
        let mut wire = BytesMut::new();
        control(&mut wire, SYN_STREAM, false, &body);
        let frame = Decoder::new().decode(&mut wire).expect("valid").expect("whole");
        let headers = vec![("streamtype".to_owned(), "stdout".to_owned())];
        assert_eq!(frame, Frame::Open { stream: 3, headers, fin: false });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut decoder = Decoder::new();
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = decoder.decode(&mut buffer) {}
        }

        #[test]
        fn data_comes_out_as_it_went_in(stream in 1u32..0x7fff_ffff, data in proptest::collection::vec(any::<u8>(), 0..200), fin: bool) {
            let frame = Frame::Data { stream, data: data.into(), fin };
            let mut wire = BytesMut::new();
            Encoder::new().encode(&frame, &mut wire);
            prop_assert_eq!(Decoder::new().decode(&mut wire).expect("valid"), Some(frame));
        }
    }
}
