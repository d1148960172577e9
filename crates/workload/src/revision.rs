//! ControllerRevisions: the history of a StatefulSet's or DaemonSet's template, as `kubectl rollout` reads it.

use crate::{
    meta::{self, controller_reference},
    shell::{Action, Object},
};
use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::PodTemplateSpec},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        runtime::RawExtension,
    },
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

pub const HASH: &str = "controller-revision-hash";
const REVISION_HASH: &str = "controller.kubernetes.io/hash";

/// The owner's templates, oldest first.
pub struct History {
    revisions: Vec<Arc<ControllerRevision>>,
}

/// Where the owner's present template stands in its history.
pub enum Current {
    /// It is this revision, the newest.
    Newest(Arc<ControllerRevision>),
    /// The history must be changed first.
    Change(Action),
    /// The name is taken by a different template: count a collision.
    Collision,
}

impl History {
    pub fn new(mut revisions: Vec<Arc<ControllerRevision>>) -> Self {
        revisions.sort_by_key(|r| (r.revision, meta::created(&r.metadata), r.metadata.name.clone()));
        Self { revisions }
    }

    pub fn named(&self, name: &str) -> Option<&Arc<ControllerRevision>> {
        self.revisions.iter().find(|r| r.metadata.name.as_deref() == Some(name))
    }

    /// Finds the present template in the history, or says what to write so that it is there.
    pub fn locate<O: Object>(
        &self,
        owner: &ObjectMeta,
        selector: &LabelSelector,
        template: &PodTemplateSpec,
        collisions: Option<i32>,
    ) -> Current {
        let data = data(template);
        let newest = self.revisions.last();
        let next = newest.map_or(1, |revision| revision.revision + 1);
        if let Some(same) = self.revisions.iter().rev().find(|revision| same_data(revision, &data)) {
            if newest.is_some_and(|newest| newest.metadata.name == same.metadata.name) {
                return Current::Newest(same.clone());
            }
            // A rollback: the old revision becomes the newest.
            let body = json!({"revision": next});
            return Current::Change(meta::patch::<ControllerRevision>(&same.metadata, "", &body));
        }
        let hash = meta::short_hash(&data, collisions);
        let name = format!("{}-{hash}", meta::name(owner));
        if self.named(&name).is_some() {
            return Current::Collision;
        }
        let mut labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
        labels.extend(selector.match_labels.clone().unwrap_or_default());
        labels.insert(REVISION_HASH.into(), hash.clone());
        labels.insert(HASH.into(), hash);
        Current::Change(meta::create(&ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: owner.namespace.clone(),
                labels: Some(labels),
                annotations: owner.annotations.clone().map(|mut annotations| {
                    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
                    annotations
                }),
                owner_references: Some(vec![controller_reference::<O>(owner)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data)),
            revision: next,
        }))
    }

    /// Deletes the oldest revisions beyond the limit that nothing uses.
    pub fn truncate(&self, limit: Option<i32>, in_use: &BTreeSet<String>) -> Vec<Action> {
        let limit = usize::try_from(limit.unwrap_or(10)).unwrap_or(0);
        let unused: Vec<_> =
            self.revisions.iter().filter(|r| !in_use.contains(meta::name(&r.metadata))).collect();
        let surplus = unused.len().saturating_sub(limit);
        unused.into_iter().take(surplus).map(|r| meta::delete::<ControllerRevision>(&r.metadata)).collect()
    }
}

/// The template that a revision holds.
pub fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.get("spec")?.get("template")?;
    serde_json::from_value(template.clone()).ok()
}

/// The label by which pods tell their revision.
pub fn hash_of(revision: &ControllerRevision) -> &str {
    meta::label(&revision.metadata, HASH)
        .or(meta::label(&revision.metadata, REVISION_HASH))
        .unwrap_or(meta::name(&revision.metadata))
}

fn data(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

fn same_data(revision: &ControllerRevision, data: &Value) -> bool {
    revision.data.as_ref().is_some_and(|raw| meta::semantically_equal(&raw.0, data))
}
