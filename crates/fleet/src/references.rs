//! What a pod template names, and therefore must be at the site before the pods start.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::object::{Key, Object, strings, template_pointer, text};

/// Keys of everything the root's pods name, by name. Services that select the pods are found by [`selecting_services`].
pub fn named(root: &Value) -> BTreeSet<Key> {
    let mut keys = BTreeSet::new();
    let namespace = text(root, "/metadata/namespace");
    let kind = text(root, "/kind");
    let mut add = |kind: &str, name: &str| {
        if !name.is_empty() {
            keys.insert(Key::new("v1", kind, namespace, name));
        }
    };
    if kind == "StatefulSet" {
        add("Service", text(root, "/spec/serviceName"));
    }
    if let Some(spec) = template_pointer(kind).and_then(|p| root.pointer(&format!("{p}/spec"))) {
        pod_spec(spec, &mut add);
    }
    if kind == "ServiceAccount" || kind == "Ingress" {
        for entry in list(root, "/imagePullSecrets") {
            add("Secret", text(entry, "/name"));
        }
        for entry in list(root, "/spec/tls") {
            add("Secret", text(entry, "/secretName"));
        }
    }
    // The default account is in every namespace of every cluster.
    keys.retain(|key| !(key.kind == "ServiceAccount" && key.name == "default"));
    keys
}

fn pod_spec(spec: &Value, add: &mut impl FnMut(&str, &str)) {
    add("ServiceAccount", text(spec, "/serviceAccountName"));
    for secret in list(spec, "/imagePullSecrets") {
        add("Secret", text(secret, "/name"));
    }
    for volume in list(spec, "/volumes") {
        add("ConfigMap", text(volume, "/configMap/name"));
        add("Secret", text(volume, "/secret/secretName"));
        add("PersistentVolumeClaim", text(volume, "/persistentVolumeClaim/claimName"));
        for source in list(volume, "/projected/sources") {
            add("ConfigMap", text(source, "/configMap/name"));
            add("Secret", text(source, "/secret/name"));
        }
        for driver in ["azureFile", "cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos", "csi"] {
            add("Secret", text(volume, &format!("/{driver}/secretRef/name")));
            add("Secret", text(volume, &format!("/{driver}/nodePublishSecretRef/name")));
        }
    }
    for containers in ["/containers", "/initContainers"] {
        for container in list(spec, containers) {
            for source in list(container, "/envFrom") {
                add("ConfigMap", text(source, "/configMapRef/name"));
                add("Secret", text(source, "/secretRef/name"));
            }
            for env in list(container, "/env") {
                add("ConfigMap", text(env, "/valueFrom/configMapKeyRef/name"));
                add("Secret", text(env, "/valueFrom/secretKeyRef/name"));
            }
        }
    }
}

/// Services of the namespace whose selector fits the root's pods.
pub fn selecting_services<'a>(
    root: &Value,
    services: impl Iterator<Item = (&'a Key, &'a Object)>,
) -> BTreeSet<Key> {
    let Some(pointer) = template_pointer(text(root, "/kind")) else { return BTreeSet::new() };
    let labels = strings(root, &format!("{pointer}/metadata/labels"));
    let fits = |service: &Value| {
        let selector = strings(service, "/spec/selector");
        !selector.is_empty() && selector.iter().all(|(k, v)| labels.get(k) == Some(v))
    };
    services.filter(|(_, service)| fits(service)).map(|(key, _)| key.clone()).collect()
}

/// Do the pods keep data on their node's own disk? Claims of a StatefulSet and claims that are named count as such
/// when nothing says that their storage is shared between nodes.
pub fn local_volumes(root: &Value, claim: impl Fn(&str) -> Option<Object>) -> bool {
    let shared = |claim: &Value| {
        list(claim, "/spec/accessModes").iter().any(|m| m == "ReadWriteMany" || m == "ReadOnlyMany")
    };
    if list(root, "/spec/volumeClaimTemplates").iter().any(|template| !shared(template)) {
        return true;
    }
    let Some(pointer) = template_pointer(text(root, "/kind")) else { return false };
    list(root, &format!("{pointer}/spec/volumes")).iter().any(|volume| {
        let name = text(volume, "/persistentVolumeClaim/claimName");
        volume.get("hostPath").is_some() || (!name.is_empty() && claim(name).is_none_or(|c| !shared(&c)))
    })
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    fn deployment() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"template": {"metadata": {"labels": {"app": "web", "x": "y"}}, "spec": {
                "serviceAccountName": "runner", "imagePullSecrets": [{"name": "pull"}],
                "volumes": [{"configMap": {"name": "files"}}, {"secret": {"secretName": "tls"}}, {"emptyDir": {}},
                    {"persistentVolumeClaim": {"claimName": "data"}}, {"projected": {"sources": [{"secret": {"name": "proj"}}]}}],
                "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "init"}}]}],
                "containers": [{"name": "c", "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "a"}}}]}]}}}})
    }

    #[test]
    fn everything_a_pod_template_names_is_found() {
        let found: Vec<String> =
            named(&deployment()).into_iter().map(|k| format!("{}/{}", k.kind, k.name)).collect();
        assert_eq!(
            found,
            [
                "ConfigMap/env",
                "ConfigMap/files",
                "PersistentVolumeClaim/data",
                "Secret/init",
                "Secret/proj",
                "Secret/pull",
                "Secret/tls",
                "ServiceAccount/runner"
            ]
        );
    }

    #[test]
    fn services_that_select_the_pods_travel_and_others_do_not() {
        let service = |selector: Value| Arc::new(json!({"spec": {"selector": selector}}));
        let all = [
            (Key::new("v1", "Service", "shop", "yes"), service(json!({"app": "web"}))),
            (Key::new("v1", "Service", "shop", "other"), service(json!({"app": "db"}))),
            (Key::new("v1", "Service", "shop", "none"), service(json!(null))),
        ];
        let found = selecting_services(&deployment(), all.iter().map(|(k, o)| (k, o)));
        assert_eq!(found.into_iter().map(|k| k.name).collect::<Vec<_>>(), ["yes"]);
    }

    #[test]
    fn a_claim_that_is_not_shared_binds_to_its_site() {
        let claim = |mode: &str| Some(Arc::new(json!({"spec": {"accessModes": [mode]}})));
        assert!(local_volumes(&deployment(), |_| claim("ReadWriteOnce")));
        assert!(!local_volumes(&deployment(), |_| claim("ReadWriteMany")));
        let plain =
            json!({"kind": "Deployment", "spec": {"template": {"spec": {"volumes": [{"emptyDir": {}}]}}}});
        assert!(!local_volumes(&plain, |_| None));
    }
}
