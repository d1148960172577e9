//! Volumes and claims on their way out: in use they stay, released they are reclaimed.

use super::{bind::is_claimed_by, claim_names, is_bound};
use crate::{
    meta::{self, controller_reference},
    pod,
    shell::{Action, Key},
};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use serde_json::json;
use std::sync::Arc;

const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

/// Whether a pod that has not ended uses the claim.
pub fn claim_in_use(claim: &PersistentVolumeClaim, pods: &[Arc<Pod>]) -> bool {
    let name = meta::name(&claim.metadata);
    pods.iter().any(|pod| {
        !pod::is_finished(pod) && pod::node(pod).is_some() && claim_names(pod).iter().any(|n| n == name)
    })
}

/// Lets a deleted claim go once nothing uses it.
pub fn release_claim(claim: &PersistentVolumeClaim, pods: &[Arc<Pod>]) -> Option<Action> {
    let held = meta::has_finalizer(&claim.metadata, CLAIM_PROTECTION);
    if !held || claim_in_use(claim, pods) {
        return None;
    }
    Some(without::<PersistentVolumeClaim>(&claim.metadata, CLAIM_PROTECTION))
}

fn without<K: crate::shell::Object>(meta: &ObjectMeta, finalizer: &str) -> Action {
    let rest: Vec<_> = meta.finalizers.iter().flatten().filter(|f| *f != finalizer).collect();
    let body = json!({"metadata": {"finalizers": rest, "resourceVersion": meta.resource_version}});
    meta::patch::<K>(meta, "", &body)
}

/// The volume's phase, and what becomes of it when its claim is gone.
pub fn plan_volume(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> Vec<Action> {
    let claim = claim.filter(|claim| is_claimed_by(volume, claim));
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let was_bound = reference.is_some_and(|reference| reference.uid.is_some());
    let phase = match claim {
        Some(claim) if is_bound(claim) => "Bound",
        // Reserved, and the claim is about to be bound or not there yet.
        Some(_) => return Vec::new(),
        None if was_bound => "Released",
        None => "Available",
    };
    if volume.metadata.deletion_timestamp.is_some() {
        if phase != "Bound" && meta::has_finalizer(&volume.metadata, VOLUME_PROTECTION) {
            return vec![without::<PersistentVolume>(&volume.metadata, VOLUME_PROTECTION)];
        }
        return Vec::new();
    }
    let mut actions = Vec::new();
    if volume.status.as_ref().and_then(|status| status.phase.as_deref()) != Some(phase) {
        actions.push(meta::patch::<PersistentVolume>(
            &volume.metadata,
            "status",
            &json!({"status": {"phase": phase}}),
        ));
    }
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let ours = meta::annotation(&volume.metadata, super::PROVISIONED_BY) == Some(super::PROVISIONER);
    if phase == "Released" && policy == Some("Delete") && ours {
        // The node removes the directory when the volume is gone.
        actions.push(meta::delete::<PersistentVolume>(&volume.metadata));
    }
    actions
}

/// The claim of a generic ephemeral volume: made for its pod, and going with it.
pub fn ephemeral_claim(key: &Key, pods: &[Arc<Pod>]) -> Option<Action> {
    let (pod, template) = pods.iter().filter(|pod| pod::is_active(pod)).find_map(|pod| {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let template = volumes
            .filter(|volume| format!("{}-{}", meta::name(&pod.metadata), volume.name) == key.name)
            .find_map(|volume| volume.ephemeral.as_ref()?.volume_claim_template.as_ref())?;
        Some((pod, template))
    })?;
    let from = template.metadata.clone().unwrap_or_default();
    let owner: OwnerReference = controller_reference::<Pod>(&pod.metadata);
    Some(meta::create(&PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            labels: from.labels,
            annotations: from.annotations,
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    }))
}
