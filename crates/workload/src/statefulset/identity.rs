//! A numbered pod's name, labels and volume claims.

use super::{COMPONENT, Snapshot, ordinal};
use crate::{
    meta::{self, controller_reference, tell},
    pod,
    revision::HASH,
    shell::{Action, Severity},
};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use serde_json::json;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// Makes the pod of this number, after the claims it needs.
pub fn create(
    snapshot: &Snapshot,
    ordinal: i32,
    (template, revision): (PodTemplateSpec, String),
    actions: &mut Vec<Action>,
) {
    let set = &snapshot.set;
    let set_name = meta::name(&set.metadata);
    let name = format!("{set_name}-{ordinal}");
    let owner = controller_reference::<StatefulSet>(&set.metadata);
    let mut pod = pod::from_template(&template, meta::namespace(&set.metadata), owner, String::new());
    pod.metadata.generate_name = Some(format!("{set_name}-"));
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.into(), name.clone());
    labels.insert(POD_INDEX.into(), ordinal.to_string());
    labels.insert(HASH.into(), revision);
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name.clone());
    spec.subdomain = snapshot.spec().service_name.clone().filter(|name| !name.is_empty());
    for template in snapshot.spec().volume_claim_templates.iter().flatten() {
        let volume = meta::name(&template.metadata).to_owned();
        let claim_name = claim_name(&volume, set_name, ordinal);
        let volumes = spec.volumes.get_or_insert_default();
        volumes.retain(|existing| existing.name != volume);
        volumes.push(Volume {
            name: volume,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name.clone(),
                read_only: Some(false),
            }),
            ..Volume::default()
        });
        if !snapshot.claims.contains_key(&claim_name) {
            actions.push(new_claim(snapshot, template, claim_name));
        }
    }
    actions.push(meta::create(&pod));
    let message = format!("create Pod {name} in StatefulSet {set_name} successful");
    actions.push(tell::<StatefulSet>(
        &set.metadata,
        COMPONENT,
        Severity::Normal,
        "SuccessfulCreate",
        message,
    ));
}

pub fn claim_name(volume: &str, set: &str, ordinal: i32) -> String {
    format!("{volume}-{set}-{ordinal}")
}

fn new_claim(snapshot: &Snapshot, template: &PersistentVolumeClaim, name: String) -> Action {
    let mut claim = template.clone();
    claim.metadata.name = Some(name);
    claim.metadata.namespace = snapshot.set.metadata.namespace.clone();
    let labels = claim.metadata.labels.get_or_insert_default();
    labels.extend(snapshot.spec().selector.match_labels.clone().unwrap_or_default());
    claim.status = None;
    if retention(snapshot).0 {
        claim.metadata.owner_references = Some(vec![owner(snapshot)]);
    }
    meta::create(&claim)
}

/// Whether claims go with the set, and whether they go when the set shrinks.
fn retention(snapshot: &Snapshot) -> (bool, bool) {
    let policy = snapshot.spec().persistent_volume_claim_retention_policy.as_ref();
    let deletes = |value: Option<&String>| value.map(String::as_str) == Some("Delete");
    (
        deletes(policy.and_then(|p| p.when_deleted.as_ref())),
        deletes(policy.and_then(|p| p.when_scaled.as_ref())),
    )
}

fn owner(snapshot: &Snapshot) -> OwnerReference {
    OwnerReference {
        block_owner_deletion: None,
        ..controller_reference::<StatefulSet>(&snapshot.set.metadata)
    }
}

/// Gives existing claims the owner that the retention policy asks for, or takes it away.
pub fn keep_claims(snapshot: &Snapshot) -> Vec<Action> {
    let (with_set, _) = retention(snapshot);
    let set_uid = meta::uid(&snapshot.set.metadata);
    let mut actions = Vec::new();
    for number in snapshot.pods.keys() {
        for template in snapshot.spec().volume_claim_templates.iter().flatten() {
            let name =
                claim_name(meta::name(&template.metadata), meta::name(&snapshot.set.metadata), *number);
            let Some(claim) = snapshot.claims.get(&name) else { continue };
            let owners = claim.metadata.owner_references.clone().unwrap_or_default();
            let has = owners.iter().any(|owner| owner.uid == set_uid);
            if has == with_set {
                continue;
            }
            let mut owners: Vec<_> = owners.into_iter().filter(|owner| owner.uid != set_uid).collect();
            if with_set {
                owners.push(owner(snapshot));
            }
            let body = json!({"metadata": {"ownerReferences": owners}});
            actions.push(meta::patch::<PersistentVolumeClaim>(&claim.metadata, "", &body));
        }
    }
    actions
}

/// Deletes a pod; if it goes because the set shrinks and the policy says so, its claims go with it.
pub fn remove(snapshot: &Snapshot, pod: &Pod, actions: &mut Vec<Action>) {
    let set_name = meta::name(&snapshot.set.metadata);
    let name = meta::name(&pod.metadata);
    let number = ordinal(set_name, name).unwrap_or(0);
    if retention(snapshot).1 && !snapshot.ordinals().contains(&number) {
        for template in snapshot.spec().volume_claim_templates.iter().flatten() {
            let claim = claim_name(meta::name(&template.metadata), set_name, number);
            if let Some(claim) = snapshot.claims.get(&claim) {
                let owner = OwnerReference {
                    controller: None,
                    block_owner_deletion: None,
                    ..controller_reference::<Pod>(&pod.metadata)
                };
                let body = json!({"metadata": {"ownerReferences": [owner]}});
                actions.push(meta::patch::<PersistentVolumeClaim>(&claim.metadata, "", &body));
            }
        }
    }
    actions.push(meta::delete::<Pod>(&pod.metadata));
    let message = format!("delete Pod {name} in StatefulSet {set_name} successful");
    let about = &snapshot.set.metadata;
    actions.push(tell::<StatefulSet>(about, COMPONENT, Severity::Normal, "SuccessfulDelete", message));
}
