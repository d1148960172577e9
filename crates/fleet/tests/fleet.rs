//! A hub and a member, both real Kubernetes API servers: join, place, see, scale, drift, cut, restart, delete.

mod harness;

use std::time::{Duration, Instant};

use harness::{Cluster, Hub, eventually, fixtures, logging};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tombolo_api::{Site, Work, names};
use tombolo_fleet::object::Key;

fn deployment(name: &str, replicas: i64, config: Option<&str>) -> Deployment {
    let mut pod = json!({"containers": [{"name": "web", "image": "web:1", "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}}}]});
    if let Some(config) = config {
        pod["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": config}}]);
    }
    let object = json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": pod}}});
    serde_json::from_value(object).expect("a Deployment")
}

fn deployments(client: &Client) -> Api<Deployment> {
    Api::namespaced(client.clone(), "default")
}

async fn available(hub: &Client, name: &str, wanted: i32) {
    eventually(&format!("{name} has {wanted} available at the hub"), 40, || async {
        let found = deployments(hub).get(name).await.ok()?;
        let status = found.status?;
        let all = status.available_replicas.unwrap_or(0) == wanted
            && status.observed_generation == found.metadata.generation
            && status.updated_replicas.unwrap_or(0) == wanted;
        all.then_some(())
    })
    .await;
}

struct Fleet {
    hub: Hub,
    member: Cluster,
    agent: Option<(CancellationToken, tokio::task::JoinHandle<()>)>,
    name: String,
    stop: CancellationToken,
}

impl Fleet {
    async fn start(name: &str, port: u16, lease: u64) -> Option<Self> {
        let fixtures = fixtures()?;
        logging();
        let (hub, mut member) = tokio::join!(
            Cluster::start(&fixtures, "hub", port),
            Cluster::start(&fixtures, "member", port + 10)
        );
        member.start_controllers();
        let stop = CancellationToken::new();
        member.start_pretend_kubelet("n1", stop.clone()).await;
        let hub = Hub::start(hub, port + 20, Duration::from_secs(lease)).await;
        let mut fleet = Self { hub, member, agent: None, name: name.to_owned(), stop };
        eventually("the hub installed its default placement", 30, || async {
            let api: Api<tombolo_api::Placement> =
                Api::namespaced(fleet.hub.cluster.client.clone(), "tombolo-system");
            api.get("default").await.ok().map(drop)
        })
        .await;
        let token = fleet.hub.token(1).await;
        fleet.start_agent(Some(token));
        fleet.wait_ready("True").await;
        Some(fleet)
    }

    fn start_agent(&mut self, token: Option<String>) {
        let config = self.hub.agent(&self.name, &self.member, token, None);
        let stop = config.shutdown.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = tombolo_agent::run(config).await {
                eprintln!("the agent ended: {error}");
            }
        });
        self.agent = Some((stop, task));
    }

    async fn kill_agent(&mut self) {
        if let Some((_stop, task)) = self.agent.take() {
            // As hard as `kill -9` gets within a process: nothing is said to anybody.
            task.abort();
            let _ = task.await;
        }
    }

    async fn wait_ready(&self, wanted: &str) {
        let api: Api<Site> = Api::all(self.hub.cluster.client.clone());
        eventually(&format!("site {} is Ready={wanted}", self.name), 60, || async {
            let site = api.get(&self.name).await.ok()?;
            let ready = site.status?.conditions.into_iter().find(|c| c.r#type == "Ready")?;
            (ready.status == wanted).then_some(())
        })
        .await;
    }

    async fn wait_capacity(&self) {
        let api: Api<Site> = Api::all(self.hub.cluster.client.clone());
        eventually("the site reports its node", 20, || async {
            (api.get(&self.name).await.ok()?.status?.nodes == Some(1)).then_some(())
        })
        .await;
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some((stop, _)) = self.agent.take() {
            stop.cancel();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_goes_through_its_whole_life() {
    let Some(mut fleet) = Fleet::start("alpha", 21600, 6).await else { return };
    fleet.wait_capacity().await;
    let hub = fleet.hub.cluster.client.clone();
    let site = fleet.member.client.clone();
    let params = PostParams::default();

    // Join: the site is a node of the hub.
    let nodes: Api<Node> = Api::all(hub.clone());
    eventually("the site shows as a node", 20, || async {
        let node = nodes.get("alpha").await.ok()?;
        let ready = node.status?.conditions?.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
        ready.then_some(())
    })
    .await;

    // Place: an ordinary manifest with what it names arrives and runs.
    let configs: Api<ConfigMap> = Api::namespaced(hub.clone(), "default");
    let config = serde_json::from_value(json!({"metadata": {"name": "settings"}, "data": {"a": "1"}}))
        .expect("a ConfigMap");
    configs.create(&params, &config).await.expect("created");
    let began = Instant::now();
    deployments(&hub).create(&params, &deployment("web", 3, Some("settings"))).await.expect("created");
    available(&hub, "web", 3).await;
    println!("apply at the hub to available at the hub: {:?}", began.elapsed());
    let there: Api<ConfigMap> = Api::namespaced(site.clone(), "default");
    assert_eq!(there.get("settings").await.expect("travelled").data.expect("data")["a"], "1");

    // See: pods of the site are pods of the hub.
    let pods: Api<Pod> = Api::namespaced(hub.clone(), "default");
    let web = ListParams::default().labels("app=web");
    eventually("three running pods on node alpha", 20, || async {
        let list = pods.list(&web).await.ok()?;
        let good = |p: &Pod| {
            p.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some("alpha")
                && p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")
        };
        (list.items.len() == 3 && list.items.iter().all(good)).then_some(())
    })
    .await;

    // At rest nothing is written, and heartbeats (here one a second) are all that crosses the link.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let version = deployments(&hub).get("web").await.expect("there").resource_version();
    let bytes = fleet.hub.link.bytes.load(std::sync::atomic::Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let crossed = fleet.hub.link.bytes.load(std::sync::atomic::Ordering::Relaxed) - bytes;
    println!("bytes on the link in 5 s at rest, 5 heartbeats: {crossed}");
    assert!(crossed < 2500, "{crossed} bytes in 5 s at rest");
    assert_eq!(
        deployments(&hub).get("web").await.expect("there").resource_version(),
        version,
        "written at rest"
    );

    // A changed dependency follows.
    configs
        .patch("settings", &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "2"}})))
        .await
        .expect("patched");
    eventually("the changed ConfigMap arrives", 20, || async {
        (there.get("settings").await.ok()?.data?.get("a")? == "2").then_some(())
    })
    .await;

    // Scale.
    deployments(&hub)
        .patch("web", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 5}})))
        .await
        .expect("scaled");
    available(&hub, "web", 5).await;

    // Drift: a field that the site took over is reported and left; a deleted object comes back.
    let taken = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2}});
    let by_hand = PatchParams::apply("by-hand").force();
    deployments(&site).patch("web", &by_hand, &Patch::Apply(&taken)).await.expect("taken over");
    let works: Api<Work> = Api::namespaced(hub.clone(), "site-alpha");
    eventually("the drift is reported", 20, || async {
        let drift = works
            .list(&ListParams::default())
            .await
            .ok()?
            .items
            .into_iter()
            .find_map(|w| w.status?.drift.into_iter().next())?;
        (drift.field == ".spec.replicas" && drift.manager == "by-hand").then_some(())
    })
    .await;
    available(&hub, "web", 2).await;
    let give_up = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}});
    deployments(&site).patch("web", &by_hand, &Patch::Apply(&give_up)).await.expect("given up");
    available(&hub, "web", 5).await;
    there.delete("settings", &DeleteParams::default()).await.expect("deleted at the site");
    eventually("a deleted object is recreated", 20, || async { there.get("settings").await.ok().map(drop) })
        .await;

    // Agent killed, and started again without a token: nothing restarts, changes arrive.
    let before: Vec<String> = pod_uids(&site).await;
    fleet.kill_agent().await;
    configs
        .patch("settings", &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "3"}})))
        .await
        .expect("patched");
    fleet.start_agent(None);
    eventually("the change made meanwhile arrives", 30, || async {
        (there.get("settings").await.ok()?.data?.get("a")? == "3").then_some(())
    })
    .await;
    assert_eq!(pod_uids(&site).await, before, "a pod was restarted");

    // Link cut: the site is lost and shown as such, works on, and comes back without a restart.
    fleet.hub.link.cut(true);
    fleet.wait_ready("False").await;
    eventually("the status is not better than the truth", 20, || async {
        let status = deployments(&hub).get("web").await.ok()?.status?;
        let unknown = status.conditions?.into_iter().any(|c| c.type_ == "Available" && c.status == "Unknown");
        (unknown && status.ready_replicas.unwrap_or(0) == 0).then_some(())
    })
    .await;
    deployments(&site)
        .patch(
            "web",
            &PatchParams::default(),
            &Patch::Merge(json!({"metadata": {"labels": {"made": "here"}}})),
        )
        .await
        .expect("a local change");
    configs
        .patch("settings", &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "4"}})))
        .await
        .expect("patched");
    fleet.hub.link.cut(false);
    fleet.wait_ready("True").await;
    available(&hub, "web", 5).await;
    eventually("the change made meanwhile arrives", 40, || async {
        (there.get("settings").await.ok()?.data?.get("a")? == "4").then_some(())
    })
    .await;
    assert_eq!(pod_uids(&site).await, before, "a pod was restarted");
    assert_eq!(deployments(&site).get("web").await.expect("there").labels()["made"], "here");

    // Hub stopped and started: nothing restarts. A site that an earlier hub gave fewer rights gets the rest.
    fleet.hub.stop_fleet();
    let roles: Api<ClusterRole> = Api::all(hub.clone());
    let given = roles.get("tombolo:site:alpha").await.expect("a role").rules;
    let fewer = Patch::Merge(json!({"rules": []}));
    roles.patch("tombolo:site:alpha", &PatchParams::default(), &fewer).await.expect("patched");
    fleet.hub.start_fleet();
    available(&hub, "web", 5).await;
    eventually("the site has all its rights again", 20, || async {
        (roles.get("tombolo:site:alpha").await.ok()?.rules == given).then_some(())
    })
    .await;
    assert_eq!(pod_uids(&site).await, before, "a pod was restarted");

    taken_in_again(&mut fleet).await;

    // A shared dependency goes with its last user, and what the owner of the site made stays.
    let own = serde_json::from_value(json!({"metadata": {"name": "own"}, "data": {"mine": "yes"}}))
        .expect("a ConfigMap");
    there.create(&params, &own).await.expect("created at the site");
    deployments(&hub).create(&params, &deployment("api", 1, Some("settings"))).await.expect("created");
    available(&hub, "api", 1).await;
    deployments(&hub).delete("web", &DeleteParams::default()).await.expect("deleted");
    gone(&site, "web").await;
    assert!(there.get("settings").await.is_ok(), "another Deployment still names it");
    deployments(&hub).delete("api", &DeleteParams::default()).await.expect("deleted");
    gone(&site, "api").await;
    eventually("the last user took the ConfigMap along", 20, || async {
        there.get_opt("settings").await.ok()?.is_none().then_some(())
    })
    .await;
    assert!(there.get("own").await.is_ok());
    eventually("no work and no mirror is left", 30, || async {
        let works = works.list(&ListParams::default()).await.ok()?.items.len();
        let pods = pods.list(&ListParams::default()).await.ok()?.items.len();
        (works == 0 && pods == 0).then_some(())
    })
    .await;
    removed_and_kept(&hub, &site).await;
}

