//! Real parts for tests and benchmarks: upstream Kubernetes, Tombolo processes, kubectl.
//!
//! Every process started here ends when its guard is dropped, and listens on loopback only.

mod containerd;
mod fixture;
mod host;
mod image;
mod kubectl;
mod kubelet;
mod nat;
mod pki;
mod process;
mod tombolo;
mod traces;
mod upstream;

pub use containerd::Containerd;
pub use fixture::{Fixture, cargo_binary, require};
pub use host::{Host, Lan, Member, tombolo};
pub use image::{Image, busybox_archive};
pub use kubectl::Kubectl;
pub use kubelet::{RealNode, real_node_possible};
pub use nat::Nat;
pub use pki::{Pair, Pki};
pub use process::{Process, free_port, wait_for};
pub use tombolo::Tombolo;
pub use traces::{control_groups, traces, wipe};
pub use upstream::{Release, Upstream, UpstreamOptions, control_loops};
