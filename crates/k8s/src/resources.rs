//! What the API server serves: one row per built-in resource.
//!
//! A row holds what discovery tells clients and what the registry does on writes. Rows are in upstream's order of
//! groups, which decides which group a short or ambiguous name means.

use crate::schema::{TYPES, Type};

/// A built-in resource of one group-version.
#[derive(Debug)]
pub struct Resource {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub list_kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub namespaced: bool,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub verbs: &'static [&'static str],
    pub subresources: &'static [Subresource],
    /// Upstream's storage version hash; empty where it has none.
    pub storage_hash: &'static str,
    /// Index into [`TYPES`].
    pub type_index: u16,
    /// `metadata.generation` starts at 1 and counts changes of what the user asks for.
    pub generation: bool,
    /// A PUT to a name that does not exist creates it.
    pub create_on_update: bool,
    /// A PUT without `resourceVersion` is accepted.
    pub unconditional_update: bool,
    /// What becomes of dependents when the client names no propagation policy.
    pub deletion: Deletion,
    /// Selectable fields beside `metadata.name` and `metadata.namespace`.
    pub fields: &'static [&'static str],
    /// Written lazily: losing the newest writes in a crash is acceptable (Leases, Events).
    pub volatile: bool,
}

/// A subresource and the kind it speaks.
#[derive(Debug)]
pub struct Subresource {
    pub name: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub verbs: &'static [&'static str],
}

/// The default deletion propagation of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    Background,
    Orphan,
    /// The resource takes no part in garbage collection.
    Unsupported,
}

pub use crate::generated::RESOURCES;

/// Looks a resource up as it stands in a URL.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|r| r.plural == plural && r.group == group && r.version == version)
}

/// Looks a resource up by its kind. Kinds that exist only as subresources (`Scale`, `Eviction`) have none.
pub fn by_kind(group: &str, version: &str, kind: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|r| r.kind == kind && r.group == group && r.version == version)
}

impl Resource {
    pub fn type_(&self) -> &'static Type {
        &TYPES[self.type_index as usize]
    }

    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Status is written through `/status` only.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// Whether a field selector may name this field.
    pub fn selectable(&self, field: &str) -> bool {
        field == "metadata.name"
            || (field == "metadata.namespace" && self.namespaced)
            || self.fields.contains(&field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stable_group_versions_are_there() {
        let mut gvs: Vec<_> = RESOURCES.iter().map(Resource::api_version).collect();
        gvs.dedup();
        assert_eq!(gvs.len(), 22, "{gvs:?}");
        assert_eq!(RESOURCES.len(), 68);
        assert_eq!(RESOURCES.iter().map(|r| r.subresources.len()).sum::<usize>(), 45);
    }

    #[test]
    fn rows_join_discovery_and_registry() {
        let pods = find("", "v1", "pods").unwrap();
        assert_eq!(pods.type_().name, "io.k8s.api.core.v1.Pod");
        assert!(pods.generation && pods.has_status() && pods.namespaced && pods.selectable("spec.nodeName"));
        assert_eq!(pods.subresource("eviction").unwrap().group, "policy");
        let lease = by_kind("coordination.k8s.io", "v1", "Lease").unwrap();
        assert!(lease.volatile && lease.create_on_update && !lease.unconditional_update);
        assert_eq!(find("batch", "v1", "jobs").unwrap().deletion, Deletion::Orphan);
    }
}
