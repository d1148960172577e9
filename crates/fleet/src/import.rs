//! Taking in a workload that runs at a site already, without a restart; and giving one back.

use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error};
use serde_json::{Value, json};
use tombolo_api::names;

use crate::intent::intent;
use crate::object::Key;
use crate::references::named;
use crate::watches::as_json;

/// Makes the hub's copy of an object at `site`, with what it names, and a Placement that keeps it there. The site's agent
/// then takes over what exists: same template, so nothing restarts.
pub async fn import(hub: &Client, at_site: &Client, site: &str, key: &Key) -> Result<(), Error> {
    let root = as_json(api(at_site, key).get(&key.name).await?, &key.api_version, &key.kind);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": key.namespace}});
    crate::install::apply(hub, namespace).await?;
    for need in named(&root) {
        if let Some(object) = api(at_site, &need).get_opt(&need.name).await? {
            let object = as_json(object, &need.api_version, &need.kind);
            create(hub, &need, intent(&object)).await?;
        }
    }
    // The Placement comes first, so that the default one never sees the object.
    let name = format!("import-{}-{}", key.kind.to_lowercase(), key.name);
    create(
        hub,
        &Key::new("tombolo.dev/v1alpha1", "Placement", &key.namespace, &name),
        placement(&name, site, key),
    )
    .await?;
    let mut object = intent(&root);
    object["metadata"]["annotations"][names::ADOPT_ANNOTATION] = json!("true");
    object["metadata"]["annotations"][names::PLACEMENT_ANNOTATION] = json!(name);
    create(hub, key, object).await
}

fn placement(name: &str, site: &str, key: &Key) -> Value {
    json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Placement", "metadata": {"name": name, "namespace": key.namespace},
        "spec": {"objects": [{"apiVersion": key.api_version, "kind": key.kind, "name": key.name}],
            "sites": {"names": [site]}, "adopt": true, "failover": {"stay": true}}})
}

/// The hub stops managing an object; what runs at the sites stays there as it is.
pub async fn give_back(hub: &Client, key: &Key) -> Result<(), Error> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {names::GIVE_BACK_ANNOTATION: "true"}}}));
    api(hub, key).patch(&key.name, &PatchParams::default(), &patch).await.map(drop)
}

fn api(client: &Client, key: &Key) -> Api<DynamicObject> {
    let (group, version) = key.api_version.split_once('/').unwrap_or(("", &key.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &key.kind));
    if key.namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &key.namespace, &resource)
    }
}

/// What is there already stays as it is.
async fn create(client: &Client, key: &Key, object: Value) -> Result<(), Error> {
    let object: DynamicObject = serde_json::from_value(object).map_err(Error::SerdeError)?;
    match api(client, key).create(&PostParams::default(), &object).await {
        Err(Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}
