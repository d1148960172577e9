//! Works and mirrored pods as the index keeps them. A fleet has many thousands, and as trees of JSON they would take ten
//! times the memory of their text: what is only compared, or sent again, is kept as text.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::core::ObjectMeta;
use serde_json::Value;
use tombolo_api::{
    Condition, LeaseTerms, ObjectRef, PodSummary, Tombstone, Work, WorkSpec, WorkStatus, names,
};

use crate::decide::PARTS_ANNOTATION;
use crate::index::WorkId;
use crate::object::text;

/// A Work.
#[derive(Debug)]
pub struct Kept {
    pub name: String,
    pub uid: String,
    pub generation: i64,
    pub version: u64,
    pub annotations: BTreeMap<String, String>,
    pub root: ObjectRef,
    pub replicas: Option<i64>,
    pub tombstone: Option<Tombstone>,
    pub lease: Option<LeaseTerms>,
    /// Without the root's own status, which is [`Kept::object`].
    pub status: WorkStatus,
    object: Option<Box<str>>,
    epoch: i64,
    spec: Arc<str>,
}

impl Kept {
    /// `before`: the same Work as it was kept until now; most news of a Work leave its spec as it was.
    pub fn new(work: Work, before: Option<&Self>) -> Self {
        let (metadata, spec) = (work.metadata, work.spec);
        let uid = metadata.uid.unwrap_or_default();
        let generation = metadata.generation.unwrap_or_default();
        let mut status = work.status.unwrap_or_default();
        let same = |b: &&Self| b.uid == uid && b.generation == generation && generation > 0;
        Self {
            name: metadata.name.unwrap_or_default(),
            version: number(metadata.resource_version.as_deref()),
            annotations: metadata.annotations.unwrap_or_default(),
            spec: before.filter(same).map_or_else(|| written(&spec), |b| b.spec.clone()),
            uid,
            generation,
            root: spec.root,
            replicas: spec.replicas,
            tombstone: spec.tombstone,
            lease: spec.lease,
            epoch: spec.hub.epoch,
            object: status.object.take().map(|object| object.to_string().into()),
            status,
        }
    }

    /// The same with another spec, of which the hub's API gave back only the metadata; `None` leaves the spec as it is.
    pub fn written(&self, metadata: ObjectMeta, spec: Option<WorkSpec>) -> Self {
        let spec = spec.unwrap_or_else(|| self.spec());
        Self {
            name: self.name.clone(),
            uid: self.uid.clone(),
            generation: metadata.generation.unwrap_or_default(),
            version: number(metadata.resource_version.as_deref()),
            annotations: metadata.annotations.unwrap_or_default(),
            spec: written(&spec),
            root: spec.root,
            replicas: spec.replicas,
            tombstone: spec.tombstone,
            lease: spec.lease,
            epoch: spec.hub.epoch,
            status: self.status.clone(),
            object: self.object.clone(),
        }
    }

    /// Is this what a Work with such metadata was kept as?
    pub fn is_from(&self, metadata: &ObjectMeta) -> bool {
        let version = number(metadata.resource_version.as_deref());
        version > 0 && self.version >= version && Some(&self.uid) == metadata.uid.as_ref()
    }

    pub fn spec(&self) -> WorkSpec {
        serde_json::from_str(&self.spec).unwrap_or_default()
    }

    pub fn spec_json(&self) -> Value {
        serde_json::from_str(&self.spec).unwrap_or_default()
    }

    /// The status of the root at the site.
    pub fn object(&self) -> Option<Value> {
        serde_json::from_str(self.object.as_ref()?).ok()
    }

