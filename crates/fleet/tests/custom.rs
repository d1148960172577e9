//! Custom kinds that are served otherwise than most: with a plural that no rule gives, and with no status apart from the
//! object. Hub and member are real Kubernetes API servers.

mod harness;

use std::time::Duration;

use harness::{Cluster, Hub, eventually, fixtures, logging};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tombolo_api::{Placement, Site, names};
use tombolo_fleet::Explained;
use tombolo_fleet::object::Key;

/// A kind whose plural is its name.
struct Kind {
    name: &'static str,
    status_apart: bool,
}

const REDIS: Kind = Kind { name: "Redis", status_apart: true };
const CHASSIS: Kind = Kind { name: "Chassis", status_apart: false };

impl Kind {
    fn plural(&self) -> String {
        self.name.to_lowercase()
    }

    fn at(&self, client: &Client) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk("odd.test", "v1", self.name);
        let resource = ApiResource::from_gvk_with_plural(&gvk, &self.plural());
        Api::namespaced_with(client.clone(), "default", &resource)
    }

    fn object(&self, name: &str) -> DynamicObject {
        let object = json!({"apiVersion": "odd.test/v1", "kind": self.name, "metadata": {"name": name}, "spec": {"size": 1}});
        serde_json::from_value(object).expect("an object")
    }

    async fn define(&self, client: &Client) {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let mut version =
            json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        if self.status_apart {
            version["subresources"] = json!({"status": {}});
        }
        let plural = self.plural();
        let object = json!({"metadata": {"name": format!("{plural}.odd.test")}, "spec": {"group": "odd.test", "scope": "Namespaced",
            "names": {"kind": self.name, "plural": plural}, "versions": [version]}});
        let definition: CustomResourceDefinition = serde_json::from_value(object).expect("a definition");
        Api::all(client.clone()).create(&PostParams::default(), &definition).await.expect("defined");
        eventually("the kind is served", 30, || async {
            self.at(client).list(&Default::default()).await.ok().map(drop)
        })
        .await;
    }

    /// What a controller of the site would write.
    async fn say(&self, site: &Client, name: &str, status: Value) {
        let (params, patch) = (PatchParams::default(), Patch::Merge(json!({ "status": status })));
        let said = match self.status_apart {
            true => self.at(site).patch_status(name, &params, &patch).await,
            false => self.at(site).patch(name, &params, &patch).await,
        };
        said.expect("said");
    }

    async fn shown(&self, hub: &Client, name: &str, phase: &str) {
        eventually(&format!("the hub shows that {} {name} is {phase}", self.name), 30, || async {
            let found = self.at(hub).get(name).await.ok()?;
            (found.data["status"]["phase"] == phase).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_of_a_kind_with_an_odd_plural_comes_back() {
    let Some(fixtures) = fixtures() else { return };
    logging();
    let (hub, member) =
        tokio::join!(Cluster::start(&fixtures, "hub", 21540), Cluster::start(&fixtures, "member", 21550));
    let hub = Hub::start(hub, 21560, Duration::from_secs(5)).await;
    let (client, site) = (hub.cluster.client.clone(), member.client.clone());
    for kind in [REDIS, CHASSIS] {
        kind.define(&client).await;
        kind.define(&site).await;
    }
    let placements: Api<Placement> = Api::namespaced(client.clone(), "default");
    let all = json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Placement", "metadata": {"name": "odd"},
        "spec": {"objects": [{"apiVersion": "odd.test/v1", "kind": "Redis"}, {"apiVersion": "odd.test/v1", "kind": "Chassis"}]}});
    let all: Placement = serde_json::from_value(all).expect("a Placement");
    eventually("the hub takes Placements", 30, || async {
        placements.create(&PostParams::default(), &all).await.ok().map(drop)
    })
    .await;
    let agent = hub.agent("alpha", &member, Some(hub.token(1).await), None);
    let stop = agent.shutdown.clone();
    let ran = tokio::spawn(tombolo_agent::run(agent));
    let sites: Api<Site> = Api::all(client.clone());
    eventually("the site is ready", 60, || async { sites.get("alpha").await.ok()?.is_ready().then_some(()) })
        .await;

    for kind in [REDIS, CHASSIS] {
        kind.at(&client).create(&PostParams::default(), &kind.object("cache")).await.expect("created");
        eventually("it arrives", 30, || async { kind.at(&site).get("cache").await.ok().map(drop) }).await;
        kind.say(&site, "cache", json!({"phase": "Starting", "observedGeneration": 1})).await;
        kind.shown(&client, "cache", "Starting").await;
        kind.say(&site, "cache", json!({"phase": "Up"})).await;
        kind.shown(&client, "cache", "Up").await;
        let explained =
            tombolo_fleet::explain(&client, "odd.test/v1", kind.name, "default", "cache", 5).await;
        assert!(matches!(explained.expect("found"), Explained::Placed { .. }));

        // What runs at the site already is taken in.
        kind.at(&site).create(&PostParams::default(), &kind.object("old")).await.expect("created");
        let key = Key::new("odd.test/v1", kind.name, "default", "old");
        tombolo_fleet::import(&client, &site, "alpha", &key).await.expect("imported");
        kind.say(&site, "old", json!({"phase": "Up"})).await;
        kind.shown(&client, "old", "Up").await;
    }

    // Where a status makes a generation, telling one does not make the next.
    let at_rest = || async { CHASSIS.at(&client).get("cache").await.expect("there").metadata.generation };
    let generation = at_rest().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(at_rest().await, generation);

    hub.link.cut(true);
    for kind in [REDIS, CHASSIS] {
        eventually("the status of a silent site is marked", 30, || async {
            let found = kind.at(&client).get("cache").await.ok()?;
            found.annotations().contains_key(names::STALE_ANNOTATION).then_some(())
        })
        .await;
    }
    stop.cancel();
    ran.abort();
}
