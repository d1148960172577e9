//! Persistent volumes on local directories: binds claims to volumes, makes volumes on the node that the scheduler
//! chose, protects what is in use, and reclaims what was released.
//!
//! With the node it is agreed: a volume that was made here has a `hostPath` of type `DirectoryOrCreate` named
//! `<volume-dir>/pvc-<uid of the claim>` and an affinity to one node. That node creates the directory when a pod uses
//! it, and removes it when the PersistentVolume of that name is gone.

mod bind;
mod reclaim;
#[cfg(test)]
mod tests;

pub use bind::{Snapshot, plan};
pub use reclaim::plan_volume;

use crate::{
    meta, pod,
    shell::{Action, Controller, Enqueue, Key, Shell, Watch, World},
};
use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use serde_json::json;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

pub(crate) const COMPONENT: &str = "persistentvolume-controller";
pub const PROVISIONER: &str = "tombolo.dev/local";
const DEFAULT_CLASS: &str = "local";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_US: &str = "pv.kubernetes.io/bound-by-controller";

/// The claims a pod uses, those of generic ephemeral volumes included.
pub fn claim_names(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{}-{}", meta::name(&pod.metadata), volume.name)),
            (None, None) => None,
        })
        .collect()
}

pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// Whether the claim's class binds only when a pod that uses it has a node.
pub fn waits_for_consumer(world: &World, claim: &PersistentVolumeClaim) -> bool {
    let class = class_of(world, claim);
    class.and_then(|class| class.volume_binding_mode.clone()).as_deref() == Some("WaitForFirstConsumer")
}

fn class_of(world: &World, claim: &PersistentVolumeClaim) -> Option<Arc<StorageClass>> {
    let name = claim.spec.as_ref()?.storage_class_name.as_deref()?;
    world.storage_classes.get(&Key::new("", name))
}

/// Keys: claims by namespace and name, volumes by name alone.
pub struct Volumes {
    pub dir: String,
}

impl Controller for Volumes {
    fn name(&self) -> &'static str {
        "persistentvolume-binder"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::VolumeClaims, Watch::Volumes, Watch::StorageClasses, Watch::Nodes, Watch::Pods]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        let (volumes, pods) = (enqueue.clone(), enqueue.clone());
        let by_claim = world.volumes.clone();
        world.volume_claims.on_change(move |old, new| {
            let Some(claim) = new.or(old) else { return };
            enqueue.add(Key::of(&claim.metadata));
            for volume in by_claim.list().into_iter().filter(|volume| bind::is_claimed_by(volume, claim)) {
                enqueue.add(Key::of(&volume.metadata));
            }
        });
        let claims = world.volume_claims.clone();
        world.volumes.on_change(move |old, new| {
            let Some(volume) = new.or(old) else { return };
            volumes.add(Key::of(&volume.metadata));
            // A new volume may be what a claim waits for; a changed one concerns its own claim.
            let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            match reference {
                Some(reference) => volumes.add(Key::new(
                    reference.namespace.clone().unwrap_or_default(),
                    reference.name.clone().unwrap_or_default(),
                )),
                None => {
                    for claim in claims.list().into_iter().filter(|claim| !is_bound(claim)) {
                        volumes.add(Key::of(&claim.metadata));
                    }
                }
            }
        });
        world.pods.on_change(move |old, new| {
            let Some(pod) = new.or(old) else { return };
            let ended = new.is_none_or(|pod| pod::is_finished(pod));
            let ephemeral =
                pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).any(|v| v.ephemeral.is_some());
            if ended || (old.is_none() && ephemeral) {
                for claim in claim_names(pod) {
                    pods.add(Key::new(meta::namespace(&pod.metadata), claim));
                }
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, _now: Timestamp) -> Vec<Action> {
        if key.namespace.is_empty() {
            let Some(volume) = world.volumes.get(key) else { return Vec::new() };
            let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone());
            let claim = reference.and_then(|r| {
                world
                    .volume_claims
                    .get(&Key::new(r.namespace.unwrap_or_default(), r.name.unwrap_or_default()))
            });
            return plan_volume(&volume, claim.as_deref());
        }
        let Some(claim) = world.volume_claims.get(key) else {
            return reclaim::ephemeral_claim(key, &world.pods.in_namespace(&key.namespace))
                .into_iter()
                .collect();
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return reclaim::release_claim(&claim, &world.pods.in_namespace(&key.namespace))
                .into_iter()
                .collect();
        }
        let chosen = meta::annotation(&claim.metadata, crate::scheduler::SELECTED_NODE);
        let node = chosen.and_then(|name| world.nodes.get(&Key::new("", name)));
        let class = class_of(world, &claim);
        plan(&Snapshot { claim, class, volumes: world.volumes.list(), node, volume_dir: self.dir.clone() })
    }

    fn background(
        self: Arc<Self>,
        shell: Shell,
        _shutdown: CancellationToken,
    ) -> Option<BoxFuture<'static, ()>> {
        Some(offer_default_class(shell).boxed())
    }
}

/// Makes the local class, and the default if there is no other, once at start.
async fn offer_default_class(shell: Shell) {
    const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
    let classes = shell.world.storage_classes.list();
    if classes.iter().any(|class| class.metadata.name.as_deref() == Some(DEFAULT_CLASS)) {
        return;
    }
    let other = classes.iter().any(|class| meta::annotation(&class.metadata, IS_DEFAULT) == Some("true"));
    let class: Result<StorageClass, _> = serde_json::from_value(json!({
        "metadata": {"name": DEFAULT_CLASS, "annotations": {IS_DEFAULT: (!other).to_string()}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }));
    if let Ok(class) = class
        && let Err(error) = shell.act(vec![meta::create(&class)]).await
    {
        tracing::warn!(%error, "cannot make the default storage class");
    }
}
