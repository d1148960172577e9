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
    let more =
        as_eve.with_header("impersonate-uid", "u1").with_header("impersonate-extra-dept%2Fname", "lab");
    let me = more.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["uid"], "u1");
    assert_eq!(me["status"]["userInfo"]["extra"], json!({"dept/name": ["lab"]}));
    // Each of them needs a right of its own.
    let rules = json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users", "groups"]}]);
    let (roles, bindings) = ("clusterroles", "clusterrolebindings");
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "double"}, "rules": rules});
    client.post(&format!("{rbac}/{roles}"), role).await.expect(201);
    let binding = json!({"metadata": {"name": "double"}, "subjects": [{"kind": "User", "name": "dora", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "double"}});
    client.post(&format!("{rbac}/{bindings}"), binding).await.expect(201);
    let dora = client.acting("dora", &[]).with_header("impersonate-user", "eve");
    dora.get("/version").await.expect(200);
    dora.with_header("impersonate-uid", "u1").get("/version").await.expect(403);
    dora.with_header("impersonate-extra-dept", "lab").get("/version").await.expect(403);
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
async fn a_token_of_a_pod_ends_with_it() {
    let client = Client::new().await;
    let (accounts, pods) = ("/api/v1/namespaces/default/serviceaccounts", "/api/v1/namespaces/default/pods");
    client.post(accounts, json!({"metadata": {"name": "default"}})).await.expect(201);
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = client.post(pods, pod.clone()).await.expect(201);
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": made["metadata"]["uid"]});
    let request = json!({"spec": {"boundObjectRef": bound}});
    let answer = client.post(&format!("{accounts}/default/token"), request).await.expect(201);
    let bearer = format!("Bearer {}", answer["status"]["token"].as_str().unwrap());
    let inside = Client { identity: None, ..client.clone() }.with_header("authorization", &bearer);
    inside.get("/version").await.expect(200);
    client.delete(&format!("{pods}/a")).await.expect(200);
    inside.get("/version").await.expect(401);
    // Another pod of that name is another pod.
    client.post(pods, pod).await.expect(201);
    inside.get("/version").await.expect(401);
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
