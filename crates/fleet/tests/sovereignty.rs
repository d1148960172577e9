//! What a hub may do at a site is the owner's word; what a site may do at the hub ends at its own objects; either side can
//! leave without the other.

mod harness;

use std::time::Duration;

use harness::{ADMIN, Cluster, Hub, eventually, fixtures, logging};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Config};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tombolo_agent::{ActingAs, AgentError, StateSecret};
use tombolo_api::{Site, Work, names};

fn deployment(name: &str) -> Deployment {
    let object = json!({"metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}});
    serde_json::from_value(object).expect("a Deployment")
}

async fn namespace(client: &Client, name: &str) {
    let api: Api<Namespace> = Api::all(client.clone());
    let object = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a Namespace");
    api.create(&PostParams::default(), &object).await.expect("a namespace");
}

/// The owner allows Deployments in one namespace, and nothing else.
async fn allow(member: &Client) {
    let rbac = "rbac.authorization.k8s.io";
    for object in [
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": {"name": "hub", "namespace": "allowed"},
            "rules": [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["*"]}]}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": {"name": "hub", "namespace": "allowed"},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "hub"}, "subjects": [{"apiGroup": rbac, "kind": "User", "name": "hub-north"}]}),
    ] {
        let object: kube::api::DynamicObject = serde_json::from_value(object).expect("an object");
        let types = object.types.clone().expect("types");
        let resource =
            kube::api::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(rbac, "v1", &types.kind));
        let api: Api<kube::api::DynamicObject> = Api::namespaced_with(member.clone(), "allowed", &resource);
        api.create(&PostParams::default(), &object).await.expect("created");
    }
}

/// A client with the site's own certificate, straight to the hub's API.
async fn as_site(hub: &Hub, member: &Cluster, name: &str) -> Client {
    let state =
        StateSecret::new(member.client.clone(), &format!("hub-{name}")).load().await.expect("a state");
    let mut config = Config::new(format!("https://127.0.0.1:{}", hub.cluster.port).parse().expect("a URI"));
    let roots = tombolo_tunnel::tls::certificates(hub.cluster.pki.ca.as_bytes(), "ca").expect("certificates");
    config.root_cert = Some(roots.into_iter().map(|c| c.to_vec()).collect());
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    config.auth_info.client_certificate_data = Some(encode(&state.certificate));
    config.auth_info.client_key_data = Some(encode(&state.key).into());
    Client::try_from(config).expect("a client")
}

fn code<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> u16 {
    match result {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("not refused: {other:?}"),
    }
}

