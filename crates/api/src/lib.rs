//! The resources Tombolo adds to the Kubernetes API, and the names every part agrees on. No IO.
//!
//! | kind | scope | says |
//! |---|---|---|
//! | [`Site`] | cluster | a cluster tied to this hub: where it is, what it offers, when it was last heard |
//! | [`SiteGroup`] | cluster | sites under one name |
//! | [`Placement`] | namespaced | which objects go to which sites, and in how many replicas |
//! | [`Work`] | namespaced, in `site-<name>` | one root object rendered for one site, and the status that came back |
//!
//! Invariants:
//! - `spec` of a [`Work`] is written by the hub only, `status` by the site only.
//! - A site deletes an object only for a [`Work`] with a [`Tombstone`] whose hub identity, epoch and Work uid fit what the
//!   site recorded on that object. Absence never means deletion.

pub mod names;
mod placement;
pub mod quantity;
mod renewal;
mod schema;
mod selector;
mod site;
mod work;

pub use placement::{
    DivideBy, Drift, EnvVar, Failover, ImageOverride, Limits, ObjectSelector, Override, Place, Placement,
    PlacementSpec, PlacementStatus, Replicas, ReplicasMode, Spread, SpreadBy, Toleration, Weight,
};
pub use renewal::RenewalSent;
pub use selector::{LabelRequirement, LabelSelector, SiteSelector};
pub use site::{
    Condition, Location, NodeShape, Offer, Quantities, Site, SiteGroup, SiteGroupSpec, SiteSpec, SiteStatus,
    Taint, Tier,
};
pub use work::{DriftItem, HubRef, LeaseTerms, ObjectRef, PodSummary, Tombstone, Work, WorkSpec, WorkStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The definitions of all our kinds, ready to be installed.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![Site::crd(), SiteGroup::crd(), Placement::crd(), Work::crd()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_schema_a_short_name_and_printer_columns() {
        for crd in crds() {
            let names = &crd.spec.names;
            assert_eq!(crd.spec.group, names::GROUP);
            assert!(names.short_names.is_some(), "{} has no short name", names.kind);
            let version = &crd.spec.versions[0];
            assert!(version.schema.is_some(), "{} has no schema", names.kind);
            assert!(version.additional_printer_columns.is_some(), "{} has no columns", names.kind);
        }
    }

    /// Paths of the fields below `schema` that say nothing about themselves.
    fn silent(path: &str, schema: &serde_json::Value, found: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            let inner = [&field["items"], &field["additionalProperties"]].into_iter().find(|v| v.is_object());
            if field["description"].is_null() && inner.is_none_or(|inner| inner["description"].is_null()) {
                found.push(path.clone());
            }
            silent(&path, inner.unwrap_or(field), found);
        }
    }

    #[test]
    fn every_field_says_what_it_is() {
        let mut found = Vec::new();
        for crd in crds() {
            let schema = serde_json::to_value(&crd.spec.versions[0].schema).expect("a schema is JSON");
            let root = &schema["openAPIV3Schema"]["properties"];
            for part in ["spec", "status"] {
                silent(&format!("{}.{part}", crd.spec.names.kind), &root[part], &mut found);
            }
        }
        assert!(found.is_empty(), "these fields have no words in the reference: {found:#?}");
    }

    #[test]
    fn a_work_keeps_unknown_fields_of_the_objects_it_carries() {
        let crd = serde_json::to_value(Work::crd()).expect("a CRD is JSON");
        let spec =
            &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        assert_eq!(spec["object"]["x-kubernetes-preserve-unknown-fields"], true);
        assert_eq!(spec["with"]["items"]["x-kubernetes-preserve-unknown-fields"], true);
    }

    #[test]
    fn a_distance_from_nowhere_is_refused() {
        let crd = serde_json::to_value(Placement::crd()).expect("a CRD is JSON");
        let schema = kube_cel::compile_schema(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
        let refused = |limits: serde_json::Value| {
            let placement = serde_json::json!({"metadata": {"name": "p"}, "spec": {"limits": limits}});
            let found = kube_cel::Validator::new().validate_compiled(&schema, &placement, None);
            found.err().map(|errors| errors.into_vec().into_iter().map(|e| e.message).collect::<Vec<_>>())
        };
        let near = serde_json::json!({"latitude": 60.4, "longitude": 5.3});
        let why = refused(serde_json::json!({"maxDistanceKm": 50.0})).expect("refused");
        assert_eq!(why, ["maxDistanceKm is a distance from near: say near too"]);
        assert_eq!(refused(serde_json::json!({"maxDistanceKm": 50.0, "near": near})), None);
        assert_eq!(refused(serde_json::json!({"near": near})), None);
        assert_eq!(refused(serde_json::json!({"jurisdictions": ["EU"]})), None);
    }
}
