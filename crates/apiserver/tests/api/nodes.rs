//! What a node may see and say.

use serde_json::json;

use crate::client::Client;

#[tokio::test]
async fn a_node_sees_its_own_pods_and_what_they_use() {
    let client = Client::new().await;
    client
        .post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}}))
        .await
        .expect(201);
    for (pod, node, secret) in [("a", "n1", "s1"), ("b", "n2", "s2")] {
        let env = json!([{"secretRef": {"name": secret}}]);
        let object = json!({"metadata": {"name": pod}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i", "envFrom": env}]}});
        client.post("/api/v1/namespaces/default/pods", object).await.expect(201);
        client
            .post("/api/v1/namespaces/default/secrets", json!({"metadata": {"name": secret}}))
            .await
            .expect(201);
    }
    let node = client.acting("system:node:n1", &["system:nodes"]);
    node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.expect(200);
    node.get("/api/v1/pods").await.expect(403);
    node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2").await.expect(403);
    node.get("/api/v1/namespaces/default/pods/a").await.expect(200);
    node.get("/api/v1/namespaces/default/pods/b").await.expect(403);
    node.get("/api/v1/namespaces/default/secrets/s1").await.expect(200);
    node.get("/api/v1/namespaces/default/secrets/s2").await.expect(403);
    node.get("/api/v1/namespaces/default/secrets").await.expect(403);
    // A name is not a use: it may stand in a label, or belong to another kind.
    let labels = json!({"s2": "s2", "serviceAccountName": "other"});
    client
        .merge("/api/v1/namespaces/default/pods/a", json!({"metadata": {"labels": labels}}))
        .await
        .expect(200);
    node.get("/api/v1/namespaces/default/secrets/s2").await.expect(403);
    node.get("/api/v1/namespaces/default/configmaps/s1").await.expect(403);
    client
        .post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "other"}}))
        .await
        .expect(201);
    let other = "/api/v1/namespaces/default/serviceaccounts/other/token";
    node.post(other, json!({"spec": {"boundObjectRef": {"kind": "Pod", "name": "a"}}})).await.expect(403);
    // Nor does what a node makes up itself give it anything.
    let pods = "/api/v1/namespaces/default/pods";
    let mirror = |name: &str, part: &str, value: serde_json::Value| {
        let annotations = json!({"kubernetes.io/config.mirror": "x"});
        let mut spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]});
        spec[part] = value;
        json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec})
    };
    let volume = |kind: &str, key: &str| json!([{"name": "v", kind: {key: "s2"}}]);
    node.post(pods, mirror("m", "hostNetwork", json!(true))).await.expect(201);
    for (part, value) in [
        ("volumes", volume("secret", "secretName")),
        ("volumes", volume("configMap", "name")),
        ("volumes", volume("persistentVolumeClaim", "claimName")),
        ("serviceAccountName", json!("other")),
    ] {
        node.post(pods, mirror("n", part, value)).await.expect(403);
    }
    client.post(pods, mirror("o", "volumes", volume("configMap", "name"))).await.expect(201);
    node.get("/api/v1/namespaces/default/configmaps/s2").await.expect(403);
    let status = json!({"status": {"phase": "Running"}});
    node.merge("/api/v1/namespaces/default/pods/a/status", status.clone()).await.expect(200);
    node.merge("/api/v1/namespaces/default/pods/b/status", status).await.expect(403);
    // Its own heartbeat, and those of the hubs: without them a pod that may run at most once does not run.
    node.get("/apis/coordination.k8s.io/v1/namespaces/tombolo-system/leases").await.expect(200);
    let lease = json!({"metadata": {"name": "hub-x"}});
    node.post("/apis/coordination.k8s.io/v1/namespaces/tombolo-system/leases", lease).await.expect(403);
    node.get("/apis/coordination.k8s.io/v1/namespaces/default/leases").await.expect(403);
    let token = json!({"spec": {"boundObjectRef": {"kind": "Pod", "name": "a"}}});
    node.post("/api/v1/namespaces/default/serviceaccounts/default/token", token).await.expect(201);
}

