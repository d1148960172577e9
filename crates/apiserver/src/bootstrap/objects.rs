//! The objects every cluster has, written once and only where missing.

use std::sync::Arc;

use serde_json::{Value, json};
use tombolo_store::{Expect, StoreError};

use crate::http::status::Result;
use crate::registry::write;
use crate::server::App;

pub async fn ensure(app: &Arc<App>) -> Result<()> {
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        put_missing(app, "", "v1", "namespaces", object).await?;
    }
    Ok(())
}

async fn put_missing(app: &App, group: &str, version: &str, plural: &str, mut object: Value) -> Result<()> {
    let resource = app.registry.built_in.find(group, version, plural).expect("bootstrap kinds are built in");
    let key = resource.key(write::text(&object, "/metadata/namespace"), write::name_of(&object));
    if app.get(&key).await?.is_some() {
        return Ok(());
    }
    let metadata = write::metadata(&mut object);
    metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".into(), write::now().into());
    if resource.rules.generation {
        metadata.insert("generation".into(), 1.into());
    }
    resource.schema.default(&mut object);
    match app.store.put(&key, resource.encode(&object), Expect::Absent, resource.durability).await {
        Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
        Err(error) => Err(app.store_failure(error)),
    }
}
