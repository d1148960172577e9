//! A namespace and a definition that the hub placed at a real Kubernetes, and in which others have something.

mod harness;

use std::time::Duration;

use harness::{Cluster, Hub, eventually, fixtures, logging};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::core::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tombolo_api::{Placement, Site, Work};

fn of<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

fn definition(plural: &str, kind: &str) -> CustomResourceDefinition {
    of(json!({"metadata": {"name": format!("{plural}.sea.example.com")}, "spec": {
        "group": "sea.example.com", "scope": "Namespaced",
        "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}))
}

fn let_go(metadata: ObjectMeta) -> Option<()> {
    let marked = metadata.annotations.is_some_and(|a| !a.is_empty());
    (!marked && metadata.deletion_timestamp.is_none()).then_some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_or_definition_in_which_others_have_something_is_let_go() {
    let Some(fixtures) = fixtures() else { return };
    logging();
    let (mut hub, mut member) =
        tokio::join!(Cluster::start(&fixtures, "hub", 22630), Cluster::start(&fixtures, "member", 22640));
    hub.start_these_controllers("namespace-controller");
    member.start_controllers();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    member.start_pretend_kubelet("n1", stop).await;
    let hub = Hub::start(hub, 22650, Duration::from_secs(6)).await;
    let (above, below) = (hub.cluster.client.clone(), member.client.clone());
    eventually("the hub is installed", 30, || async {
        let info: Api<ConfigMap> = Api::namespaced(above.clone(), "kube-public");
        info.get("cluster-info").await.ok().map(drop)
    })
    .await;
    let token = hub.token(1).await;
    let agent = tokio::spawn(tombolo_agent::run(hub.agent("alpha", &member, Some(token), None)));
    let sites: Api<Site> = Api::all(above.clone());
    eventually("the site is ready", 60, || async { sites.get("alpha").await.ok()?.is_ready().then_some(()) })
        .await;

    let new = PostParams::default();
    let placements: Api<Placement> = Api::namespaced(above.clone(), "tombolo-system");
    let placement = of(json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Placement",
        "metadata": {"name": "all", "namespace": "tombolo-system"}, "spec": {"objects": [
            {"apiVersion": "v1", "kind": "Namespace", "name": "full"},
            {"apiVersion": "v1", "kind": "Namespace", "name": "bare"},
            {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}]}}));
    eventually("a Placement", 20, || async { placements.create(&new, &placement).await.ok() }).await;
    let (spaces, spaces_there): (Api<Namespace>, _) =
        (Api::all(above.clone()), Api::<Namespace>::all(below.clone()));
    let (kinds, kinds_there): (Api<CustomResourceDefinition>, _) =
        (Api::all(above.clone()), Api::<CustomResourceDefinition>::all(below.clone()));
    for name in ["full", "bare"] {
        spaces.create(&new, &of(json!({"metadata": {"name": name}}))).await.expect("created");
    }
    for (plural, kind) in [("ships", "Ship"), ("rafts", "Raft")] {
        kinds.create(&new, &definition(plural, kind)).await.expect("created");
    }
    for name in ["full", "bare"] {
        eventually("the namespaces arrive", 30, || async { spaces_there.get(name).await.ok() }).await;
    }
    for name in ["ships.sea.example.com", "rafts.sea.example.com"] {
        eventually("the definitions arrive", 30, || async { kinds_there.get(name).await.ok() }).await;
    }

    // Somebody at the site uses one of each.
    let maps: Api<ConfigMap> = Api::namespaced(below.clone(), "full");
    maps.create(&new, &of(json!({"metadata": {"name": "theirs"}}))).await.expect("created");
    let ship = ApiResource {
        group: "sea.example.com".into(),
        version: "v1".into(),
        api_version: "sea.example.com/v1".into(),
        kind: "Ship".into(),
        plural: "ships".into(),
    };
    let ships: Api<DynamicObject> = Api::namespaced_with(below.clone(), "default", &ship);
    eventually("a ship", 30, || async {
        ships.create(&new, &DynamicObject::new("theirs", &ship)).await.ok()
    })
    .await;

    let delete = DeleteParams::default();
    for name in ["full", "bare"] {
        spaces.delete(name, &delete).await.expect("deleted at the hub");
    }
    for name in ["ships.sea.example.com", "rafts.sea.example.com"] {
        kinds.delete(name, &delete).await.expect("deleted at the hub");
    }
    eventually("the bare namespace goes", 40, || async {
        spaces_there.get_opt("bare").await.ok()?.is_none().then_some(())
    })
    .await;
    eventually("the unused definition goes", 40, || async {
        kinds_there.get_opt("rafts.sea.example.com").await.ok()?.is_none().then_some(())
    })
    .await;
    eventually("the full namespace is let go", 30, || async {
        let_go(spaces_there.get("full").await.expect("it stays").metadata)
    })
    .await;
    eventually("the used definition is let go", 30, || async {
        let_go(kinds_there.get("ships.sea.example.com").await.expect("it stays").metadata)
    })
    .await;
    let works: Api<Work> = Api::namespaced(above.clone(), "site-alpha");
    eventually("the Works are done", 30, || async {
        works.list(&Default::default()).await.ok()?.items.is_empty().then_some(())
    })
    .await;
    maps.get("theirs").await.expect("theirs");
    ships.get("theirs").await.expect("theirs");
    agent.abort();
}
