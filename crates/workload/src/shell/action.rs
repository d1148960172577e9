//! What a plan asks for. Plain data, so that plans can be tested without a server.

use super::Resource;
use k8s_openapi::api::core::v1::ObjectReference;
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// One step of a plan. Steps run in order; neighbouring steps of the same verb run together.
/// The first failure ends the plan, and the key is planned again.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// An object that exists already counts as created.
    Create {
        resource: Resource,
        namespace: String,
        body: Json,
        announce: Option<Box<Announce>>,
    },
    Patch {
        resource: Resource,
        namespace: String,
        name: String,
        /// Empty, or `status`, `finalize`, …
        subresource: &'static str,
        kind: PatchKind,
        body: Json,
    },
    Replace {
        resource: Resource,
        namespace: String,
        name: String,
        subresource: &'static str,
        body: Json,
    },
    /// An object that is gone already counts as deleted.
    Delete {
        resource: Resource,
        namespace: String,
        name: String,
        uid: Option<String>,
        grace_seconds: Option<i64>,
        propagation: Option<&'static str>,
    },
    Tell(Note),
    /// Plan this key again after so long, whatever happens.
    After(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    Merge,
    Strategic,
    Json,
}

impl PatchKind {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Json => "application/json-patch+json",
        }
    }
}

/// A body, serialized once.
#[derive(Clone, PartialEq)]
pub struct Json(pub Vec<u8>);

impl Json {
    pub fn of(value: &impl Serialize) -> Self {
        Self(serde_json::to_vec(value).expect("Kubernetes objects have string keys only"))
    }

    pub fn read<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.0)
    }
}

impl std::fmt::Debug for Json {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    Normal,
    Warning,
}

/// An event for the user, about one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    pub about: ObjectReference,
    pub severity: Severity,
    pub reason: &'static str,
    pub message: String,
    /// Who speaks, e.g. `deployment-controller`.
    pub component: &'static str,
}

/// Tells about a pod that was created (its name is known only then), or why it could not be.
#[derive(Clone, Debug, PartialEq)]
pub struct Announce {
    pub about: ObjectReference,
    pub component: &'static str,
}

impl Action {
    pub fn is_status(&self) -> bool {
        matches!(
            self,
            Self::Patch { subresource: "status", .. } | Self::Replace { subresource: "status", .. }
        )
    }

    /// Whether `next` may run at the same time as `self`.
    pub fn joins(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Create { .. }, Self::Create { .. }) | (Self::Delete { .. }, Self::Delete { .. }) => true,
            (Self::Patch { name: a, .. }, Self::Patch { name: b, .. }) => {
                a != b && self.is_status() == next.is_status()
            }
            _ => false,
        }
    }
}
