//! Names of the site, answered on the node itself: a lookup never leaves the box unless it is about the world.

mod server;
mod zone;

pub use server::{DnsError, DnsServer};
pub use zone::Zone;
