//! Which volume a claim gets: a free one that fits, or a new directory on the node that the scheduler chose.

use super::{BOUND_BY_US, COMPONENT, PROVISIONED_BY, PROVISIONER, is_bound};
use crate::{
    meta::{self, tell},
    scheduler::SELECTED_NODE,
    shell::{Action, Severity},
};
use k8s_openapi::{
    api::{
        core::v1::{
            HostPathVolumeSource, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
            ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus,
            PersistentVolumeSpec, VolumeNodeAffinity,
        },
        storage::v1::StorageClass,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};
use tombolo_placement::{pods::NodeView, pods::PodView};

pub struct Snapshot {
    pub claim: Arc<PersistentVolumeClaim>,
    pub class: Option<Arc<StorageClass>>,
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// The node that the scheduler chose for the claim.
    pub node: Option<Arc<Node>>,
    pub volume_dir: String,
}

pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    let claim = &snapshot.claim;
    if claim.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let named =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
    if let Some(name) = named {
        let volume = snapshot.volumes.iter().find(|volume| volume.metadata.name.as_deref() == Some(name));
        return match volume {
            Some(volume) if is_claimed_by(volume, claim) || is_free(volume) => bind(claim, volume),
            Some(_) => Vec::new(),
            None if is_bound(claim) => {
                let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
                vec![
                    meta::patch::<PersistentVolumeClaim>(
                        &claim.metadata,
                        "status",
                        &json!({"status": {"phase": "Lost"}}),
                    ),
                    tell::<PersistentVolumeClaim>(
                        &claim.metadata,
                        COMPONENT,
                        Severity::Warning,
                        "ClaimLost",
                        text,
                    ),
                ]
            }
            None => Vec::new(),
        };
    }
    if let Some(volume) = snapshot.volumes.iter().find(|volume| is_claimed_by(volume, claim)) {
        return bind(claim, volume);
    }
    let waits = snapshot.class.as_ref().and_then(|class| class.volume_binding_mode.as_deref())
        == Some("WaitForFirstConsumer");
    if waits && meta::annotation(&claim.metadata, SELECTED_NODE).is_none() {
        return Vec::new();
    }
    if let Some(volume) = best(snapshot) {
        return bind(claim, volume);
    }
    provision(snapshot)
}

fn is_free(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none())
        && volume.metadata.deletion_timestamp.is_none()
}

/// Reserved for this claim, by us or by whoever made the volume.
pub fn is_claimed_by(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else { return false };
    reference.name == claim.metadata.name
        && reference.namespace == claim.metadata.namespace
        && (reference.uid.is_none() || reference.uid == claim.metadata.uid)
}

/// The smallest free volume that fits.
fn best(snapshot: &Snapshot) -> Option<&Arc<PersistentVolume>> {
    let claim = snapshot.claim.spec.as_ref()?;
    let asked = size(claim.resources.as_ref()?.requests.as_ref()?.get("storage")?);
    let fits = |volume: &&Arc<PersistentVolume>| {
        let Some(spec) = &volume.spec else { return false };
        let modes = spec.access_modes.clone().unwrap_or_default();
        let class = |name: &Option<String>| name.clone().unwrap_or_default();
        let selected =
            claim.selector.as_ref().is_none_or(|s| meta::selects(s, volume.metadata.labels.as_ref()));
        is_free(volume)
            && class(&spec.storage_class_name) == class(&claim.storage_class_name)
            && spec.volume_mode.as_deref().unwrap_or("Filesystem")
                == claim.volume_mode.as_deref().unwrap_or("Filesystem")
            && claim.access_modes.iter().flatten().all(|mode| modes.contains(mode))
            && capacity(volume) >= asked
            && selected
            && reachable(volume, snapshot.node.as_deref())
    };
    snapshot.volumes.iter().filter(fits).min_by_key(|volume| (capacity(volume), volume.metadata.name.clone()))
}

fn capacity(volume: &PersistentVolume) -> i128 {
    volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage")).map_or(0, size)
}

fn reachable(volume: &PersistentVolume, node: Option<&Node>) -> bool {
    let mut view = PodView::default();
    view.add_volume(volume);
    let Some(node) = node else { return true };
    let node = NodeView::from(node);
    view.volumes.iter().all(|terms| terms.iter().any(|term| term.matches(&node)))
}

