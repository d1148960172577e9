//! Two members: replicas are shared out with overrides and spread, one site is lost, its replicas move (or stay, or move one
//! by one), it comes back and cleans up what is no longer wanted there.

mod harness;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use harness::{Cluster, Hub, eventually, fixtures, logging};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tombolo_api::{Placement, Site, Work};

async fn replicas_at(client: &Client, name: &str) -> Option<i32> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let found = api.get_opt(name).await.expect("asked")?;
    Some(found.status.and_then(|s| s.ready_replicas).unwrap_or(0))
}

/// The uids of an application's pods.
async fn pods_of(client: &Client, app: &str) -> BTreeSet<String> {
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let found = api.list(&ListParams::default().labels(&format!("app={app}"))).await.expect("listed");
    found.items.into_iter().filter_map(|p| p.metadata.uid).collect()
}

/// How many replicas of an object the cloud was given, one after the other.
async fn note_replicas(hub: Client, name: &'static str, steps: Arc<Mutex<Vec<i64>>>) {
    let works: Api<Work> = Api::namespaced(hub, "site-cloud");
    let mut changes = Box::pin(watcher(works, Default::default()).default_backoff().applied_objects());
    while let Some(change) = changes.next().await {
        let Ok(work) = change else { continue };
        let mut steps = steps.lock().expect("unpoisoned");
        if work.spec.root.name == name && work.spec.replicas != steps.last().copied() {
            steps.extend(work.spec.replicas);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_a_lost_site_move_and_the_returned_site_cleans_up() {
    let Some(fixtures) = fixtures() else { return };
    logging();
    let (hub, mut a, mut b) = tokio::join!(
        Cluster::start(&fixtures, "hub", 21660),
        Cluster::start(&fixtures, "edge", 21670),
        Cluster::start(&fixtures, "cloud", 21680)
    );
    a.start_controllers();
    b.start_controllers();
    let stop = CancellationToken::new();
    a.start_pretend_kubelet("n1", stop.clone()).await;
    b.start_pretend_kubelet("n1", stop.clone()).await;
    let hub = Hub::start(hub, 21690, Duration::from_secs(5)).await;
    let api = hub.cluster.client.clone();
    let placements: Api<Placement> = Api::namespaced(api.clone(), "default");
    eventually("the hub is installed", 30, || async {
        let api: Api<Placement> = Api::namespaced(api.clone(), "tombolo-system");
        api.get("default").await.ok().map(drop)
    })
    .await;
    let mut config = hub.agent("edge", &a, Some(hub.token(1).await), None);
    config.spec.tier = tombolo_api::Tier::Edge;
    let edge_config = config.clone();
    let edge = tokio::spawn(tombolo_agent::run(config));
    let config = hub.agent("cloud", &b, Some(hub.token(1).await), None);
    tokio::spawn(tombolo_agent::run(config));
    let sites: Api<Site> = Api::all(api.clone());
    eventually("both sites are ready", 60, || async {
        let list = sites.list(&ListParams::default()).await.ok()?;
        let good = |s: &Site| s.is_ready() && s.status.as_ref().is_some_and(|s| s.nodes == Some(1));
        (list.items.len() == 2 && list.items.iter().all(good)).then_some(())
    })
    .await;

    // Shared out by weight, with an override for one tier, and a short wait.
    let placement = json!({"metadata": {"name": "web"}, "spec": {
        "objects": [{"kind": "Deployment", "apiVersion": "apps/v1", "name": "web"}],
        "replicas": {"mode": "Divide", "divideBy": "Weight", "weights": [{"sites": {"tiers": ["edge"]}, "weight": 3}, {"sites": {"tiers": ["cloud"]}, "weight": 1}]},
        "overrides": [{"sites": {"tiers": ["edge"]}, "image": {"registry": "mirror.edge:5000"}, "env": [{"name": "WHERE", "value": "edge"}]}],
        "failover": {"waitSeconds": 1}}});
    placements
        .create(&PostParams::default(), &serde_json::from_value(placement).expect("a Placement"))
        .await
        .expect("created");
    let web = json!({"metadata": {"name": "web"}, "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "team/web:1"}]}}}});
    let deployments: Api<Deployment> = Api::namespaced(api.clone(), "default");
    deployments
        .create(&PostParams::default(), &serde_json::from_value(web).expect("a Deployment"))
        .await
        .expect("created");
    eventually("three replicas at the edge, one in the cloud", 40, || async {
        (replicas_at(&a.client, "web").await == Some(3) && replicas_at(&b.client, "web").await == Some(1))
            .then_some(())
    })
    .await;
    let image = |client: &Client| {
        let api: Api<Deployment> = Api::namespaced(client.clone(), "default");
        async move {
            api.get("web")
                .await
                .expect("there")
                .spec
                .expect("a spec")
                .template
                .spec
                .expect("a spec")
                .containers[0]
                .clone()
        }
    };
    let at_edge = image(&a.client).await;
    assert_eq!(at_edge.image.as_deref(), Some("mirror.edge:5000/team/web:1"));
    assert!(at_edge.env.expect("an env").iter().any(|e| e.name == "WHERE"));
    assert_eq!(image(&b.client).await.image.as_deref(), Some("team/web:1"));

    // A StatefulSet with a volume of its own goes to one of them and stays, whatever happens.
    let db = json!({"metadata": {"name": "db"}, "spec": {"serviceName": "db", "replicas": 1, "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "db:1"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}});
    let here = json!({"metadata": {"name": "db"}, "spec": {"objects": [{"kind": "StatefulSet", "apiVersion": "apps/v1"}], "prefer": [{"tiers": ["edge"]}],
        "replicas": {"divideBy": "Pack"}, "failover": {"waitSeconds": 1}}});
    placements
        .create(&PostParams::default(), &serde_json::from_value(here).expect("a Placement"))
        .await
        .expect("created");
    let sets: Api<StatefulSet> = Api::namespaced(api.clone(), "default");
    sets.create(&PostParams::default(), &serde_json::from_value(db).expect("a StatefulSet"))
        .await
        .expect("created");
    let db_at = |client: &Client| {
        let api: Api<StatefulSet> = Api::namespaced(client.clone(), "default");
        async move { api.get_opt("db").await.expect("asked").is_some() }
    };
    eventually("the database is at the edge", 30, || async { db_at(&a.client).await.then_some(()) }).await;

    // What stays whatever happens, what moves one by one, and what will no longer be wanted at the edge when that is back.
    for (name, failover) in [
        ("anchored", json!({"waitSeconds": 1, "stay": true})),
        ("slowly", json!({"waitSeconds": 1, "maxAtOnce": 1})),
        ("nomad", json!({"waitSeconds": 1})),
    ] {
        let placement = json!({"metadata": {"name": name}, "spec": {
            "objects": [{"kind": "Deployment", "apiVersion": "apps/v1", "name": name}],
            "prefer": [{"tiers": ["edge"]}], "failover": failover}});
        placements
            .create(&PostParams::default(), &serde_json::from_value(placement).expect("a Placement"))
            .await
            .expect("created");
        let object = json!({"metadata": {"name": name}, "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}}});
        deployments
            .create(&PostParams::default(), &serde_json::from_value(object).expect("a Deployment"))
            .await
            .expect("created");
    }
    for name in ["anchored", "slowly", "nomad"] {
        eventually("all three replicas are at the edge", 40, || async {
            (replicas_at(&a.client, name).await == Some(3)).then_some(())
        })
        .await;
        assert_eq!(replicas_at(&b.client, name).await, None, "{name}");
    }
    // A kind that runs as one shows what its site said.
    let watch = json!({"metadata": {"name": "watch"}, "spec": {"objects": [{"kind": "Job", "apiVersion": "batch/v1"}],
        "prefer": [{"tiers": ["edge"]}], "failover": {"stay": true}}});
    placements
        .create(&PostParams::default(), &serde_json::from_value(watch).expect("a Placement"))
        .await
        .expect("created");
    let jobs: Api<Job> = Api::namespaced(api.clone(), "default");
    let watch = json!({"metadata": {"name": "watch"}, "spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i:1"}]}}}});
    jobs.create(&PostParams::default(), &serde_json::from_value(watch).expect("a Job"))
        .await
        .expect("created");
    let stale = || async {
        let job = jobs.get("watch").await.ok()?;
        Some((
            job.status?.active?,
            job.metadata.annotations.unwrap_or_default().remove(tombolo_api::names::STALE_ANNOTATION),
        ))
    };
    let fresh = || async { (stale().await? == (1, None)).then_some(()) };
    eventually("the hub shows the pod of the Job", 30, fresh).await;
    let steps = Arc::new(Mutex::new(Vec::new()));
    tokio::spawn(note_replicas(api.clone(), "slowly", steps.clone()));

    // The edge is lost: its share moves, the volume's workload stays, and the edge itself goes on.
    edge.abort();
    let _ = edge.await;
    eventually("all replicas are in the cloud", 60, || async {
        (replicas_at(&b.client, "web").await == Some(4)).then_some(())
    })
    .await;
    assert_eq!(replicas_at(&a.client, "web").await, Some(3), "a lost site goes on");
    assert!(!db_at(&b.client).await, "a workload with a local volume moved");
    let works: Api<Work> = Api::namespaced(api.clone(), "site-edge");
    let left = works.list(&ListParams::default()).await.expect("listed");
    let noted =
        |w: &Work| w.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("tombolo.dev/left"));
    assert!(left.items.iter().any(|w| w.spec.root.name == "web" && noted(w) && w.spec.tombstone.is_none()));
    let kept = pods_of(&a.client, "web").await;
    for name in ["slowly", "nomad"] {
        eventually("all of it is in the cloud", 60, || async {
            (replicas_at(&b.client, name).await == Some(3)).then_some(())
        })
        .await;
    }
    eventually("the Job says since when its status is old", 30, || async {
        stale().await.filter(|(active, since)| *active == 1 && since.is_some()).map(drop)
    })
    .await;
    assert_eq!(*steps.lock().expect("unpoisoned"), [1, 2, 3], "at most one is on the move");
    assert_eq!(replicas_at(&b.client, "anchored").await, None, "what stays has moved");
    let patch = Patch::Merge(json!({"spec": {"sites": {"tiers": ["cloud"]}}}));
    placements.patch("nomad", &PatchParams::default(), &patch).await.expect("patched");

    // It comes back: by its weight it is wanted there, and what it kept running is not replaced.
    let mut again = edge_config;
    again.token = None;
    tokio::spawn(tombolo_agent::run(again));
    eventually("weights hold again over both sites", 90, || async {
        let total = replicas_at(&a.client, "web").await.unwrap_or(0)
            + replicas_at(&b.client, "web").await.unwrap_or(0);
        let works = works.list(&ListParams::default()).await.ok()?;
        let clean = works.items.iter().all(|w| w.spec.tombstone.is_none());
        (total == 4 && clean).then_some(())
    })
    .await;
    eventually("the edge has cleaned up, and its Work is gone", 60, || async {
        let works = works.list(&ListParams::default()).await.ok()?;
        let gone = works.items.iter().all(|w| w.spec.root.name != "nomad");
        (gone && replicas_at(&a.client, "nomad").await.is_none()).then_some(())
    })
    .await;
    eventually("its pods are gone too", 30, || async {
        pods_of(&a.client, "nomad").await.is_empty().then_some(())
    })
    .await;
    eventually("the Job's status is fresh again", 30, fresh).await;
    assert_eq!(replicas_at(&b.client, "nomad").await, Some(3));
    assert_eq!(replicas_at(&a.client, "anchored").await, Some(3));
    assert_eq!(replicas_at(&b.client, "anchored").await, None);
    assert!(db_at(&a.client).await);
    assert_eq!(replicas_at(&a.client, "web").await, Some(3));
    assert_eq!(pods_of(&a.client, "web").await, kept, "pods that could stay were replaced");
    stop.cancel();
}
