//! The objects pods refer to: fetched from the API, and kept on disk so that a node cut off from it can still
//! start its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Volume};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::disk;

/// How long a pod waits for the API before what is on disk is used.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Error)]
pub enum ObjectsError {
    #[error("{kind} \"{name}\" not found")]
    Missing { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {name}")]
    MissingKey { kind: &'static str, name: String, key: String },
    #[error("fetch {kind} {name}: {reason}")]
    Fetch { kind: &'static str, name: String, reason: String },
    #[error("{0}")]
    Field(String),
}

/// Everything one pod refers to. `None`: asked for and not there.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sources {
    pub config_maps: BTreeMap<String, Option<ConfigMap>>,
    pub secrets: BTreeMap<String, Option<Secret>>,
}

impl Sources {
    pub fn config_map(&self, name: &str) -> Option<&ConfigMap> {
        self.config_maps.get(name)?.as_ref()
    }

    pub fn secret(&self, name: &str) -> Option<&Secret> {
        self.secrets.get(name)?.as_ref()
    }

    pub fn load(pod_dir: &Path) -> Option<Sources> {
        serde_json::from_slice(&fs::read(pod_dir.join("objects.json")).ok()?).ok()
    }

    fn save(&self, pod_dir: &Path) {
        let path = pod_dir.join("objects.json");
        let Ok(bytes) = serde_json::to_vec(self) else { return };
        if let Err(error) = disk::replace_if_changed(&path, &bytes, 0o600) {
            tracing::warn!(path = %path.display(), %error, "the pod's objects could not be kept for a start without the API");
        }
    }

    /// Fetches all a pod refers to. Without the API, what was kept is used.
    pub async fn gather(client: &Client, pod: &Pod, pod_dir: &Path) -> Result<Sources, ObjectsError> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let names = referenced(pod);
        if names.config_maps.is_empty() && names.secrets.is_empty() {
            return Ok(Sources::default());
        }
        let fetch = async {
            let mut sources = Sources::default();
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            for name in &names.config_maps {
                let found = api.get_opt(name).await.map_err(fetch_error("configmap", name))?;
                sources.config_maps.insert(name.clone(), found);
            }
            let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
            for name in &names.secrets {
                let found = api.get_opt(name).await.map_err(fetch_error("secret", name))?;
                sources.secrets.insert(name.clone(), found);
            }
            Ok(sources)
        };
        let timeout = || ObjectsError::Fetch {
            kind: "objects",
            name: "of the pod".into(),
            reason: "the API does not answer".into(),
        };
        let fetched = tokio::time::timeout(PATIENCE, fetch).await.unwrap_or_else(|_| Err(timeout()));
        match fetched {
            Ok(sources) => {
                sources.save(pod_dir);
                Ok(sources)
            }
            Err(error) => Sources::load(pod_dir).ok_or(error),
        }
    }
}

fn fetch_error(kind: &'static str, name: &str) -> impl FnOnce(kube::Error) -> ObjectsError {
    let name = name.to_owned();
    move |error| ObjectsError::Fetch { kind, name, reason: error.to_string() }
}

#[derive(Debug, Default, PartialEq)]
struct Names {
    config_maps: BTreeSet<String>,
    secrets: BTreeSet<String>,
}

fn referenced(pod: &Pod) -> Names {
    let mut names = Names::default();
    let Some(spec) = &pod.spec else { return names };
    let ephemeral = crate::pod::spec::ephemeral(pod);
    let lasting = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for container in lasting.chain(&ephemeral) {
        for source in container.env_from.iter().flatten() {
            names.config_maps.extend(source.config_map_ref.iter().map(|r| r.name.clone()));
            names.secrets.extend(source.secret_ref.iter().map(|r| r.name.clone()));
        }
        for from in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            names.config_maps.extend(from.config_map_key_ref.iter().map(|r| r.name.clone()));
            names.secrets.extend(from.secret_key_ref.iter().map(|r| r.name.clone()));
        }
    }
    names.secrets.extend(spec.image_pull_secrets.iter().flatten().map(|r| r.name.clone()));
    for volume in spec.volumes.iter().flatten() {
        volume_names(volume, &mut names);
    }
    names
}

fn volume_names(volume: &Volume, names: &mut Names) {
    names.config_maps.extend(volume.config_map.iter().map(|c| c.name.clone()));
    names.secrets.extend(volume.secret.iter().filter_map(|s| s.secret_name.clone()));
    for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        names.config_maps.extend(source.config_map.iter().map(|c| c.name.clone()));
        names.secrets.extend(source.secret.iter().map(|s| s.name.clone()));
    }
}
