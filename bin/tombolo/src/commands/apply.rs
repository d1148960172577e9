//! Server-side apply of a manifest, for the commands that bring their own objects.

use anyhow::{Context, Result};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use serde::Deserialize;

const MANAGER: &str = "tombolo-cli";

/// Applies every document of a YAML manifest, in order, into its namespace or `default`.
pub async fn manifest(client: &kube::Client, yaml: &str) -> Result<()> {
    for document in serde_yaml_ng::Deserializer::from_str(yaml) {
        let object =
            DynamicObject::deserialize(document).context("the manifest is not a Kubernetes object")?;
        let types = object.types.clone().context("an object in the manifest has no kind")?;
        let name = object
            .metadata
            .name
            .clone()
            .with_context(|| format!("a {} in the manifest has no name", types.kind))?;
        let kind = GroupVersionKind::try_from(&types)
            .with_context(|| format!("{:?} is no API version", types.api_version))?;
        let (resource, capabilities) = pinned_kind(client, &kind)
            .await
            .with_context(|| format!("the server does not know {}", types.kind))?;
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => {
                let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
                Api::namespaced_with(client.clone(), namespace, &resource)
            }
        };
        api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object))
            .await
            .with_context(|| format!("cannot apply {} {name}", types.kind))?;
    }
    Ok(())
}
