//! Names that may stand in a path.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Kubernetes' own limit on the length of a name.
const MAX_NAME_BYTES: usize = 253;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a name must not be empty")]
    Empty,
    #[error("a name of {0} bytes is too long; at most {MAX_NAME_BYTES} are allowed")]
    TooLong(usize),
    #[error("{0:?} cannot be a name: it stands for a folder")]
    Dots(String),
    #[error("{0:?} cannot be a name: it holds {1:?}")]
    Character(String, char),
    #[error(
        "{0:?} cannot be a name: it must consist of lower case letters, digits, '-' and '.', and start and end with a letter or digit"
    )]
    Dns(String),
}

/// At most this much of a refused name is repeated in an error.
const SHOWN_BYTES: usize = 64;

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_BYTES).collect()
}

/// One segment of a path or URL. Names of RBAC objects (`system:node:a`) are segments but no [`DnsName`]s.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Segment(String);

/// An RFC 1123 subdomain, as the names of pods, namespaces, sites and most other objects are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DnsName(Segment);

impl Segment {
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        Self::check(&text)?;
        Ok(Self(text))
    }

    /// Why a text cannot be a segment.
    pub fn check(text: &str) -> Result<(), NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > MAX_NAME_BYTES {
            return Err(NameError::TooLong(text.len()));
        }
        if text == "." || text == ".." {
            return Err(NameError::Dots(text.to_owned()));
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:@~+=,".contains(c);
        match text.chars().find(|c| !allowed(*c)) {
            Some(wrong) => Err(NameError::Character(shown(text), wrong)),
            None => Ok(()),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl DnsName {
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        Self::check(&text)?;
        Ok(Self(Segment(text)))
    }

    /// Why a text cannot be such a name.
    pub fn check(text: &str) -> Result<(), NameError> {
        Segment::check(text)?;
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let label = |part: &str| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(|c| inner(*c))
                && bytes.last().is_some_and(|c| inner(*c))
                && bytes.iter().all(|c| inner(*c) || *c == b'-')
        };
        if text.split('.').all(label) { Ok(()) } else { Err(NameError::Dns(shown(text))) }
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Deref for DnsName {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.0
    }
}

impl From<DnsName> for Segment {
    fn from(name: DnsName) -> Self {
        name.0
    }
}

macro_rules! text_type {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }
    };
}

text_type!(Segment);
text_type!(DnsName);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_objects_are_segments() {
        for name in ["web-1", "system:node:a", "kube-root-ca.crt", "a..b", "v1alpha1.tombolo.dev"] {
            assert!(Segment::new(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn what_leads_out_of_a_path_is_no_segment() {
        for name in ["", ".", "..", "a/b", "../etc", "a?b", "a%2fb", "a#b", "a b", "a\\b", "a\n", "ä", "a\0"]
        {
            assert!(Segment::new(name).is_err(), "{name:?}");
        }
        assert_eq!(Segment::new("x".repeat(254)), Err(NameError::TooLong(254)));
    }

    #[test]
    fn a_dns_name_is_narrower() {
        for name in ["web-1", "a.b-c.d", "0"] {
            assert!(DnsName::new(name).is_ok(), "{name}");
        }
        for name in ["Web", "-a", "a-", "a..b", ".a", "a.", "system:node:a", "a_b"] {
            assert!(DnsName::new(name).is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn a_segment_joined_to_a_folder_stays_one_level_below(text in "\\PC{0,40}") {
            if let Ok(segment) = Segment::new(text) {
                let path = std::path::Path::new("/folder").join(segment.as_str());
                prop_assert_eq!(path.components().count(), 3);
                prop_assert_eq!(path.parent(), Some(std::path::Path::new("/folder")));
            }
        }
    }
}