    pub fn has_object(&self) -> bool {
        self.object.is_some()
    }

    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|c| c.r#type == kind)
    }

    /// Has the site done what this version of it says?
    pub fn acted(&self) -> bool {
        self.status.observed_generation >= self.generation
    }

    /// Has the site done so, and not refused it?
    fn is_applied(&self) -> bool {
        self.acted() && self.condition("Applied").is_some_and(|c| c.status == "True")
    }

    /// Is nothing left at the site of what an earlier version said? Each pod goes by the terms that it was made with.
    fn runs_as_it_says(&self) -> bool {
        if !self.is_applied() || self.status.pods.values().any(|pod| pod.leaving) {
            return false;
        }
        let status = self.object().unwrap_or_default();
        let count = |field: &str| status[field].as_i64().unwrap_or(0);
        count("observedGeneration") >= self.status.site_generation
            && count("updatedReplicas") >= count("replicas")
    }

    /// Has the site taken all of it away?
    pub fn is_removed(&self) -> bool {
        self.acted() && self.condition("Removed").is_some_and(|c| c.status == "True")
    }

    /// Seconds of silence after which what may run at most once has stopped, by the longest terms that the site may know.
    /// `None`: never.
    pub fn stops_after(&self) -> Option<i64> {
        let lease = self.lease.as_ref()?;
        match lease.before_seconds.filter(|_| !self.runs_as_it_says()) {
            Some(before) => (before >= 0).then(|| before.max(lease.seconds)),
            None => Some(lease.seconds),
        }
    }

    /// A new version says which terms the site may still know. Without it a hub that shortens a lease, and is then cut off
    /// from the site, would count on terms that the site never heard of.
    pub fn pass_terms_on(&self, spec: &mut WorkSpec) {
        if let Some(lease) = &mut spec.lease {
            let known = self.stops_after();
            lease.before_seconds = known.map_or(Some(-1), |known| (known > lease.seconds).then_some(known));
        }
    }

    /// How many of the replicas that the site was given it cannot schedule. Given so many less, it need not stop one that has a
    /// node, whatever else waits there: a surge of a rollout, or what it has yet to let go of.
    ///
    /// Where the site was given no number, all of it stays or goes: nothing is stuck while one pod has a node.
    pub fn unschedulable(&self) -> usize {
        let stuck = |p: &&PodSummary| stays(p) && p.node.is_empty() && p.reason == "Unschedulable";
        // A hub below may not have made them: it says that it has no place.
        let waiting = self.status.pods.values().filter(stuck).count()
            + if self.is_for_a_hub() { self.unplaced() } else { 0 };
        if waiting == 0 || !self.is_applied() || self.rolls_out() {
            return 0;
        }
        match self.replicas {
            Some(given) => {
                waiting.min(usize::try_from(given).unwrap_or(0).saturating_sub(self.least_to_keep()))
            }
            None if self.scheduled() == 0 => waiting,
            None => 0,
        }
    }

    /// How many of its pods have a node, and keep it.
    pub fn scheduled(&self) -> usize {
        self.status.pods.values().filter(|pod| holds_node(pod)).count()
    }

    /// The least number of replicas with which the site stops none that has a node. Of a StatefulSet those with the highest
    /// ordinals go first, whether they run or not; of all else those that wait.
    fn least_to_keep(&self) -> usize {
        if self.root.kind != "StatefulSet" || self.is_for_a_hub() {
            return self.scheduled();
        }
        let start = crate::object::number(&self.spec().object, "/spec/ordinals/start");
        let ordinal = |pod: &String| pod.rsplit_once('-')?.1.parse::<i64>().ok();
        let scheduled = self.status.pods.iter().filter(|(_, pod)| holds_node(pod));
        let highest = scheduled.filter_map(|(name, _)| ordinal(name)).max();
        highest.map_or(0, |highest| usize::try_from(highest + 1 - start).unwrap_or(0))
    }

    /// Do pods of two versions stand side by side? What is new then waits for what is old to go, and of a smaller number a
    /// Deployment takes from both. A site that gets no further says so in the end.
    fn rolls_out(&self) -> bool {
        if self.root.kind != "Deployment" {
            return false;
        }
        let status = self.object().unwrap_or_default();
        let count = |field: &str| status[field].as_i64().unwrap_or(0);
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let gave_up = conditions.into_iter().any(|c| c["type"] == "Progressing" && c["status"] == "False");
        (1..count("replicas")).contains(&count("updatedReplicas")) && !gave_up
    }

    /// Is its site a hub, with several places?
    fn is_for_a_hub(&self) -> bool {
        self.annotations.contains_key(PARTS_ANNOTATION)
    }

    fn unplaced(&self) -> usize {
        let status = self.object().unwrap_or_default();
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let full = |c: &Value| c["type"] == "Placed" && c["status"] == "False" && c["reason"] == "NoRoom";
        if !conditions.into_iter().any(full) {
            return 0;
        }
        let placed = status["replicas"].as_i64().unwrap_or(0);
        usize::try_from(self.replicas.unwrap_or(0) - placed).unwrap_or(0)
    }

    /// Has the site refused it ever since? What it says of an object of that name is then of another one.
    pub fn never_applied(&self) -> bool {
        let refused = self.condition("Applied").is_some_and(|c| c.status == "False");
        // Kinds without generations do not tell.
        refused && self.status.root_generation == 0 && self.root.generation > 0
    }

    /// The same intent; the epoch alone is no reason to send it again.
    pub fn says(&self, spec: &WorkSpec) -> bool {
        let mut spec = spec.clone();
        spec.hub.epoch = self.epoch;
        written(&spec) == self.spec
    }

    /// Does the site say the same of it?
    pub fn reports_as(&self, other: &Self) -> bool {
        self.status == other.status && self.object == other.object
    }

    pub fn is_as(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.generation == other.generation
            && self.annotations == other.annotations
            && self.reports_as(other)
    }

    /// Was the share of this Work placed elsewhere while its site was lost?
    pub fn has_left(&self) -> bool {
        self.annotations.contains_key(names::LEFT_ANNOTATION)
    }
}

