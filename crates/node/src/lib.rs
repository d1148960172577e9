//! The node: runs the pods of one machine as real containers.
//!
//! ```text
//!   API ──watch──> node ──one task per pod──> worker ──> plan (pure) ──> runtime ──> shim ──> containers
//!    ^                                          │                                      │
//!    └───────────────── status ─────────────────┴──────────── what is <────────────────┘
//! ```
//!
//! - Desired state comes from the API and is kept on disk; truth comes from the runtime, whose truth is on disk too.
//! - A worker looks, decides in a pure function, acts and reports; every step may be repeated.
//! - Containers belong to their pod's shim. The node may be killed at any moment: the next one adopts what runs.
//! - Nothing waits for the API: without it, what was assigned last is kept, probed and restarted.
//!
//! A program that starts a [`Node`] calls [`reexec::maybe_run`] as the first thing in `main`.

mod addresses;
mod config;
mod context;
pub mod cri;
mod destroy;
mod disk;
pub mod embedded;
mod events;
mod fence;
pub mod gateway;
mod hook;
mod housekeeping;
mod identity;
pub mod image;
pub mod join;
mod leases;
mod lock;
mod machine;
mod node;
mod objects;
mod peers;
mod pod;
mod pressure;
mod probe;
pub mod reexec;
mod register;
mod report;
mod resolver;
pub mod runtime;
mod server;
mod services;
mod start;
mod stop;
mod storage;
mod sys;
mod tokens;
mod volumes;

pub use config::{
    Listen, Network, NodeConfig, NodeError, PortCertificate, RuntimeChoice, Upkeep, check_privileges,
};
pub use node::Node;
pub use server::{StreamServer, TlsServer};
