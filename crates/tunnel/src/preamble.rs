//! The first bytes on a TCP carrier: which half of which session this is.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Class, Io, TunnelError};

/// Drawn by the dialer; ties the two halves together.
pub type SessionId = [u8; 16];

const MAGIC: [u8; 4] = *b"TBL1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    pub class: Class,
    pub session: SessionId,
}

impl Preamble {
    pub async fn write(&self, io: &mut impl Io) -> Result<(), TunnelError> {
        let mut bytes = [0u8; 21];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = if self.class == Class::Control { b'c' } else { b'b' };
        bytes[5..].copy_from_slice(&self.session);
        io.write_all(&bytes).await?;
        io.flush().await?;
        Ok(())
    }

    pub async fn read(io: &mut impl Io) -> Result<Self, TunnelError> {
        let mut bytes = [0u8; 21];
        io.read_exact(&mut bytes).await?;
        if bytes[..4] != MAGIC {
            return Err(TunnelError::Protocol("the tunnel's first bytes are not TBL1".into()));
        }
        let class = match bytes[4] {
            b'c' => Class::Control,
            b'b' => Class::Bulk,
            other => return Err(TunnelError::Protocol(format!("unknown class {other}"))),
        };
        let mut session = [0u8; 16];
        session.copy_from_slice(&bytes[5..]);
        Ok(Self { class, session })
    }
}

/// The acceptor's answer to a preamble: welcome, or why not.
pub async fn answer(io: &mut impl Io, verdict: Result<(), &str>) -> Result<(), TunnelError> {
    let why = verdict.err().unwrap_or_default().as_bytes();
    let why = &why[..why.len().min(usize::from(u16::MAX))];
    io.write_u16(why.len() as u16).await?;
    io.write_all(why).await?;
    io.flush().await?;
    Ok(())
}

/// The dialer's side: the reason of a refusal, if it is one.
pub async fn verdict(io: &mut impl Io) -> Result<Option<String>, TunnelError> {
    let length = io.read_u16().await?;
    let mut why = vec![0u8; usize::from(length)];
    io.read_exact(&mut why).await?;
    Ok((length > 0).then(|| String::from_utf8_lossy(&why).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_preamble_is_read_as_it_was_written_and_noise_is_refused() {
        let (mut a, mut b) = tokio::io::duplex(64);
        let preamble = Preamble { class: Class::Bulk, session: [7; 16] };
        preamble.write(&mut a).await.expect("room");
        assert_eq!(Preamble::read(&mut b).await.expect("whole"), preamble);
        a.write_all(&[b'x'; 21]).await.expect("room");
        assert!(matches!(Preamble::read(&mut b).await, Err(TunnelError::Protocol(_))));
    }
}