async fn refused_with(hub: &Client, what: &str) -> String {
    let api: Api<Deployment> = Api::namespaced(hub.clone(), "forbidden");
    eventually(what, 30, || async {
        let conditions = api.get("web").await.ok()?.status?.conditions?;
        conditions
            .into_iter()
            .find(|c| c.type_ == "Placed" && c.status == "False" && c.reason.as_deref() == Some("Refused"))?
            .message
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_keeps_its_own_and_either_can_leave() {
    let Some(fixtures) = fixtures() else { return };
    logging();
    let (mut hub, member) =
        tokio::join!(Cluster::start(&fixtures, "hub", 21630), Cluster::start(&fixtures, "member", 21640));
    hub.start_these_controllers("namespace-controller");
    let stop = CancellationToken::new();
    member.start_pretend_kubelet("n1", stop.clone()).await;
    let mut hub = Hub::start(hub, 21650, Duration::from_secs(6)).await;
    let api = hub.cluster.client.clone();
    for name in ["allowed", "forbidden"] {
        namespace(&api, name).await;
        namespace(&member.client, name).await;
    }
    allow(&member.client).await;
    let secrets: Api<Secret> = Api::namespaced(api.clone(), "kube-system");
    eventually("the hub is installed", 30, || async {
        let info: Api<ConfigMap> = Api::namespaced(api.clone(), "kube-public");
        info.get("cluster-info").await.ok().map(drop)
    })
    .await;

    // A wrong CA hash is found out before the token is sent.
    let token = hub.token(1).await;
    let mut wrong = hub.agent("alpha", &member, Some(token.clone()), None);
    wrong.ca_hash = Some(format!("sha256:{}", "0".repeat(64)));
    assert!(
        tombolo_agent::run(wrong)
            .await
            .expect_err("not that hub")
            .to_string()
            .contains("this is not the hub you meant")
    );

    let owner = ActingAs { user: "hub-north".into(), groups: vec![] };
    let config = hub.agent("alpha", &member, Some(token.clone()), Some(owner));
    let agent = tokio::spawn(tombolo_agent::run(config));
    let sites: Api<Site> = Api::all(api.clone());
    eventually("the site is ready and reports its node", 60, || async {
        let site = sites.get("alpha").await.ok()?;
        (site.is_ready() && site.status?.nodes == Some(1)).then_some(())
    })
    .await;

    // The token is spent: it lets nobody in any more.
    let tokens = secrets.list(&ListParams::default().fields("type=bootstrap.kubernetes.io/token")).await;
    for token in tokens.expect("listed") {
        let uses = token.data.as_ref().and_then(|data| data.get("tombolo-uses"));
        assert_eq!(uses.map(|u| u.0.as_slice()), Some(b"0".as_slice()));
    }
    let mut again = hub.agent("beta", &member, Some(token), None);
    again.state = "hub-beta".into();
    let refused = tombolo_agent::run(again).await.expect_err("a spent token");
    assert!(matches!(&refused, AgentError::Join(_)), "{refused}");

    // What the owner allows runs; what he does not is refused, and the hub says why.
    let allowed: Api<Deployment> = Api::namespaced(api.clone(), "allowed");
    let forbidden: Api<Deployment> = Api::namespaced(api.clone(), "forbidden");
    allowed.create(&PostParams::default(), &deployment("web")).await.expect("created");
    forbidden.create(&PostParams::default(), &deployment("web")).await.expect("created");
    let there: Api<Deployment> = Api::namespaced(member.client.clone(), "allowed");
    eventually("the allowed Deployment arrives", 30, || async { there.get("web").await.ok().map(drop) })
        .await;
    let why = refused_with(&api, "the refusal shows at the hub").await;
    assert!(
        why.contains("alpha refuses it") && why.contains("hub-north") && why.contains("forbidden"),
        "{why}"
    );
    let not_there: Api<Deployment> = Api::namespaced(member.client.clone(), "forbidden");
    assert!(not_there.get_opt("web").await.expect("asked").is_none());

    // A hub that asks for more through the tunnel gets the owner's answer, also when it claims to be someone else.
    let through = hub.tunnels.client("alpha");
    assert_eq!(
        code(Api::<Secret>::namespaced(through.clone(), "kube-system").list(&ListParams::default()).await),
        403
    );
    let lie = http::Request::get("/api/v1/namespaces/kube-system/secrets")
        .header("impersonate-user", "admin")
        .header("impersonate-group", "system:masters")
        .header("authorization", format!("Bearer {ADMIN}"))
        .body(Vec::new())
        .expect("a request");
    assert_eq!(code(through.request::<serde_json::Value>(lie).await), 403);
    assert!(Api::<Deployment>::namespaced(through, "allowed").get("web").await.is_ok());

    // A site reads and writes its own objects only.
    namespace(&api, "site-other").await;
    let other = Site::new("other", Default::default());
    sites.create(&PostParams::default(), &other).await.expect("another site");
    let site = as_site(&hub, &member, "alpha").await;
    let own: Api<Work> = Api::namespaced(site.clone(), "site-alpha");
    assert!(!own.list(&ListParams::default()).await.expect("its own").items.is_empty());
    let foreign: Api<Work> = Api::namespaced(site.clone(), "site-other");
    assert_eq!(code(foreign.list(&ListParams::default()).await), 403);
    assert_eq!(code(Api::<Work>::all(site.clone()).list(&ListParams::default()).await), 403);
    assert_eq!(
        code(Api::<Secret>::namespaced(site.clone(), "kube-system").list(&ListParams::default()).await),
        403
    );
    let status = Patch::Merge(json!({"status": {"nodes": 99}}));
    assert_eq!(
        code(Api::<Site>::all(site.clone()).patch_status("other", &PatchParams::default(), &status).await),
        403
    );
    let spec = Patch::Merge(json!({"spec": {"tombstone": null}}));
    let name = own.list(&ListParams::default()).await.expect("its own").items[0]
        .metadata
        .name
        .clone()
        .expect("a name");
    assert_eq!(code(own.patch(&name, &PatchParams::default(), &spec).await), 403);

    // It does not get a certificate with another name.
    let mut params = rcgen::CertificateParams::new(vec![]).expect("params");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:site:other");
    let key = rcgen::KeyPair::generate().expect("key");
    let pem = params.serialize_request(&key).expect("request").pem().expect("pem");
    let mut csr: CertificateSigningRequest = serde_json::from_value(json!({"metadata": {"name": "greedy"},
        "spec": {"request": "", "signerName": names::SIGNER, "usages": ["client auth"]}}))
    .expect("a request");
    csr.spec.request = k8s_openapi::ByteString(pem.into_bytes());
    let requests: Api<CertificateSigningRequest> = Api::all(site.clone());
    requests.create(&PostParams::default(), &csr).await.expect("asked");
    let answer = eventually("the request is denied", 20, || async {
        requests
            .get("greedy")
            .await
            .ok()?
            .status?
            .conditions?
            .into_iter()
            .find(|c| c.type_ == "Denied")?
            .message
    })
    .await;
    assert!(answer.contains("may not ask for the certificate of site other"), "{answer}");
    sites.delete("other", &DeleteParams::default()).await.expect("deleted");

    // A restored hub: its tombstone is older than what the site has seen, and nothing is deleted.
    restored_hub_deletes_nothing(&mut hub, &member, &there).await;

    // The hub removes the site: what it made there goes, nothing is left here, and the agent is told.
    sites.delete("alpha", &DeleteParams::default()).await.expect("deleted");
    eventually("the site is gone at the hub", 40, || async {
        sites.get_opt("alpha").await.ok()?.is_none().then_some(())
    })
    .await;
    assert!(there.get_opt("web").await.expect("asked").is_none(), "the Deployment stayed");
    let nodes: Api<Node> = Api::all(api.clone());
    assert!(nodes.get_opt("alpha").await.expect("asked").is_none());
    let told = tokio::time::timeout(Duration::from_secs(30), agent)
        .await
        .expect("the agent ends")
        .expect("no panic");
    assert!(
        matches!(&told, Err(AgentError::Removed(message)) if message.contains("join with a new token")),
        "{told:?}"
    );
    assert_eq!(
        code(own.list(&ListParams::default()).await),
        403,
        "the old certificate still opens something"
    );

    // With a new token it comes back; then the site leaves a hub that is dead.
    let token = hub.token(1).await;
    let config = hub.agent("alpha", &member, Some(token), None);
    let (shutdown, back) = (config.shutdown.clone(), tokio::spawn(tombolo_agent::run(config)));
    eventually("the Deployment comes back", 60, || async { there.get("web").await.ok().map(drop) }).await;
    hub.stop_fleet();
    hub.link.cut(true);
    shutdown.cancel();
    let _ = back.await;
    let left = tombolo_agent::leave(&member.client, "hub-alpha", false).await.expect("left");
    assert_eq!(left, 0);
    eventually("nothing of the hub is left at the site", 20, || async {
        there.get_opt("web").await.ok()?.is_none().then_some(())
    })
    .await;
    let states: Api<Secret> = Api::namespaced(member.client.clone(), names::SYSTEM_NAMESPACE);
    assert!(states.get_opt("hub-alpha").await.expect("asked").is_none());
    stop.cancel();
}

/// Yesterday's store: an older epoch, and a Work with a tombstone that was taken back since.
async fn restored_hub_deletes_nothing(hub: &mut Hub, member: &Cluster, there: &Api<Deployment>) {
    let api = hub.cluster.client.clone();
    let sites: Api<Site> = Api::all(api.clone());
    // A second start, so that the site has seen an epoch above the one that is restored.
    hub.stop_fleet();
    hub.start_fleet();
    let seen = |at_least: i64| {
        let sites = sites.clone();
        async move {
            eventually("the site has seen the epoch", 30, || async {
                (sites.get("alpha").await.ok()?.status?.hub_epoch? >= at_least).then_some(())
            })
            .await;
        }
    };
    let allowed: Api<Deployment> = Api::namespaced(api.clone(), "allowed");
    let label = Patch::Merge(json!({"metadata": {"labels": {"again": "yes"}}}));
    allowed.patch("web", &PatchParams::default(), &label).await.expect("patched");
    seen(2).await;
    let before = there.get("web").await.expect("there").metadata.uid;
    hub.stop_fleet();
    let config: Api<ConfigMap> = Api::namespaced(api.clone(), "kube-system");
    let old = Patch::Merge(json!({"data": {"epoch": "1"}}));
    let id = config
        .patch(names::HUB_CONFIG, &PatchParams::default(), &old)
        .await
        .expect("patched")
        .data
        .expect("data")["id"]
        .clone();
    let works: Api<Work> = Api::namespaced(api.clone(), "site-alpha");
    let all = works.list(&ListParams::default()).await.expect("listed");
    let work = all
        .items
        .iter()
        .find(|w| w.spec.root.namespace == "allowed")
        .and_then(|w| w.metadata.name.clone())
        .expect("a Work");
    let tombstone =
        Patch::Merge(json!({"spec": {"tombstone": {"hub": id, "epoch": 1, "reason": "yesterday"}}}));
    works.patch(&work, &PatchParams::default(), &tombstone).await.expect("patched");
    hub.start_fleet();
    eventually("the void tombstone is dropped and the Work made anew", 30, || async {
        let work = works.get_opt(&work).await.ok()??;
        let applied = work.condition("Applied").is_some_and(|c| c.status == "True");
        (work.spec.tombstone.is_none() && applied).then_some(())
    })
    .await;
    assert_eq!(
        there.get("web").await.expect("still there").metadata.uid,
        before,
        "it was deleted and made again"
    );
    let _ = member;
}
