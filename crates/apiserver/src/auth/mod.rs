//! Who is asking, and what they may do.

mod access;
pub mod identity;
pub mod x509;

pub use access::Access;
pub use identity::Identity;
