//! A cluster tied to this hub.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SiteSelector;

/// Resource name to Kubernetes quantity, as in `capacity` of a node.
pub type Quantities = BTreeMap<String, String>;

#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tombolo.dev",
    version = "v1alpha1",
    kind = "Site",
    plural = "sites",
    shortname = "st",
    status = "SiteStatus",
    derive = "PartialEq"
)]
#[kube(
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#
)]
#[kube(printcolumn = r#"{"name":"Tier","type":"string","jsonPath":".spec.tier"}"#)]
#[kube(printcolumn = r#"{"name":"Region","type":"string","jsonPath":".spec.location.region"}"#)]
#[kube(printcolumn = r#"{"name":"Nodes","type":"integer","jsonPath":".status.nodes"}"#)]
#[kube(printcolumn = r#"{"name":"Version","type":"string","jsonPath":".status.version"}"#)]
#[kube(printcolumn = r#"{"name":"RTT","type":"string","jsonPath":".status.latency","priority":1}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase", default)]
pub struct SiteSpec {
    /// Kind of place; placements select and prefer by it.
    pub tier: Tier,
    /// Where it is.
    pub location: Location,
    /// Who runs it, for example `hetzner`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Keep away what does not tolerate them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Nothing new is placed here; what is here stays.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
    /// Seconds without a heartbeat after which the site counts as lost; the hub's default if absent. Never less than 5, than
    /// three quarters of the hub's default (three heartbeats), or than the measured round trip allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// The nodes there can stop a pod by a deadline on their own (`failover.atMostOnce`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fences: bool,
    /// Identities of the hubs below this site, itself first, if the site is a hub.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<String>,
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    #[default]
    Cloud,
    Fog,
    Edge,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Location {
    /// Region, for example `eu-central`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Zone within the region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Degrees north.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latitude: Option<f64>,
    /// Degrees east.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longitude: Option<f64>,
    /// Whose law applies, for example `EU`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jurisdiction: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Name of the taint.
    pub key: String,
    /// Value that a toleration must name.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SiteStatus {
    /// `Ready`: `True`, or `False` with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Version of the Kubernetes API there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Version of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// How many nodes it has; absent until it has said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i64>,
    /// Sum of what its nodes have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: Quantities,
    /// Sum of what pods may use of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: Quantities,
    /// Sum of what pods there have asked for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub used: Quantities,
    /// How capacity is broken up over nodes: equal nodes are counted together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shapes: Vec<NodeShape>,
    /// What a hub below offers, per zone and jurisdiction.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<Offer>,
    /// Written by the hub when the state changes, not at every heartbeat (the Lease has that).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heard: Option<String>,
    /// Measured round trip, for example `12ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
    /// The highest epoch of this hub that the site has seen. A hub that finds its own epoch below was restored from a backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub_epoch: Option<i64>,
    /// Objects at the site that came from this hub and that no Work speaks of; the site keeps them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub orphans: Vec<String>,
}

/// A number of equal nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeShape {
    /// How many such nodes there are.
    pub count: i64,
    /// Capacity that pods may use.
    pub allocatable: Quantities,
    /// What is free of it now.
    pub free: Quantities,
    /// Processor, for example `amd64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Operating system, for example `linux`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
}

/// Part of what a nested hub offers: the shapes of one zone under one law.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Offer {
    /// Kind of place.
    pub tier: Tier,
    /// Where it is.
    pub location: Location,
    /// Who runs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// How many sites it stands for.
    pub sites: i64,
    /// How its capacity is broken up over nodes.
    pub shapes: Vec<NodeShape>,
    /// Identities of the hubs below through which it is offered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<String>,
}

/// As `metav1.Condition`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Name of the condition.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// One word for programs.
    pub reason: String,
    /// One line for people.
    pub message: String,
    /// When `status` last changed.
    pub last_transition_time: String,
}

impl Condition {
    /// Puts `self` into `conditions`; the transition time changes only with the status. Says whether anything changed.
    pub fn set(self, conditions: &mut Vec<Condition>) -> bool {
        let Some(old) = conditions.iter_mut().find(|c| c.r#type == self.r#type) else {
            conditions.push(self);
            return true;
        };
        if old.status == self.status && old.reason == self.reason && old.message == self.message {
            return false;
        }
        let kept = old.last_transition_time.clone();
        let same_status = old.status == self.status;
        *old = self;
        if same_status {
            old.last_transition_time = kept;
        }
        true
    }
}

impl Site {
    pub fn is_ready(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(|s| s.conditions.iter().any(|c| c.r#type == "Ready" && c.status == "True"))
    }
}

/// Sites under one name: those listed and those selected.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tombolo.dev",
    version = "v1alpha1",
    kind = "SiteGroup",
    plural = "sitegroups",
    shortname = "sg"
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase", default)]
pub struct SiteGroupSpec {
    /// Names of sites.
    pub sites: Vec<String>,
    /// Sites that fit this are in the group too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<SiteSelector>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_transition_time_while_its_status_stays() {
        let condition = |status: &str, message: &str, at: &str| Condition {
            r#type: "Ready".into(),
            status: status.into(),
            reason: "R".into(),
            message: message.into(),
            last_transition_time: at.into(),
        };
        let mut all = vec![];
        assert!(condition("True", "a", "1").set(&mut all));
        assert!(!condition("True", "a", "2").set(&mut all));
        assert!(condition("True", "b", "3").set(&mut all));
        assert_eq!(all[0].last_transition_time, "1");
        assert!(condition("False", "b", "4").set(&mut all));
        assert_eq!(all[0].last_transition_time, "4");
    }
}
