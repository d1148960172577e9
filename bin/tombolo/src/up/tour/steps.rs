//! The three steps.

use anyhow::Result;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tombolo_api::{Placement, Work};

use super::super::progress::{say, until};
use super::view::{SAMPLE, line};
use super::{Stage, Step};
use crate::commands::apply;

pub const ALL: &[Step] = &[
    Step {
        title: "Cut the link of an edge site",
        about: "The cable of edge-1 is pulled. It must go on serving, heal by itself, and nobody may count on it meanwhile.",
        act: cut,
        undo: mend,
    },
    Step {
        title: "Kill the cloud site",
        about: "The cloud's process is killed for good. Its replicas must come up elsewhere, and come back with it.",
        act: lose_cloud,
        undo: revive_cloud,
    },
    Step {
        title: "Overflow an edge",
        about: "An application that prefers edge-1 asks for more than fits there. The rest must go to the cloud, and back.",
        act: overflow,
        undo: remove_camera,
    },
];

const EDGE: &str = "edge-1";
const CLOUD: &str = "cloud";
const CAMERA: &str = "camera";
/// How many of the cameras are sized to fit the edge, and how many come on top.
const FITTING: i64 = 3;
const ON_TOP: i64 = 2;

fn cut(stage: &Stage) -> LocalBoxFuture<'_, Result<()>> {
    async move {
        stage.run(&format!("lab cut {EDGE}"))?;
        stage.say("Beside the site, its page still answers:");
        stage.run(&format!("lab fetch {EDGE}"))?;
        let (old, new) = stage.replace_a_pod_at(EDGE).await?;
        stage.say(&format!(
            "It needs no hub to heal. Deleted at {EDGE}, from inside its network: pod {old};\n\
             the site replaced it by {new}."
        ));
        stage.until_site(EDGE, false).await?;
        stage.say("The hub has missed its heartbeats, and says so rather than showing old news as new:");
        stage.run("sites")?;
        stage.until_without(SAMPLE, EDGE).await?;
        stage.say("The sample's Placement asks for failover, so its replicas run elsewhere by now:");
        stage.run("explain place deploy/hello")
    }
    .boxed_local()
}

fn mend(stage: &Stage) -> LocalBoxFuture<'_, Result<()>> {
    async move {
        stage.run(&format!("lab mend {EDGE}"))?;
        stage.settled().await?;
        stage.say("Back again: the site is heard, and has its part of the sample.");
        stage.run("place hello")
    }
    .boxed_local()
}

fn lose_cloud(stage: &Stage) -> LocalBoxFuture<'_, Result<()>> {
    async move {
        stage.run(&format!("lab kill {CLOUD}"))?;
        stage.until_site(CLOUD, false).await?;
        stage.until_without(SAMPLE, CLOUD).await?;
        stage.say("Lost, and nothing is missing: every replica is ready at the edges.");
        stage.run("sites")?;
        stage.run("explain place deploy/hello")
    }
    .boxed_local()
}

fn revive_cloud(stage: &Stage) -> LocalBoxFuture<'_, Result<()>> {
    async move {
        if !stage.fleet.runs(stage.fleet.member(CLOUD)?) {
            stage.run(&format!("lab start {CLOUD}"))?;
        }
        stage.settled().await?;
        stage.say("The cloud is back with what it knew, and has its part again.");
        stage.run("place hello")
    }
    .boxed_local()
}

fn overflow(stage: &Stage) -> LocalBoxFuture<'_, Result<()>> {
    async move {
        // A tenth is spared: what the site reported last may be a pod behind.
        let each = (stage.free_milli_cpu(EDGE).await? * 9 / 10 / FITTING).max(1);
        let manifest = camera(each, FITTING + ON_TOP);
        stage
            .say(&format!("What is applied, as with kubectl apply (every replica asks for {each}m of CPU):"));
        manifest.lines().for_each(|line| say(&format!("  {line}")));
        say("");
        apply::manifest(&stage.hub, &manifest).await?;
        stage.until_shares(CAMERA, |shares, _| shares.get(CLOUD).is_some_and(|n| *n > 0)).await?;
        stage.until_free_below(EDGE, each).await?;
        stage.say(&format!("{EDGE} is full, and the rest overflowed:"));
        stage.run("explain place deploy/camera")?;
        say(&format!("  $ kubectl scale deploy/{CAMERA} --replicas={FITTING}\n"));
        let deployments: Api<Deployment> = Api::namespaced(stage.hub.clone(), "default");
        let scale = json!({"spec": {"replicas": FITTING}});
        deployments.patch(CAMERA, &PatchParams::default(), &Patch::Merge(scale)).await?;
        stage.until_shares(CAMERA, |shares, _| shares.get(CLOUD).is_none_or(|n| *n == 0)).await?;
        stage.say("With less to run, the cloud is empty again and the edge has it all:");
        stage.run("explain place deploy/camera")
    }
    .boxed_local()
}

/// The Placement comes first: an object that finds none is placed by the hub's default, and stays there for a while.
fn camera(milli: i64, replicas: i64) -> String {
    format!(
        "\
apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {{name: {CAMERA}}}
spec:
  objects: [{{kind: Deployment, name: {CAMERA}}}]
  sites: {{names: [{EDGE}, {CLOUD}]}}
  prefer: [{{names: [{EDGE}]}}, {{names: [{CLOUD}]}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {CAMERA}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {CAMERA}}}}}
  template:
    metadata: {{labels: {{app: {CAMERA}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: {CAMERA}
        image: tombolo.dev/hello:1
        imagePullPolicy: Never
        resources: {{requests: {{cpu: {milli}m}}}}
"
    )
}

fn remove_camera(stage: &Stage) -> LocalBoxFuture<'_, Result<()>> {
    async move {
        say(&format!("  $ kubectl delete deploy/{CAMERA} placement/{CAMERA}\n"));
        let gone = |result: kube::Result<()>| match result {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other,
        };
        let params = DeleteParams::default();
        let deployments: Api<Deployment> = Api::namespaced(stage.hub.clone(), "default");
        gone(deployments.delete(CAMERA, &params).await.map(drop))?;
        let works: Api<Work> = Api::all(stage.hub.clone());
        until(&line(), "the cameras to go", std::time::Duration::from_secs(60), || async {
            let left = works.list(&ListParams::default()).await?.items;
            anyhow::ensure!(left.iter().all(|w| w.spec.root.name != CAMERA), "a site still has some");
            Ok(())
        })
        .await?;
        let placements: Api<Placement> = Api::namespaced(stage.hub.clone(), "default");
        gone(placements.delete(CAMERA, &params).await.map(drop))?;
        Ok(())
    }
    .boxed_local()
}