/// A site that is removed and keeps what it runs.
async fn removed_and_kept(hub: &Client, site: &Client) {
    deployments(hub).create(&PostParams::default(), &deployment("stays", 2, None)).await.expect("created");
    available(hub, "stays", 2).await;
    let before = pod_uids(site).await;
    let sites: Api<Site> = Api::all(hub.clone());
    let keep = Patch::Merge(json!({"metadata": {"annotations": {names::ON_REMOVE_ANNOTATION: "keep"}}}));
    sites.patch("alpha", &PatchParams::default(), &keep).await.expect("annotated");
    sites.delete("alpha", &DeleteParams::default()).await.expect("deleted");
    eventually("the site is gone", 30, || async {
        sites.get_opt("alpha").await.ok()?.is_none().then_some(())
    })
    .await;
    assert!(deployments(site).get("stays").await.is_ok());
    assert_eq!(pod_uids(site).await, before);
}

/// What the hub made runs on as it is when it is given back or forgotten, and when it is taken in again.
async fn taken_in_again(fleet: &mut Fleet) {
    let (hub, site) = (fleet.hub.cluster.client.clone(), fleet.member.client.clone());
    let works: Api<Work> = Api::namespaced(hub.clone(), "site-alpha");
    let pods: Api<Pod> = Api::namespaced(hub.clone(), "default");
    let placements: Api<tombolo_api::Placement> = Api::namespaced(hub.clone(), "default");
    let key = Key::new("apps/v1", "Deployment", "default", "kept");
    let mine = ListParams::default().labels("app=kept");
    deployments(&hub).create(&PostParams::default(), &deployment("kept", 1, None)).await.expect("created");
    available(&hub, "kept", 1).await;
    let runs = async || {
        let found = deployments(&site).get("kept").await.expect("there");
        (found.spec.expect("a spec").template, pod_uids(&site).await)
    };
    let before = runs().await;
    for forgotten in [false, true, false] {
        let ours = |w: &Work| w.spec.root.name == "kept";
        if forgotten {
            fleet.hub.stop_fleet();
            deployments(&hub).delete("kept", &DeleteParams::default()).await.expect("deleted");
            for work in works.list(&ListParams::default()).await.expect("listed").into_iter().filter(ours) {
                works.delete(&work.name_any(), &DeleteParams::default()).await.expect("deleted");
            }
            fleet.hub.start_fleet();
            let sites: Api<Site> = Api::all(hub.clone());
            eventually("the site names what was forgotten", 30, || async {
                let orphans = sites.get("alpha").await.ok()?.status?.orphans;
                orphans.contains(&"Deployment/default/kept".to_owned()).then_some(())
            })
            .await;
        } else {
            tombolo_fleet::give_back(&hub, &key).await.expect("asked");
            eventually("the site lets go of it", 30, || async {
                let left = works.list(&ListParams::default()).await.ok()?;
                (!left.items.iter().any(ours)).then_some(())
            })
            .await;
            tombolo_fleet::forget(&hub, &key).await.expect("forgotten");
        }
        drop(placements.delete("import-deployment-kept", &DeleteParams::default()).await);
        tombolo_fleet::import(&hub, &site, "alpha", &key).await.expect("imported");
        available(&hub, "kept", 1).await;
        eventually("its pod is shown at the hub", 20, || async {
            let shown = pods.list(&mine).await.ok()?;
            (shown.items.len() == 1 && shown.items[0].name_any().ends_with(".alpha")).then_some(())
        })
        .await;
        assert_eq!(runs().await, before, "forgotten: {forgotten}");
    }
    tombolo_fleet::forget(&hub, &key).await.expect("forgotten");
    placements.delete("import-deployment-kept", &DeleteParams::default()).await.expect("deleted");
    eventually("the hub lets go of it", 30, || async {
        pods.list(&mine).await.ok()?.items.is_empty().then_some(())
    })
    .await;
    drop(deployments(&site).delete("kept", &DeleteParams::default()).await);
    gone(&site, "kept").await;
}

async fn pod_uids(client: &Client) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let list = pods.list(&ListParams::default()).await.expect("listed");
    let mut uids: Vec<String> = list
        .items
        .iter()
        .filter(|p| p.metadata.deletion_timestamp.is_none())
        .filter_map(|p| p.uid())
        .collect();
    uids.sort();
    uids
}

async fn gone(site: &Client, name: &str) {
    eventually(&format!("{name} is gone at the site"), 40, || async {
        deployments(site).get_opt(name).await.ok()?.is_none().then_some(())
    })
    .await;
}
