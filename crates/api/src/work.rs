//! One root object rendered for one site, and what came back.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Condition, Drift};

/// Written by the hub. At most 512 KB.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tombolo.dev",
    version = "v1alpha1",
    kind = "Work",
    plural = "works",
    namespaced,
    shortname = "wk",
    status = "WorkStatus",
    derive = "PartialEq"
)]
#[kube(printcolumn = r#"{"name":"Kind","type":"string","jsonPath":".spec.root.kind"}"#)]
#[kube(printcolumn = r#"{"name":"In","type":"string","jsonPath":".spec.root.namespace"}"#)]
#[kube(printcolumn = r#"{"name":"Object","type":"string","jsonPath":".spec.root.name"}"#)]
#[kube(printcolumn = r#"{"name":"Replicas","type":"integer","jsonPath":".spec.replicas"}"#)]
#[kube(
    printcolumn = r#"{"name":"Applied","type":"string","jsonPath":".status.conditions[?(@.type==\"Applied\")].status"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Applied\")].message","priority":1}"#
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkSpec {
    /// The object at the hub this was made from.
    pub root: ObjectRef,
    /// Who speaks.
    pub hub: HubRef,
    /// The root object as the site shall have it.
    #[schemars(schema_with = "crate::schema::any_object")]
    pub object: Value,
    /// What it needs there; applied before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::any_objects")]
    pub with: Vec<Value>,
    /// Replicas given to this site; absent where the kind has none or the site scales.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
    /// From the Placement.
    pub drift: Drift,
    /// From the Placement.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adopt: bool,
    /// Present when the site shall remove what this Work made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tombstone: Option<Tombstone>,
    /// The part of the placement that a hub below must decide (a `PlacementSpec`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_object")]
    pub delegate: Option<Value>,
    /// Terms of `failover.atMostOnce`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseTerms>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for kinds without one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid at the hub.
    pub uid: String,
    /// `metadata.generation` at the hub of what is in this Work.
    pub generation: i64,
}

/// Who speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HubRef {
    /// Identity of the hub.
    pub id: String,
    /// Grows with every start of a leading hub; a restored hub is behind what its sites have seen.
    pub epoch: i64,
    /// Identities of the hubs this came through, the first one first. A hub that finds itself here refuses the Work.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Tombstone {
    /// Identity of the hub that says so.
    pub hub: String,
    /// Its epoch then.
    pub epoch: i64,
    /// Why, for people.
    pub reason: String,
    /// The objects stay at the site, no longer managed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
}

/// A pod of this Work stops by itself when its lease was not renewed for `seconds`, counted from when the renewal was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseTerms {
    /// How long it may run without a renewal.
    pub seconds: i64,
    /// Time the pod gets to stop; it is over before `seconds` are.
    pub stop_seconds: i64,
    /// Where the site may know longer terms until it has acted on this version of the Work: those. -1: it may know none at
    /// all, and run without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_seconds: Option<i64>,
}

/// Written by the site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkStatus {
    /// Generation of this Work that the site acted on.
    pub observed_generation: i64,
    /// With `lease`: the tie to the hub under which the site lets the workload run. Written before the lease is renewed on
    /// it, so that a hub that moves the workload at the same moment learns of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tie: Option<String>,
    /// Generation of the hub's root object that is applied at the site.
    pub root_generation: i64,
    /// `metadata.generation` of the object at the site.
    pub site_generation: i64,
    /// `Applied` (with the reason of a refusal) and, after a tombstone, `Removed`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Status of the root object at the site.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_object")]
    pub object: Option<Value>,
    /// Pods born of the root, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pods: BTreeMap<String, PodSummary>,
    /// Fields that someone at the site took over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drift: Vec<DriftItem>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSummary {
    /// Node at the site.
    pub node: String,
    /// As `status.phase` of the pod.
    pub phase: String,
    /// All its containers are ready.
    pub ready: bool,
    /// Restarts of its containers.
    #[serde(skip_serializing_if = "is_zero")]
    pub restarts: i64,
    /// Address in the site's pod network.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Address of its node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
    /// When its node took it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub start: String,
    /// When it was made at the site.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub created: String,
    /// Why it waits, failed or was evicted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Names of the containers, in order.
    pub containers: Vec<String>,
    /// How many of them are ready.
    pub ready_containers: i64,
    /// It is being deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// Uid at the site.
    pub uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DriftItem {
    /// `Kind/name`.
    pub object: String,
    /// Path of the field.
    pub field: String,
    /// Who has it now.
    pub manager: String,
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

impl Work {
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.as_ref()?.conditions.iter().find(|c| c.r#type == kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Hub and agent may be one release apart.
    #[test]
    fn a_work_of_a_newer_hub_is_understood_as_far_as_it_is_known() {
        let newer = json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Work", "metadata": {"name": "w", "namespace": "site-a"},
            "spec": {"root": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "generation": 3, "colour": "blue"},
                "hub": {"id": "h", "epoch": 7, "mood": "good"}, "object": {"kind": "Deployment"}, "rollout": {"steps": [1, 2]},
                "lease": {"seconds": 40, "stopSeconds": 30, "grace": 1}, "tombstone": {"hub": "h", "epoch": 7, "by": "anna"}},
            "status": {"observedGeneration": 2, "weather": "fine", "pods": {"p": {"phase": "Running", "energy": 3}}}});
        let work: Work = serde_json::from_value(newer).expect("understood");
        assert_eq!((work.spec.root.generation, work.spec.hub.epoch), (3, 7));
        assert!(work.spec.tombstone.is_some_and(|t| t.epoch == 7));
        assert_eq!(work.status.expect("a status").pods["p"].phase, "Running");
        let older = json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Work", "metadata": {"name": "w"}, "spec": {}});
        assert!(serde_json::from_value::<Work>(older).is_ok(), "what an older hub leaves out has a default");
    }
}
