//! The one outbound connection from a site to its hub, on which **both** ends open and accept byte streams.
//!
//! ```text
//!   agent                                           hub
//!   open  ── control ──────────────────────────>  accept     the agent's calls to the hub's API
//!   accept <────────────────── control, bulk ──   open       the hub's calls to the site's API, logs, exec
//!   open  ── heartbeat (one, at the start) ────>  accept     pings of a few bytes, measured
//! ```
//!
//! Two carriers: QUIC ([`quic`]) and, where UDP does not pass, TLS over TCP through the hub's API port ([`dial`]), there as
//! two multiplexed connections, one per class.
//!
//! Invariants:
//! - Control, bulk and heartbeats never wait for each other: streams of their own under QUIC (with priorities), TCP
//!   connections of their own otherwise.
//! - Bytes on a stream are not parsed here; what runs on them (HTTP, upgrades) is the ends' business.
//! - A connection that hears nothing for three heartbeats is closed by both ends; by the dialer sooner where the round trip
//!   allows, and much sooner when the other machine says that nobody has the port.
//! - Every queue is bounded: streams that nobody accepts yet wait, and the carrier says how many there can be.

mod asking;
mod backoff;
mod client;
mod congestion;
mod connection;
#[cfg(test)]
mod death_tests;
pub mod dial;
mod forward;
mod heartbeat;
mod held;
mod identity;
mod mux;
mod preamble;
pub mod quic;
mod site_socket;
pub mod tls;
#[cfg(test)]
mod wire_tests;

pub use backoff::{Backoff, random_fraction};
pub use client::{client, client_with};
pub use connection::{Class, Connection, TunnelError};
pub use dial::{DialError, Dialer};
pub use forward::{HttpBody, Reply, forward, full, serve_http};
pub use heartbeat::{DEFAULT_INTERVAL, boot_millis};
pub use identity::{PeerIdentity, identity_of};
pub use preamble::{Preamble, SessionId, answer, verdict};

use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

pub type BoxIo = Box<dyn Io>;
