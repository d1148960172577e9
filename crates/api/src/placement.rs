//! Which objects go where.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Condition, LabelSelector, SiteSelector};

#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tombolo.dev",
    version = "v1alpha1",
    kind = "Placement",
    plural = "placements",
    namespaced,
    shortname = "pl",
    status = "PlacementStatus",
    derive = "PartialEq"
)]
#[kube(printcolumn = r#"{"name":"Replicas","type":"string","jsonPath":".spec.replicas.mode"}"#)]
#[kube(printcolumn = r#"{"name":"Objects","type":"integer","jsonPath":".status.objects"}"#)]
#[kube(printcolumn = r#"{"name":"Drift","type":"string","jsonPath":".spec.drift","priority":1}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementSpec {
    /// Objects of this namespace (or of the cluster, for kinds without one); nothing given means every workload in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectSelector>,
    /// Where they may go; nothing given means everywhere.
    pub sites: SiteSelector,
    /// Taints of sites that do not keep them away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// How replicas are shared out.
    pub replicas: Replicas,
    /// Best first. A site that fits none comes last; what does not fit into one step overflows into the next.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefer: Vec<SiteSelector>,
    /// How far apart they must be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<Spread>,
    /// What a site must be able to show.
    pub limits: Limits,
    /// What is different at some sites.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<Override>,
    /// What happens when a site is lost.
    pub failover: Failover,
    /// What happens to fields that someone at a site took over.
    pub drift: Drift,
    /// Take over objects that exist at a site already.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adopt: bool,
    /// What the pods name (ConfigMaps, Secrets, …) stays at home.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_dependencies: bool,
    /// `spec.replicas` is left to the site (it has its own autoscaler).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub site_scales: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectSelector {
    /// Only of this group and version, for example `apps/v1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Only of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only with these labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Name of the taint; empty with `Exists` tolerates all.
    pub key: String,
    /// `Equal` (default) or `Exists`.
    pub operator: String,
    /// Value of the taint, for `Equal`.
    pub value: String,
    /// Empty tolerates every effect.
    pub effect: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Replicas {
    /// Share the replicas out, or give every site all of them.
    pub mode: ReplicasMode,
    /// What shares are measured by, for `mode: Divide`.
    pub divide_by: DivideBy,
    /// For `divideBy: Weight`; a site that matches none has weight 1, the first match counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<Weight>,
    /// For `mode: Duplicate`: on how many sites; absent means on all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReplicasMode {
    /// The replicas are shared out over the sites.
    #[default]
    Divide,
    /// Every site gets all of them.
    Duplicate,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DivideBy {
    #[default]
    FreeCapacity,
    Weight,
    /// On as few sites as possible.
    Pack,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Weight {
    /// Which sites.
    pub sites: SiteSelector,
    /// Share of a site, beside the shares of others.
    pub weight: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spread {
    /// What must differ.
    pub by: SpreadBy,
    /// At least so many different values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    /// At most so many different values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
    /// The most that two values may differ in replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_skew: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SpreadBy {
    #[default]
    Site,
    Zone,
    Region,
    Provider,
    Tier,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.maxDistanceKm) || has(self.near)",
    "message": "maxDistanceKm is a distance from near: say near too"
}]))]
pub struct Limits {
    /// Only under these laws; a site that states none is out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jurisdictions: Vec<String>,
    /// At most so far from `near`, which must be given too; a site that states no coordinates is out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_distance_km: Option<f64>,
    /// The point that distances are measured from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near: Option<Place>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// Degrees north.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
}

/// Changes to what is sent to some sites; they are made in the order given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Override {
    /// For which sites; nothing given means all.
    pub sites: SiteSelector,
    /// Only for these kinds; nothing given means the root object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// RFC 6902.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::any_objects")]
    pub json_patch: Vec<serde_json::Value>,
    /// RFC 7386.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_object")]
    pub merge: Option<serde_json::Value>,
    /// Where images come from there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageOverride>,
    /// Set in every container of the pod template.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Set on the object and its pod template.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Set on the object and its pod template.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageOverride {
    /// Replaces the registry of every image, for example `mirror.local:5000`.
    pub registry: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVar {
    /// Name of the variable.
    pub name: String,
    /// Its value.
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Failover {
    /// Seconds to wait after a site is lost before anything moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<i64>,
    /// At most so many replicas of an object are on the move at once; the next when those are up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_at_once: Option<i64>,
    /// Nothing moves.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stay: bool,
    /// Workloads with volumes on the lost site's own disks move too (their data does not).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub move_local_volumes: bool,
    /// A replica never runs twice: the site stops it by itself before another one starts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_most_once: bool,
    /// With `atMostOnce`: seconds a replica may run without a word from the hub. 40 if nothing is said, and never less
    /// than 10 more than the pod may take to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Drift {
    /// A field that someone at the site took over is reported and left.
    #[default]
    Report,
    /// It is taken back.
    Force,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementStatus {
    /// What is known about this placement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// How many objects this placement places.
    pub objects: i64,
}

impl ObjectSelector {
    pub fn matches(
        &self,
        api_version: &str,
        kind: &str,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        let same = |want: &Option<String>, have: &str| want.as_deref().is_none_or(|w| w == have);
        same(&self.api_version, api_version)
            && same(&self.kind, kind)
            && same(&self.name, name)
            && self.labels.as_ref().is_none_or(|s| s.matches(labels))
    }
}