/// Neither ended nor on its way out: what ends makes room for another one.
fn stays(pod: &PodSummary) -> bool {
    !pod.leaving && !matches!(pod.phase.as_str(), "Succeeded" | "Failed")
}

fn holds_node(pod: &PodSummary) -> bool {
    stays(pod) && !pod.node.is_empty()
}

fn written(spec: &WorkSpec) -> Arc<str> {
    serde_json::to_string(spec).unwrap_or_default().into()
}

/// A mirrored pod.
#[derive(Debug)]
pub struct Mirror {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub version: u64,
    /// It is being deleted at the hub.
    pub leaving: bool,
    status: Box<str>,
}

impl Mirror {
    pub fn new(pod: &Value) -> Self {
        let of = |pointer: &str| text(pod, pointer).to_owned();
        Self {
            namespace: of("/metadata/namespace"),
            name: of("/metadata/name"),
            uid: of("/metadata/uid"),
            version: number(pod.pointer("/metadata/resourceVersion").and_then(Value::as_str)),
            leaving: !text(pod, "/metadata/deletionTimestamp").is_empty(),
            status: pod.get("status").map_or_else(|| "{}".into(), |status| status.to_string().into()),
        }
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.status).unwrap_or_default()
    }
}

/// The Work that a mirrored pod belongs to.
pub fn work_of_mirror(pod: &Value) -> Option<WorkId> {
    let site = text(pod, "/metadata/labels/tombolo.dev~1site");
    let work = text(pod, "/metadata/labels/tombolo.dev~1mirror");
    (!site.is_empty() && !work.is_empty()).then(|| (site.to_owned(), work.to_owned()))
}

/// The mirrors of one Work, by their name at the hub.
#[derive(Debug, Default)]
pub struct Mirrors {
    pub pods: BTreeMap<String, Arc<Mirror>>,
    /// For what they were last found to be right.
    pub right_for: Option<Shown>,
}

/// What decides how mirrors look, besides themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub work: u64,
    pub root: i64,
    pub silent: Option<String>,
}

fn number(version: Option<&str>) -> u64 {
    version.and_then(|v| v.parse().ok()).unwrap_or(0)
}
