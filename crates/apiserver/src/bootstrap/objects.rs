//! The objects every cluster has, written once and only where missing.

use std::collections::HashSet;
use std::sync::Arc;

use futures::stream::{self, TryStreamExt};
use serde_json::{Value, json};
use tombolo_store::{Expect, Range, StoreError};

use super::roles;
use crate::http::status::Result;
use crate::registry::write;
use crate::server::App;

/// Writes in flight at once: enough that one sync carries them all.
const TOGETHER: usize = 64;

struct Seed {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    object: Value,
}

pub async fn ensure(app: &Arc<App>) -> Result<()> {
    let mut seeds = basics(app);
    seeds.extend(roles::seeds().into_iter().map(|seed| Seed {
        group: "rbac.authorization.k8s.io",
        version: "v1",
        plural: seed.plural,
        object: seed.object,
    }));
    let existing = existing(app, &seeds).await?;
    stream::iter(seeds.into_iter().map(Ok))
        .try_for_each_concurrent(TOGETHER, |seed| put_missing(app, seed, &existing))
        .await
}

/// The keys that are already there, by one range per kind.
async fn existing(app: &App, seeds: &[Seed]) -> Result<HashSet<Arc<str>>> {
    let mut places: Vec<String> = Vec::new();
    for seed in seeds {
        let row = app.registry.built_in.find(seed.group, seed.version, seed.plural);
        let place = &row.expect("bootstrap kinds are built in").place;
        if !places.contains(place) {
            places.push(place.clone());
        }
    }
    let mut keys = HashSet::new();
    for place in &places {
        let page = app.store.range(Range::all(place)).await.map_err(|e| app.store_failure(e))?;
        keys.extend(page.records.into_iter().map(|r| r.key));
    }
    Ok(keys)
}

async fn put_missing(app: &App, seed: Seed, existing: &HashSet<Arc<str>>) -> Result<()> {
    let resource = app
        .registry
        .built_in
        .find(seed.group, seed.version, seed.plural)
        .expect("bootstrap kinds are built in");
    let mut object = seed.object;
    let key = resource.key(write::text(&object, "/metadata/namespace"), write::name_of(&object));
    if existing.contains(key.as_str()) {
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

fn basics(app: &App) -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |group, version, plural, object| seeds.push(Seed { group, version, plural, object });
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        add("", "v1", "namespaces", object);
    }
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
    {
        let object = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name, "generation": 1},
            "value": value, "preemptionPolicy": "PreemptLowerPriority",
            "description": "For pods that the cluster needs to work; not for user workloads.",
        });
        add("scheduling.k8s.io", "v1", "priorityclasses", object);
    }
    let cidr = app.config.service_cidr;
    let ready = json!([{
        "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready",
        "lastTransitionTime": write::now(),
    }]);
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": [cidr.to_string()]}, "status": {"conditions": ready},
    });
    add("networking.k8s.io", "v1", "servicecidrs", object);
    let address = cidr.first().to_string();
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
        },
        "status": {"loadBalancer": {}},
    });
    add("", "v1", "services", object);
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": address, "labels": crate::kinds::services::claim_labels()},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "kubernetes"}},
    });
    add("networking.k8s.io", "v1", "ipaddresses", object);
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {"client-ca-file": app.keys.ca.certificate},
    });
    add("", "v1", "configmaps", object);
    seeds
}
