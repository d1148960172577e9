//! Who is asking, and what they may do.

mod access;
pub mod identity;
pub mod jwt;
pub mod node;
pub mod outdated;
pub mod rbac;
pub mod tokens;
pub mod trace;
pub mod x509;

pub use access::Access;
pub use identity::Identity;
