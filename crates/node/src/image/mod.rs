//! Images on disk: unpacked layers named by the digest of their content, and a table of what is called what.
//!
//! ```text
//! images/layers/<digest>/      one unpacked layer (overlayfs whiteouts inside)
//! images/images.json           reference -> image, image -> layers and configuration
//! ```
//!
//! Invariants: a layer folder under its final name is complete and was checked against its digest; the table
//! names only layers that exist; both appear by rename, so a crash leaves nothing half done.

mod http;
mod import;
mod layer;
mod pull;
mod reference;
mod store;

pub use http::HttpError;
pub use import::ImportError;
pub use pull::{PullError, Registries};
pub use reference::{Reference, ReferenceError};
pub use store::{Image, ImageConfig, Store, StoreError};
