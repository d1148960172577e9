//! Real parts for tests and benchmarks: upstream Kubernetes, Tombolo processes, kubectl.
//!
//! Every process started here ends when its guard is dropped, and listens on loopback only.

mod fixture;
mod kubectl;
mod process;
mod tombolo;
mod upstream;

pub use fixture::{Fixture, cargo_binary, require};
pub use kubectl::Kubectl;
pub use process::{Process, free_port, wait_for};
pub use tombolo::Tombolo;
pub use upstream::{Upstream, UpstreamOptions, control_loops};
