//! Kubernetes' basic words as types, for text that comes from the other side of a trust border.
//!
//! # Invariants
//! - A [`Segment`] is one segment of a path or URL: it cannot hold a separator, a step upwards, a query or an escape.
//! - A [`DnsName`] is what Kubernetes accepts as the name of most objects; every `DnsName` is a `Segment`.
//! - A [`Digest`] is an algorithm and 64 hexadecimal digits, so it can name a file.
//! - A [`UrlPath`] is made of `Segment`s and constants only.
//! - A [`Folder`] opens, writes and removes beneath itself and nowhere else, whatever links are put into it.
//!
//! A name from a tenant, a site, a hub, an image or a container becomes one of these where it is first read; code behind
//! that point takes the type, never the text.

mod digest;
mod files;
mod name;
mod url;

pub use digest::{Digest, DigestError};
pub use files::{Folder, create_private_dir, write_private};
pub use name::{DnsName, NameError, Segment};
pub use url::UrlPath;
