//! The Kubernetes API over a [`tombolo_store::Store`].
//!
//! # Data model
//!
//! ```text
//!   request ──> who (auth) ──> may they (auth) ──> which row (registry) ──> one set of handlers ──> store
//!                                                     ^
//!                           tables (k8s crate) ───────┴──── CustomResourceDefinitions (crd)
//! ```
//!
//! A kind is a row, [`registry::resource::Resource`]; handlers know rows, not kinds. Where a kind differs, `kinds` has
//! a hook. Objects are kept as the JSON that clients see, less the opening that [`record`] writes.
//!
//! # Invariants
//!
//! 1. A resource version is the store's revision of the write; the same object at the same version is the same bytes.
//! 2. A client that was told of its write sees it in effect in its next request (access rules and definitions too).
//! 3. No watcher can hold back a writer; one that falls behind is told to list again.
//! 4. Every error leaves as a `Status` made in one place, `http::status`.

mod admission;
mod aside;
mod auth;
mod bootstrap;
mod config;
mod crd;
mod discovery;
mod health;
mod http;
mod kinds;
mod kubelet;
mod limits;
mod metrics;
mod mirror;
mod openapi;
mod pods;
mod record;
mod registry;
mod routes;
mod server;
mod subresource;
mod upgrade;
mod upkeep;
mod usage;

pub use auth::Identity;
pub use bootstrap::keys::{CLIENT_LIFE, KeyError, PemPair, is_due};
pub use config::{Cidr, Config, Limits};
pub use http::body::{Body, BoxError};
pub use http::listener::{ListenError, Listening};
pub use http::serving::Serving;
pub use pods::{ConnectError, NodeStreams, PodConnector, PodStream, Upstream};
pub use server::{Server, StartError};
pub use upgrade::{Io, UpgradeHandler};
