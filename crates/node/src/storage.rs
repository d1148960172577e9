//! Persistent volumes that are folders of this machine (`local` and `hostPath` volumes).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;

use crate::context::Context;
use crate::disk;
use crate::pod::spec;
use crate::volumes::Claims;

const PATIENCE: Duration = Duration::from_secs(5);

/// The folder behind each claim of a pod. What was found once is kept for a start without the API.
pub(crate) async fn claims(ctx: &Context, pod: &Pod, dir: &Path) -> Result<Claims, String> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let names: Vec<String> =
        volumes.filter_map(|v| v.persistent_volume_claim.as_ref()).map(|c| c.claim_name.clone()).collect();
    if names.is_empty() {
        return Ok(Claims::new());
    }
    let file = dir.join("claims.json");
    let kept: BTreeMap<String, PathBuf> =
        fs::read(&file).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    let mut claims = Claims::new();
    for name in names {
        // A bound claim never moves: what is known need not be asked again.
        let path = match kept.get(&name) {
            Some(path) => path.clone(),
            None => tokio::time::timeout(PATIENCE, find(ctx, spec::namespace(pod), &name))
                .await
                .map_err(|_| "the API does not answer".to_owned())??,
        };
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        claims.insert(name, path);
    }
    if claims != kept {
        let bytes = serde_json::to_vec(&claims).map_err(|e| e.to_string())?;
        disk::replace(&file, &bytes, 0o644).map_err(|e| e.to_string())?;
    }
    Ok(claims)
}

async fn find(ctx: &Context, namespace: &str, claim: &str) -> Result<PathBuf, String> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), namespace);
    let object = api.get(claim).await.map_err(|error| format!("claim {claim}: {error}"))?;
    let volume =
        object.spec.and_then(|s| s.volume_name).ok_or_else(|| format!("claim {claim} is not bound yet"))?;
    let api: Api<PersistentVolume> = Api::all(ctx.client.clone());
    let spec =
        api.get(&volume).await.map_err(|error| format!("volume {volume}: {error}"))?.spec.unwrap_or_default();
    let path = spec.local.map(|l| l.path).or(spec.host_path.map(|h| h.path));
    path.map(PathBuf::from).ok_or_else(|| format!("volume {volume} is neither local nor hostPath"))
}