#[tokio::test]
async fn a_node_reads_each_thing_that_its_pods_refer_to() {
    let client = Client::new().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    client.post(accounts, json!({"metadata": {"name": "default"}})).await.expect(201);
    let env = |name: &str| {
        json!([
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": format!("{name}-secret"), "key": "k"}}},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": format!("{name}-map"), "key": "k"}}},
        ])
    };
    let container = |name: &str| json!({"name": name, "image": "i", "env": env(name)});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let pod = json!({"metadata": {"name": "a"}, "spec": {
        "nodeName": "n1", "initContainers": [container("init")], "containers": [container("main")],
        "imagePullSecrets": [{"name": "pull-secret"}],
        "volumes": [
            {"name": "s", "secret": {"secretName": "volume-secret"}},
            {"name": "m", "configMap": {"name": "volume-map"}},
            {"name": "p", "projected": {"sources": [{"secret": {"name": "part-secret"}}, {"configMap": {"name": "part-map"}}]}},
            {"name": "c", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi-secret"}}},
            {"name": "v", "persistentVolumeClaim": {"claimName": "claim"}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}},
        ],
    }});
    client.post("/api/v1/namespaces/default/pods", pod).await.expect(201);
    let debug = json!({"spec": {"ephemeralContainers": [container("debug")]}});
    client.merge("/api/v1/namespaces/default/pods/a/ephemeralcontainers", debug).await.expect(200);
    let node = client.acting("system:node:n1", &["system:nodes"]);
    let uses = [
        ("secrets", "init-secret"),
        ("secrets", "main-secret"),
        ("secrets", "debug-secret"),
        ("secrets", "pull-secret"),
        ("secrets", "volume-secret"),
        ("secrets", "part-secret"),
        ("secrets", "csi-secret"),
        ("configmaps", "init-map"),
        ("configmaps", "main-map"),
        ("configmaps", "debug-map"),
        ("configmaps", "volume-map"),
        ("configmaps", "part-map"),
        ("configmaps", "kube-root-ca.crt"),
        ("persistentvolumeclaims", "claim"),
        ("persistentvolumeclaims", "a-e"),
    ];
    for (plural, name) in uses {
        // Allowed, and not there.
        let path = format!("/api/v1/namespaces/default/{plural}/{name}");
        assert_eq!(node.get(&path).await.code, 404, "{path}");
        assert_eq!(client.acting("system:node:n2", &["system:nodes"]).get(&path).await.code, 403, "{path}");
    }
    for (plural, name) in
        [("secrets", "s"), ("configmaps", "m"), ("persistentvolumeclaims", "e"), ("secrets", "main")]
    {
        node.get(&format!("/api/v1/namespaces/default/{plural}/{name}")).await.expect(403);
    }
    let status = json!({"status": {"phase": "Bound"}});
    for (name, code) in [("claim", 404), ("other", 403)] {
        let path = format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}/status");
        node.merge(&path, status.clone()).await.expect(code);
    }
}

#[tokio::test]
async fn a_node_keeps_to_its_own_slices_of_devices() {
    let client = Client::new().await;
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let slice = |name: &str, node: &str| {
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        json!({"metadata": {"name": name}, "spec": {"driver": "d.example.com", "nodeName": node, "pool": pool}})
    };
    client.post(slices, slice("b", "n2")).await.expect(201);
    let node = client.acting("system:node:n1", &["system:nodes"]);
    node.post(slices, slice("a", "n1")).await.expect(201);
    node.post(slices, slice("c", "n2")).await.expect(403);
    node.get(&format!("{slices}/a")).await.expect(200);
    node.get(&format!("{slices}/b")).await.expect(403);
    node.delete(&format!("{slices}/b")).await.expect(403);
    node.delete(slices).await.expect(403);
    node.get(slices).await.expect(403);
    node.get(&format!("{slices}?fieldSelector=spec.nodeName%3Dn1")).await.expect(200);
    node.merge(&format!("{slices}/a"), json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    node.delete(&format!("{slices}?fieldSelector=spec.nodeName%3Dn1")).await.expect(200);
    client.get(&format!("{slices}/b")).await.expect(200);
}

#[tokio::test]
async fn a_node_reports_of_its_pods_and_claims_without_making_them_others() {
    let client = Client::new().await;
    let all = "/api/v1/namespaces/default";
    client
        .post(&format!("{all}/serviceaccounts"), json!({"metadata": {"name": "default"}}))
        .await
        .expect(201);
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    client.post(&format!("{all}/persistentvolumeclaims"), claim).await.expect(201);
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let spec = json!({"nodeName": "n1", "containers": [{"name": "c", "image": "i"}], "volumes": volumes});
    client.post(&format!("{all}/pods"), json!({"metadata": {"name": "a"}, "spec": spec})).await.expect(201);
    let node = client.acting("system:node:n1", &["system:nodes"]);

    let pod = format!("{all}/pods/a/status");
    node.merge(&pod, json!({"status": {"message": "m"}})).await.expect(200);
    let labels = json!({"metadata": {"labels": {"app": "bank"}}, "status": {"message": "n"}});
    node.merge(&pod, labels.clone()).await.expect(403);
    client.merge(&pod, labels).await.expect(200);
    node.merge(&pod, json!({"status": {"message": "o"}})).await.expect(200);

    let claim = format!("{all}/persistentvolumeclaims/data/status");
    let capacity = json!({"status": {"capacity": {"storage": "2Gi"}}});
    node.merge(&claim, capacity).await.expect(200);
    for wrong in [
        json!({"metadata": {"finalizers": null}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "u"}]}}),
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"status": {"phase": "Lost"}}),
    ] {
        assert_eq!(node.merge(&claim, wrong.clone()).await.code, 403, "{wrong}");
    }
    let kept = client.get(&format!("{all}/persistentvolumeclaims/data")).await.expect(200);
    assert_eq!(kept["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    assert_eq!(kept["status"]["capacity"]["storage"], "2Gi");
}
