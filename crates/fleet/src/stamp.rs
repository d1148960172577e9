//! Whether rendering a root for its sites can be left out, because nothing that goes into it has changed.
//!
//! What sites report changes a root's plan a thousand times over, and its Works never. The stamp is a hash of all that
//! decides what the Works say, and of which Works there are; it is kept only when rendering had nothing to do.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::Value;
use tombolo_api::PlacementSpec;

use crate::decide::Decided;
use crate::index::Index;
use crate::kept::Kept;
use crate::object::{Object, text};

/// `None` where more than these decide: hubs below, workloads that may run at most once.
pub fn stamp(
    index: &Index,
    root: &Value,
    needs: &[Object],
    placement: &PlacementSpec,
    decided: &Decided,
    works: &[(String, Arc<Kept>)],
    now: i64,
) -> Option<u64> {
    if placement.failover.at_most_once {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    (&index.hub.id, index.hub.epoch).hash(&mut hasher);
    for (key, value) in root.as_object()? {
        match (key.as_str(), value.as_object()) {
            ("status", _) => {}
            ("metadata", Some(metadata)) => {
                let lasting =
                    |(key, _): &(&String, &Value)| *key != "resourceVersion" && *key != "managedFields";
                for (key, value) in metadata.iter().filter(lasting) {
                    (key, value.to_string()).hash(&mut hasher);
                }
            }
            _ => (key, value.to_string()).hash(&mut hasher),
        }
    }
    for need in needs {
        for field in ["/kind", "/metadata/uid", "/metadata/resourceVersion"] {
            text(need, field).hash(&mut hasher);
        }
    }
    serde_json::to_string(placement).ok()?.hash(&mut hasher);
    for (site, share) in &decided.sites {
        let state = index.sites.get(site)?;
        if !state.site.spec.hubs.is_empty() {
            return None;
        }
        (site, state.shape, index.silent(site, now).is_some()).hash(&mut hasher);
        (share.replicas, &share.parts).hash(&mut hasher);
    }
    for (site, work) in works {
        if work.tombstone.is_some() {
            return None;
        }
        (site, index.silent(site, now).is_some()).hash(&mut hasher);
        (&work.name, &work.uid, work.generation).hash(&mut hasher);
        work.annotations.hash(&mut hasher);
    }
    Some(hasher.finish())
}
