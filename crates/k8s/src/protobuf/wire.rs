//! The protobuf wire format: tags, varints, lengths.

use super::ProtobufError;

/// A field's value before its type is known.
#[derive(Debug, Clone, Copy)]
pub enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

pub struct Reader<'a> {
    rest: &'a [u8],
}

const TRUNCATED: ProtobufError = ProtobufError::Malformed("unexpected EOF");

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next field's number and value; `None` at the end.
    pub fn next_field(&mut self) -> Result<Option<(u32, Wire<'a>)>, ProtobufError> {
        let Some(tag) = self.next_varint()? else { return Ok(None) };
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Malformed("illegal tag"))?;
        if number == 0 {
            return Err(ProtobufError::Malformed("illegal tag 0"));
        }
        let value = match tag & 7 {
            0 => Wire::Varint(self.next_varint()?.ok_or(TRUNCATED)?),
            1 => Wire::Fixed64(u64::from_le_bytes(*self.take(8)?.first_chunk().ok_or(TRUNCATED)?)),
            2 => {
                let length = self.next_varint()?.ok_or(TRUNCATED)?;
                let length = usize::try_from(length).map_err(|_| TRUNCATED)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(*self.take(4)?.first_chunk().ok_or(TRUNCATED)?)),
            _ => return Err(ProtobufError::Malformed("illegal wireType")),
        };
        Ok(Some((number, value)))
    }

    pub fn next_varint(&mut self) -> Result<Option<u64>, ProtobufError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let mut value = 0u64;
        for (i, byte) in self.rest.iter().enumerate() {
            if i == 10 {
                return Err(ProtobufError::Malformed("integer overflow"));
            }
            value |= u64::from(byte & 0x7f) << (7 * i as u32);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[i + 1..];
                return Ok(Some(value));
            }
        }
        Err(TRUNCATED)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtobufError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Wire<'a> {
    pub fn bytes(self) -> Result<&'a [u8], ProtobufError> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::Malformed("wrong wireType: bytes expected")),
        }
    }

    pub fn varint(self) -> Result<u64, ProtobufError> {
        match self {
            Wire::Varint(value) => Ok(value),
            _ => Err(ProtobufError::Malformed("wrong wireType: integer expected")),
        }
    }

    /// Text that is not UTF-8 is mended rather than refused, as Go does when it writes JSON.
    pub fn text(self) -> Result<String, ProtobufError> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }
}
