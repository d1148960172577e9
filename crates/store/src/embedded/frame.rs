//! The bytes of a segment: a header, then frames. Pure; no files here.
//!
//! ```text
//! segment:  magic 8 | format 4 | id 8 | reserved 8 | crc 4          then frames
//! frame:    magic 4 | length 4 | synced 8 | reserved 8 | crc 4      then `length` bytes of entries
//! entry:    kind 1 | key length 2 | value length 4 | created 8 | revision 8 | key | value
//! ```
//!
//! Integers are little-endian; a crc covers everything of its header or frame besides itself. A frame is what one
//! sync made durable: it counts as a whole or not at all. `reserved` is the revision up to which this and later
//! writes may number themselves. `synced` is the offset up to which the segment was known to be on disk when the
//! frame was written: it tells a torn tail (nothing after it was acknowledged) from damage.

use bytes::Bytes;

use crate::Key;

pub(crate) const FORMAT: u32 = 1;
pub(crate) const SEGMENT_HEADER: usize = 32;
pub(crate) const FRAME_HEADER: usize = 28;
pub(crate) const ENTRY_HEADER: usize = 23;
pub(crate) const MAX_KEY: usize = u16::MAX as usize;
pub(crate) const MAX_VALUE: usize = 16 << 20;

const SEGMENT_MAGIC: &[u8; 8] = b"TOMBOLO\n";
const FRAME_MAGIC: &[u8; 4] = b"\xf7TBF";
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) id: u64,
    pub(crate) reserved: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// Too short, not ours, or its crc is wrong.
    Damaged,
    /// Written by a later version of this program.
    Newer(u32),
}

impl SegmentHeader {
    pub(crate) fn encode(self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[..8].copy_from_slice(SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.id.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.reserved.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let mut reader = Reader(bytes);
        let magic = reader.take(8).ok_or(BadHeader::Damaged)?;
        let format = reader.u32().ok_or(BadHeader::Damaged)?;
        if magic != SEGMENT_MAGIC {
            return Err(BadHeader::Damaged);
        }
        if format > FORMAT {
            return Err(BadHeader::Newer(format));
        }
        let (id, reserved, crc) = match (reader.u64(), reader.u64(), reader.u32()) {
            (Some(id), Some(reserved), Some(crc)) => (id, reserved, crc),
            _ => return Err(BadHeader::Damaged),
        };
        if crc32fast::hash(&bytes[..28]) != crc {
            return Err(BadHeader::Damaged);
        }
        Ok(SegmentHeader { id, reserved })
    }
}

/// One state of one key, as it goes to disk. No value: deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) value: Option<Bytes>,
    pub(crate) created: u64,
    pub(crate) revision: u64,
}

impl Entry {
    /// The bytes that the entry takes in a segment.
    pub(crate) fn size(&self) -> usize {
        ENTRY_HEADER + self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// Writes a frame into `buffer`, in place of what was there.
pub(crate) fn encode<'a>(
    buffer: &mut Vec<u8>,
    entries: impl IntoIterator<Item = &'a Entry>,
    synced: u64,
    reserved: u64,
) {
    buffer.clear();
    buffer.resize(FRAME_HEADER, 0);
    for entry in entries {
        let value = entry.value.as_deref().unwrap_or_default();
        buffer.push(if entry.value.is_some() { PUT } else { DELETE });
        buffer.extend_from_slice(&(entry.key.len() as u16).to_le_bytes());
        buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
        buffer.extend_from_slice(&entry.created.to_le_bytes());
        buffer.extend_from_slice(&entry.revision.to_le_bytes());
        buffer.extend_from_slice(entry.key.as_bytes());
        buffer.extend_from_slice(value);
    }
    let length = (buffer.len() - FRAME_HEADER) as u32;
    buffer[..4].copy_from_slice(FRAME_MAGIC);
    buffer[4..8].copy_from_slice(&length.to_le_bytes());
    buffer[8..16].copy_from_slice(&synced.to_le_bytes());
    buffer[16..24].copy_from_slice(&reserved.to_le_bytes());
    let crc = frame_crc(&buffer[..24], &buffer[FRAME_HEADER..]);
    buffer[24..28].copy_from_slice(&crc.to_le_bytes());
}

/// A frame that was read back whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) synced: u64,
    pub(crate) reserved: u64,
    pub(crate) entries: &'a [u8],
    /// The size of the whole frame.
    pub(crate) size: usize,
}

