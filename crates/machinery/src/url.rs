//! Paths of URLs that foreign text cannot lead astray.

use std::fmt::{self, Write as _};

use crate::name::Segment;

/// The path and query of a request, made of constants, [`Segment`]s and escaped values.
///
/// ```
/// # use tombolo_machinery::{DnsName, UrlPath};
/// let (space, pod) = (DnsName::new("default")?, DnsName::new("web-1")?);
/// let path = UrlPath::new("/api/v1/namespaces").push(&space).constant("pods").push(&pod).query("container", "a&b");
/// assert_eq!(path.to_string(), "/api/v1/namespaces/default/pods/web-1?container=a%26b");
/// # Ok::<(), tombolo_machinery::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlPath {
    path: String,
    has_query: bool,
}

impl UrlPath {
    /// A constant beginning, with its slash.
    pub fn new(start: &'static str) -> Self {
        Self { path: start.to_owned(), has_query: false }
    }

    /// One more segment. Segments come before the query.
    #[must_use]
    pub fn push(mut self, segment: &Segment) -> Self {
        self.path.push('/');
        self.path.push_str(segment.as_str());
        self
    }

    /// One more part that the program itself chose, such as `pods` or `status`.
    #[must_use]
    pub fn constant(mut self, part: &'static str) -> Self {
        self.path.push('/');
        self.path.push_str(part);
        self
    }

    /// One more parameter of the query; its value may be anything.
    #[must_use]
    pub fn query(mut self, key: &'static str, value: &str) -> Self {
        self.path.push(if self.has_query { '&' } else { '?' });
        self.has_query = true;
        self.path.push_str(key);
        self.path.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                self.path.push(char::from(byte));
            } else {
                // Writing to a String does not fail.
                let _ = write!(self.path, "%{byte:02X}");
            }
        }
        self
    }

    pub fn as_str(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for UrlPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

impl From<UrlPath> for String {
    fn from(path: UrlPath) -> Self {
        path.path
    }
}
