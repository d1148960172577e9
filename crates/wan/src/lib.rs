//! Several hosts on one machine, and a wide area network between them that can be slow, lossy or cut.
//!
//! A host is a network namespace. The WAN is a relay that forwards IP packets between TUN devices, one per host, so
//! that delay, loss and cuts hit real packets: a relay of sockets could not lose a TCP segment, and the kernels of
//! small machines often lack `netem`.
//!
//! Invariants:
//! - Packets between two hosts stay in order (a link has one delay for all of them).
//! - A link holds a bounded number of packets in flight; past that they are dropped, as a router would.
//! - Everything made here is gone when its guard is dropped.

mod link;
mod namespace;
mod relay;

pub use link::Link;
pub use namespace::{Namespace, NamespaceError, enter};
pub use relay::{Relay, RelayError};
