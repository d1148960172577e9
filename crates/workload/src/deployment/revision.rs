//! ReplicaSets as revisions: names, numbers, history. `kubectl rollout history|undo` reads exactly these.

use super::{COMPONENT, DESIRED, HASH, MAX, REVISION, REVISION_HISTORY, Snapshot, scale, set_replicas};
use crate::{
    meta::{self, annotation, controller_reference, tell},
    shell::{Action, Severity},
};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde_json::{Map, Value, json};

/// Annotations of a Deployment that its ReplicaSets do not inherit.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    MAX,
    "deprecated.deployment.rollback.to",
];

/// Equal but for the hash label that the ReplicaSet's copy carries.
pub fn same_template(ours: &PodTemplateSpec, theirs: &PodTemplateSpec) -> bool {
    let images = |template: &PodTemplateSpec| -> Option<Vec<Option<String>>> {
        Some(template.spec.as_ref()?.containers.iter().map(|container| container.image.clone()).collect())
    };
    if images(ours) != images(theirs) {
        // The usual difference, found cheaply.
        return false;
    }
    let bare = |template: &PodTemplateSpec| {
        let mut template = template.clone();
        if let Some(labels) = template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
            labels.remove(HASH);
        }
        template
    };
    meta::semantically_equal(&bare(ours), &bare(theirs))
}

pub fn template_hash(deployment: &Deployment) -> String {
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    meta::short_hash(&deployment.spec.as_ref().map(|spec| &spec.template), collisions)
}

pub fn new_set_name(deployment: &Deployment) -> String {
    format!("{}-{}", meta::name(&deployment.metadata), template_hash(deployment))
}

pub fn revision_of(meta: &ObjectMeta) -> i64 {
    annotation(meta, REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0)
}

fn next_revision(snapshot: &Snapshot) -> i64 {
    snapshot.old_sets().iter().map(|set| revision_of(&set.metadata)).max().unwrap_or(0) + 1
}

pub fn create_new_set(snapshot: &Snapshot) -> Vec<Action> {
    let deployment = &snapshot.deployment;
    if let Some(other) = &snapshot.same_name {
        let status = deployment.status.clone().unwrap_or_default();
        let taken_by_other = !meta::is_controlled_by(&other.metadata, meta::uid(&deployment.metadata))
            || snapshot.new_set().is_none();
        if taken_by_other {
            // Another template has the same hash: count up, which gives the next attempt another name.
            let count = status.collision_count.unwrap_or(0) + 1;
            return vec![meta::patch::<Deployment>(
                &deployment.metadata,
                "status",
                &json!({"status": {"collisionCount": count}}),
            )];
        }
    }
    let spec = snapshot.spec();
    let hash = template_hash(deployment);
    let mut template = spec.template.clone();
    let template_meta = template.metadata.get_or_insert_default();
    template_meta.labels.get_or_insert_default().insert(HASH.into(), hash.clone());
    let mut selector = spec.selector.clone();
    selector.match_labels.get_or_insert_default().insert(HASH.into(), hash.clone());
    let replicas = scale::new_set_replicas(snapshot, 0);
    let mut annotations: std::collections::BTreeMap<String, String> = inherited(deployment).collect();
    annotations.insert(REVISION.into(), next_revision(snapshot).to_string());
    annotations.insert(DESIRED.into(), snapshot.replicas().to_string());
    annotations.insert(MAX.into(), (snapshot.replicas() + snapshot.limits().0).to_string());
    let name = format!("{}-{hash}", meta::name(&deployment.metadata));
    let set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: deployment.metadata.namespace.clone(),
            labels: template_meta.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference::<Deployment>(&deployment.metadata)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    let mut actions = vec![meta::create(&set)];
    if replicas > 0 {
        let message = format!("Scaled up replica set {name} from 0 to {replicas}");
        actions.push(tell::<Deployment>(
            &deployment.metadata,
            COMPONENT,
            Severity::Normal,
            "ScalingReplicaSet",
            message,
        ));
    }
    actions
}

fn inherited(deployment: &Deployment) -> impl Iterator<Item = (String, String)> + '_ {
    let annotations = deployment.metadata.annotations.iter().flatten();
    annotations
        .filter(|(key, _)| !OWN.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
}

/// Brings the new set's revision and inherited annotations up to date.
pub fn sync_annotations(snapshot: &Snapshot) -> Option<Action> {
    let deployment = &snapshot.deployment;
    let new = snapshot.new_set()?;
    let mut changed = Map::new();
    let next = next_revision(snapshot);
    let current = revision_of(&new.metadata);
    if current < next {
        changed.insert(REVISION.into(), json!(next.to_string()));
        if current > 0 {
            let mut history: Vec<&str> =
                annotation(&new.metadata, REVISION_HISTORY).into_iter().flat_map(|h| h.split(',')).collect();
            let was = current.to_string();
            history.push(&was);
            changed.insert(REVISION_HISTORY.into(), json!(history.join(",")));
        }
    }
    for (key, value) in inherited(deployment) {
        if annotation(&new.metadata, &key) != Some(&value) {
            changed.insert(key, json!(value));
        }
    }
    let min_ready = snapshot.spec().min_ready_seconds.unwrap_or(0);
    let set_min_ready = new.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    if changed.is_empty() && min_ready == set_min_ready {
        return None;
    }
    let mut body = json!({"metadata": {"annotations": Value::Object(changed)}});
    if min_ready != set_min_ready {
        body["spec"] = json!({"minReadySeconds": min_ready});
    }
    Some(meta::patch::<ReplicaSet>(&new.metadata, "", &body))
}

/// Notes the new set's revision on the Deployment: with its status, because an annotation that is written otherwise makes a new
/// generation of it.
pub fn note_revision(snapshot: &Snapshot) -> Option<Action> {
    let deployment = &snapshot.deployment.metadata;
    let revision = annotation(&snapshot.new_set()?.metadata, REVISION)?;
    let body = json!({"metadata": {"annotations": {REVISION: revision}}});
    (annotation(deployment, REVISION) != Some(revision))
        .then(|| meta::patch::<Deployment>(deployment, "status", &body))
}

/// Deletes the oldest revisions beyond the limit, once the rollout is complete.
pub fn clean_history(snapshot: &Snapshot) -> Vec<Action> {
    let Some(limit) = snapshot.spec().revision_history_limit.filter(|limit| *limit != i32::MAX) else {
        return Vec::new();
    };
    let status = snapshot.deployment.status.as_ref();
    let done = |count: Option<i32>| count.unwrap_or(0) == snapshot.replicas();
    let complete = status.is_some_and(|s| {
        done(s.updated_replicas)
            && done(s.replicas)
            && done(s.available_replicas)
            && s.observed_generation == snapshot.deployment.metadata.generation
    });
    if !complete && snapshot.replicas() != 0 {
        return Vec::new();
    }
    let mut old: Vec<_> =
        snapshot.old_sets().into_iter().filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    old.sort_by_key(|set| revision_of(&set.metadata));
    old.into_iter()
        .take(surplus)
        .filter(|set| {
            let status = set.status.as_ref();
            set_replicas(set) == 0
                && status.is_none_or(|s| s.replicas == 0)
                && set.metadata.generation
                    <= status.and_then(|s| s.observed_generation).or(set.metadata.generation)
        })
        .map(|set| meta::delete::<ReplicaSet>(&set.metadata))
        .collect()
}