/// Reads the frame at the start of `bytes`; the error says what is wrong with it.
pub(crate) fn decode(bytes: &[u8]) -> Result<Frame<'_>, &'static str> {
    let mut reader = Reader(bytes);
    let header = reader.take(24).ok_or("a frame header is cut short")?;
    let crc = reader.u32().ok_or("a frame header is cut short")?;
    let mut fields = Reader(header);
    if fields.take(4) != Some(FRAME_MAGIC) {
        return Err("there is no frame where one should begin");
    }
    let (Some(length), Some(synced), Some(reserved)) = (fields.u32(), fields.u64(), fields.u64()) else {
        return Err("a frame header is cut short");
    };
    let entries = reader.take(length as usize).ok_or("a frame is cut short")?;
    if frame_crc(header, entries) != crc {
        return Err("the checksum of a frame does not match");
    }
    Ok(Frame { synced, reserved, entries, size: FRAME_HEADER + entries.len() })
}

/// The entries of a frame; an error means that the frame was written wrongly, for its checksum was right.
pub(crate) fn entries(bytes: &[u8]) -> impl Iterator<Item = Result<Entry, &'static str>> {
    let mut reader = Reader(bytes);
    std::iter::from_fn(move || {
        if reader.0.is_empty() {
            return None;
        }
        let entry = read_entry(&mut reader);
        if entry.is_none() {
            reader.0 = &[];
        }
        Some(entry.ok_or("an entry of a frame makes no sense"))
    })
}

/// Looks for a whole frame after `from` that was written when the bytes at `from` were already on disk.
pub(crate) fn proof_of_sync(bytes: &[u8], from: usize) -> bool {
    let first = FRAME_MAGIC[0];
    (from + 1..bytes.len().saturating_sub(FRAME_HEADER - 1))
        .any(|at| bytes[at] == first && decode(&bytes[at..]).is_ok_and(|frame| frame.synced > from as u64))
}

fn read_entry(reader: &mut Reader<'_>) -> Option<Entry> {
    let kind = reader.take(1)?[0];
    let key_length = reader.u16()?;
    let value_length = reader.u32()?;
    let created = reader.u64()?;
    let revision = reader.u64()?;
    let key = std::str::from_utf8(reader.take(key_length as usize)?).ok()?.into();
    let value = reader.take(value_length as usize)?;
    let value = match kind {
        PUT => Some(Bytes::copy_from_slice(value)),
        DELETE if value.is_empty() => None,
        _ => return None,
    };
    Some(Entry { key, value, created, revision })
}

fn frame_crc(header: &[u8], entries: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(header);
    crc.update(entries);
    crc.finalize()
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = Entry> {
        let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200));
        ("[a-z/]{0,40}", value, any::<u64>(), any::<u64>()).prop_map(|(key, value, created, revision)| {
            Entry { key: key.as_str().into(), value: value.map(Bytes::from), created, revision }
        })
    }

    proptest! {
        #[test]
        fn a_frame_reads_back_as_it_was_written(
            list in proptest::collection::vec(entry(), 0..20),
            synced: u64,
            reserved: u64,
        ) {
            let mut bytes = Vec::new();
            encode(&mut bytes, &list, synced, reserved);
            let frame = decode(&bytes).unwrap();
            prop_assert_eq!((frame.synced, frame.reserved, frame.size), (synced, reserved, bytes.len()));
            let sizes: usize = list.iter().map(Entry::size).sum();
            prop_assert_eq!(sizes + FRAME_HEADER, bytes.len());
            let read: Result<Vec<_>, _> = entries(frame.entries).collect();
            prop_assert_eq!(read.unwrap(), list);
        }

        #[test]
        fn a_frame_with_any_byte_changed_or_cut_is_refused(
            list in proptest::collection::vec(entry(), 1..5),
            place: prop::sample::Index,
            flip in 1..=255u8,
        ) {
            let mut bytes = Vec::new();
            encode(&mut bytes, &list, 1, 2);
            let at = place.index(bytes.len());
            prop_assert!(decode(&bytes[..at]).is_err());
            bytes[at] ^= flip;
            prop_assert!(decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = decode(&bytes);
            let _ = SegmentHeader::decode(&bytes);
            let _ = entries(&bytes).count();
            let _ = proof_of_sync(&bytes, 0);
        }
    }

    #[test]
    fn a_header_from_a_later_format_is_told_from_a_damaged_one() {
        let mut bytes = SegmentHeader { id: 3, reserved: 9 }.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(SegmentHeader { id: 3, reserved: 9 }));
        bytes[8] = 7;
        assert_eq!(SegmentHeader::decode(&bytes), Err(BadHeader::Newer(7)));
        bytes[8] = 1;
        bytes[13] ^= 1;
        assert_eq!(SegmentHeader::decode(&bytes), Err(BadHeader::Damaged));
    }
}