/// Bytes; suffixes as Kubernetes writes them.
pub fn size(quantity: &Quantity) -> i128 {
    let text = quantity.0.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: f64 = match unit {
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0f64.powi(4),
        "Pi" => 1024.0f64.powi(5),
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "m" => 1e-3,
        _ => 1.0,
    };
    (number.parse::<f64>().unwrap_or(0.0) * scale).ceil() as i128
}

/// First the volume points at the claim, then the claim at the volume, then the claim says so.
fn bind(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Vec<Action> {
    let mut actions = Vec::new();
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if reference.is_none_or(|reference| reference.uid != claim.metadata.uid) {
        let mut reference = meta::reference::<PersistentVolumeClaim>(&claim.metadata);
        reference.resource_version = None;
        // The resourceVersion makes sure that no other claim took it.
        let body = json!({
            "metadata": {"resourceVersion": volume.metadata.resource_version, "annotations": {BOUND_BY_US: "yes"}},
            "spec": {"claimRef": reference},
        });
        actions.push(meta::patch::<PersistentVolume>(&volume.metadata, "", &body));
    }
    let named =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) == volume.metadata.name.as_deref();
    if !named || meta::annotation(&claim.metadata, super::BIND_COMPLETED).is_none() {
        let body = json!({
            "metadata": {"annotations": {super::BIND_COMPLETED: "yes", BOUND_BY_US: "yes"}},
            "spec": {"volumeName": volume.metadata.name},
        });
        actions.push(meta::patch::<PersistentVolumeClaim>(&claim.metadata, "", &body));
    }
    let old = claim.status.clone().unwrap_or_default();
    let spec = volume.spec.clone().unwrap_or_default();
    let status = PersistentVolumeClaimStatus {
        phase: Some("Bound".into()),
        access_modes: spec.access_modes,
        capacity: spec.capacity,
        ..old
    };
    actions.extend(meta::status::<PersistentVolumeClaim, _>(&claim.metadata, claim.status.as_ref(), &status));
    actions
}

/// Makes a volume for the claim: a directory on the chosen node, which the node itself creates.
fn provision(snapshot: &Snapshot) -> Vec<Action> {
    let claim = &snapshot.claim;
    let (Some(class), Some(node)) = (&snapshot.class, &snapshot.node) else { return Vec::new() };
    if class.provisioner != PROVISIONER {
        return Vec::new();
    }
    let Some(spec) = &claim.spec else { return Vec::new() };
    let asked = spec
        .resources
        .as_ref()
        .and_then(|r| r.requests.as_ref()?.get("storage").cloned())
        .unwrap_or_default();
    let name = format!("pvc-{}", meta::uid(&claim.metadata));
    let mut reference: ObjectReference = meta::reference::<PersistentVolumeClaim>(&claim.metadata);
    reference.resource_version = None;
    let host = meta::label(&node.metadata, "kubernetes.io/hostname").unwrap_or(meta::name(&node.metadata));
    let on_node = NodeSelectorRequirement {
        key: "kubernetes.io/hostname".into(),
        operator: "In".into(),
        values: Some(vec![host.to_owned()]),
    };
    let annotations = BTreeMap::from([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())]);
    let volume = PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            capacity: Some(BTreeMap::from([("storage".to_owned(), asked)])),
            access_modes: spec.access_modes.clone(),
            volume_mode: spec.volume_mode.clone(),
            storage_class_name: spec.storage_class_name.clone(),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            mount_options: class.mount_options.clone(),
            claim_ref: Some(reference),
            host_path: Some(HostPathVolumeSource {
                path: format!("{}/{name}", snapshot.volume_dir),
                type_: Some("DirectoryOrCreate".into()),
            }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector {
                    node_selector_terms: vec![NodeSelectorTerm {
                        match_expressions: Some(vec![on_node]),
                        match_fields: None,
                    }],
                }),
            }),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    };
    let message = format!("Successfully provisioned volume {name}");
    let told = tell::<PersistentVolumeClaim>(
        &claim.metadata,
        PROVISIONER,
        Severity::Normal,
        "ProvisioningSucceeded",
        message,
    );
    vec![meta::create(&volume), told]
}
