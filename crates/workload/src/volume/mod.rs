//! Persistent volumes on local directories: binds claims to volumes, makes volumes on the node that the scheduler chose.

use crate::{
    meta,
    shell::{Key, World},
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

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
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
    let class = world.storage_classes.get(&Key::new("", class));
    class.and_then(|class| class.volume_binding_mode.clone()).as_deref() == Some("WaitForFirstConsumer")
}
