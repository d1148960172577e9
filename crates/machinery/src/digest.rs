//! Content digests, as OCI writes them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const ALGORITHM: &str = "sha256";
const HEX_DIGITS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a digest; a digest is \"sha256:\" and 64 lower case hexadecimal digits")]
pub struct DigestError(String);

/// `sha256:` and 64 lower case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    pub fn new(text: impl Into<String>) -> Result<Self, DigestError> {
        let text = text.into();
        let digits = text.strip_prefix(ALGORITHM).and_then(|rest| rest.strip_prefix(':'));
        let hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        match digits {
            Some(digits) if digits.len() == HEX_DIGITS && digits.bytes().all(hex) => Ok(Self(text)),
            _ => Err(DigestError(text.chars().take(80).collect())),
        }
    }

    /// With the algorithm in front.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The digits alone, which can name a file.
    pub fn hex(&self) -> &str {
        &self.0[ALGORITHM.len() + 1..]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        Self::new(text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_64_hexadecimal_digits_are_a_digest() {
        let digits = "0123456789abcdef".repeat(4);
        let digest = Digest::new(format!("sha256:{digits}")).expect("a digest");
        assert_eq!(digest.hex(), digits);
        for wrong in [
            String::new(),
            "sha256:".to_owned(),
            digits.clone(),
            format!("sha256:{}", digits.to_uppercase()),
            format!("sha512:{digits}"),
            format!("sha256:{digits}0"),
            "sha256:../../../../etc".to_owned(),
            format!("sha256:{}/", &digits[1..]),
        ] {
            assert!(Digest::new(wrong.clone()).is_err(), "{wrong:?}");
            assert!(serde_json::from_value::<Digest>(wrong.into()).is_err());
        }
    }
}
