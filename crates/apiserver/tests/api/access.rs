use http::Method;
use serde_json::json;

use crate::client::Client;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn nothing_but_health_and_version_is_open_to_strangers() {
    let client = Client { identity: None, ..Client::new().await };
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(client.get(path).await.code, 200, "{path}");
    }
    for path in [MAPS, "/api/v1/secrets", "/metrics", "/apis", "/openapi/v3"] {
        assert_eq!(client.get(path).await.code, 403, "{path}");
    }
    client.with_header("authorization", "Bearer nonsense").get("/healthz").await.expect(401);
}

#[tokio::test]
async fn no_kind_can_be_read_or_written_by_a_stranger() {
    let client = Client::new().await;
    let stranger = Client { identity: None, ..client.clone() };
    let mut versions = vec!["/api/v1".to_owned()];
    for group in client.get("/apis").await.expect(200)["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            versions.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    let mut tried = 0;
    for version in versions {
        for resource in client.get(&version).await.expect(200)["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            let (plural, sub) = name.split_once('/').map_or((name, None), |(p, s)| (p, Some(s)));
            let scope = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
            let collection = format!("{version}{scope}/{plural}");
            let one = match sub {
                Some(sub) => format!("{collection}/x/{sub}"),
                None => format!("{collection}/x"),
            };
            for (method, path) in [
                (Method::GET, &collection),
                (Method::POST, &collection),
                (Method::DELETE, &collection),
                (Method::GET, &one),
                (Method::POST, &one),
                (Method::PUT, &one),
                (Method::PATCH, &one),
                (Method::DELETE, &one),
            ] {
                let answer = stranger.send(method.clone(), path, "application/json", "{}").await;
                assert_eq!(answer.code, 403, "{method} {path}: {}", answer.text);
                tried += 1;
            }
        }
    }
    assert!(tried > 800, "only {tried} requests were tried");
}

#[tokio::test]
async fn a_right_takes_effect_with_the_next_request() {
    let client = Client::new().await;
    let user = client.acting("eve", &[]);
    let denied = user.get(MAPS).await.expect(403);
    assert_eq!(
        denied["message"],
        "configmaps is forbidden: User \"eve\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let binding = json!({
        "metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    client.post(bindings, binding).await.expect(201);
    user.get(MAPS).await.expect(200);
    user.post(MAPS, json!({"metadata": {"name": "a"}})).await.expect(403);
    user.get("/api/v1/namespaces/kube-system/configmaps").await.expect(403);
    client.delete(&format!("{bindings}/b")).await.expect(200);
    user.get(MAPS).await.expect(403);
}

#[tokio::test]
async fn nobody_gives_away_rights_they_lack() {
    let client = Client::new().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let role = json!({"metadata": {"name": "role-maker"}, "rules": [
        {"verbs": ["create", "patch"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
    ]});
    client.post(roles, role).await.expect(201);
    let binding = json!({
        "metadata": {"name": "b"}, "subjects": [{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "role-maker"},
    });
    client.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    let eve = client.acting("eve", &[]);
    let rule = |resource: &str| json!([{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]);
    eve.post(roles, json!({"metadata": {"name": "fine"}, "rules": rule("pods")})).await.expect(201);
    eve.post(roles, json!({"metadata": {"name": "greedy"}, "rules": rule("secrets")})).await.expect(403);
    // A role that gathers others can come to hold everything, so only who may do everything touches one.
    let gathers = |name: &str| {
        let selectors = json!([{"matchLabels": {"x": "y"}}]);
        json!({"metadata": {"name": name}, "aggregationRule": {"clusterRoleSelectors": selectors}})
    };
    let refused = eve.post(roles, gathers("all")).await.expect(403);
    let why = "must have cluster-admin privileges to use an aggregationRule";
    assert!(refused["message"].as_str().unwrap().ends_with(why), "{refused}");
    client.post(roles, gathers("all")).await.expect(201);
    for change in [json!({"aggregationRule": null}), json!({"metadata": {"labels": {"a": "b"}}})] {
        eve.merge(&format!("{roles}/all"), change).await.expect(403);
    }
    eve.merge(&format!("{roles}/fine"), gathers("fine")).await.expect(403);
    // A label is enough to have another role gather what this one gives.
    client.post(roles, json!({"metadata": {"name": "strong"}, "rules": rule("secrets")})).await.expect(201);
    let gathered = json!({"metadata": {"labels": {"x": "y"}}});
    eve.merge(&format!("{roles}/strong"), gathered.clone()).await.expect(403);
    eve.merge(&format!("{roles}/fine"), gathered).await.expect(200);
    // What only lets it be deleted is not asked about.
    let finalizers = json!({"metadata": {"finalizers": ["example.com/f"]}});
    eve.merge(&format!("{roles}/strong"), finalizers).await.expect(200);
    for (user, role) in [("ann", "cluster-admin"), ("bob", "escalator")] {
        let may =
            json!([{"verbs": ["create", "escalate"], "apiGroups": ["*"], "resources": ["clusterroles"]}]);
        client.post(roles, json!({"metadata": {"name": role}, "rules": may})).await;
        let binding = json!({
            "metadata": {"name": user}, "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        });
        client.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
        client.acting(user, &[]).post(roles, gathers(user)).await.expect(201);
    }
}

#[tokio::test]
async fn impersonation_needs_its_own_right_and_then_acts_as_the_other() {
    let client = Client::new().await;
    let as_eve = client.with_header("impersonate-user", "eve").with_header("impersonate-group", "g");
    let me = as_eve.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "eve");
    assert_eq!(me["status"]["userInfo"]["groups"], json!(["g", "system:authenticated"]));
    as_eve.get(MAPS).await.expect(403);
    let mallory = client.acting("mallory", &[]).with_header("impersonate-user", "admin");
    mallory.get("/version").await.expect(403);
}

#[tokio::test]
async fn a_token_lives_and_dies_with_its_account() {
    let client = Client::new().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    client.post(accounts, json!({"metadata": {"name": "bob"}})).await.expect(201);
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}});
    let answer = client.post(&format!("{accounts}/bob/token"), request.clone()).await.expect(201);
    let token = answer["status"]["token"].as_str().unwrap().to_owned();
    let review = json!({"spec": {"token": token}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let status = client.post(reviews, review.clone()).await.expect(201)["status"].clone();
    assert_eq!(status["authenticated"], true);
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:bob");
    let bob =
        Client { identity: None, ..client.clone() }.with_header("authorization", &format!("Bearer {token}"));
    let me = bob.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "system:serviceaccount:default:bob");
    client.delete(&format!("{accounts}/bob")).await.expect(200);
    client.post(accounts, json!({"metadata": {"name": "bob"}})).await.expect(201);
    let status = client.post(reviews, review).await.expect(201)["status"].clone();
    assert_eq!(status, json!({"user": {}, "error": "invalid bearer token"}));
    bob.get("/version").await.expect(401);
}

#[tokio::test]
async fn a_token_for_others_is_no_key_to_this_server() {
    let client = Client::new().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    client.post(accounts, json!({"metadata": {"name": "bob"}})).await.expect(201);
    let request = json!({"spec": {"audiences": ["vault"]}});
    let answer = client.post(&format!("{accounts}/bob/token"), request).await.expect(201);
    let bearer = format!("Bearer {}", answer["status"]["token"].as_str().unwrap());
    let bob = Client { identity: None, ..client.clone() }.with_header("authorization", &bearer);
    bob.get("/version").await.expect(401);
}

#[tokio::test]
async fn a_bootstrap_token_works_until_it_expires() {
    let client = Client::new().await;
    let secret = |expires: &str| {
        json!({
            "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": "abcdef", "token-secret": "0123456789abcdef", "expiration": expires,
                "usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:sites",
            },
        })
    };
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    client.post(secrets, secret("2999-01-01T00:00:00Z")).await.expect(201);
    let stranger = Client { identity: None, ..client.clone() };
    let joiner = stranger.with_header("authorization", "Bearer abcdef.0123456789abcdef");
    let me = joiner.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "system:bootstrap:abcdef");
    assert!(
        me["status"]["userInfo"]["groups"].as_array().unwrap().contains(&json!("system:bootstrappers:sites"))
    );
    stranger.with_header("authorization", "Bearer abcdef.0123456789abcdee").get("/version").await.expect(401);
    let path = format!("{secrets}/bootstrap-token-abcdef");
    client.delete(&path).await.expect(200);
    client.post(secrets, secret("2001-01-01T00:00:00Z")).await.expect(201);
    joiner.get("/version").await.expect(401);
}

#[tokio::test]
async fn a_signing_request_names_who_really_asked() {
    let client = Client::new().await;
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let csr = |name: &str, signer: &str, organization: &str| {
        use base64::Engine;
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        let request = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let request = base64::engine::general_purpose::STANDARD.encode(request);
        json!({"metadata": {"name": name}, "spec": {
            "request": request, "signerName": signer, "usages": ["client auth"], "username": "somebody-else",
        }})
    };
    let made = client.post(path, csr("a", "example.com/s", "o")).await.expect(201);
    assert_eq!(made["spec"]["username"], "admin");
    let greedy = csr("b", "kubernetes.io/kube-apiserver-client", "system:masters");
    client.post(path, greedy).await.expect(403);
    let approve = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Fine"}], "certificate": "eA=="}});
    let approved = client.merge(&format!("{path}/a/approval"), approve).await.expect(200);
    assert_eq!(approved["status"]["conditions"][0]["type"], "Approved");
    assert!(approved["status"].get("certificate").is_none());
}

#[tokio::test]
async fn reviews_answer_for_anybody() {
    let client = Client::new().await;
    let review = |user: &str| json!({"spec": {"user": user, "resourceAttributes": {"verb": "list", "resource": "pods", "namespace": "default"}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let scheduler = client.post(path, review("system:kube-scheduler")).await.expect(201);
    assert_eq!(scheduler["status"]["allowed"], true);
    let nobody = client.post(path, review("nobody")).await.expect(201);
    assert_eq!(nobody["status"]["allowed"], false);
    let table = client.with_header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    assert_eq!(table.send(Method::POST, path, "application/json", review("x").to_string()).await.code, 406);
}

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
