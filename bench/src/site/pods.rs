//! Deployments in, pods out: the time until a watch has shown what is waited for.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::json;

use super::cluster::{Cluster, IMAGE};
use crate::load;

const PATIENCE: Duration = Duration::from_secs(300);
/// Requests in flight while Deployments are created.
const CLIENTS: usize = 8;

pub fn is_scheduled(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

pub fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
}

/// Creates `count` Deployments of one replica; gives the time from the first request to the last pod's `done`.
pub async fn until(cluster: &Cluster, count: usize, done: fn(&Pod) -> bool) -> Result<Duration> {
    let api: Api<Pod> = Api::default_namespaced(cluster.client().await?);
    let (listed, is_listed) = tokio::sync::oneshot::channel();
    let watching = tokio::spawn(async move {
        let mut listed = Some(listed);
        let mut events = Box::pin(watcher(api, watcher::Config::default()));
        let mut seen = HashSet::new();
        while let Some(event) = events.next().await {
            match event.context("the watch on pods broke")? {
                Event::InitDone => drop(listed.take().map(|listed| listed.send(()))),
                Event::Apply(pod) | Event::InitApply(pod)
                    if done(&pod) && pod.metadata.deletion_timestamp.is_none() =>
                {
                    seen.extend(pod.metadata.uid);
                }
                _ => {}
            }
            if seen.len() >= count {
                return Ok(Instant::now());
            }
        }
        bail!("the watch on pods ended")
    });
    is_listed.await.context("pods cannot be listed")?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(cluster.client().await?);
    }
    let started = Instant::now();
    let each = |n: usize| {
        let client = clients[n % CLIENTS].clone();
        async move {
            let path = "/apis/apps/v1/namespaces/default/deployments";
            load::send(&client, "POST", path, Some(&deployment(n))).await
        }
    };
    let mut requests = futures::stream::iter((0..count).map(each)).buffer_unordered(CLIENTS);
    while let Some(answer) = requests.next().await {
        answer?;
    }
    let finished = tokio::time::timeout(PATIENCE, watching)
        .await
        .context("not all pods got there in 5 minutes")???;
    Ok(finished - started)
}

fn deployment(n: usize) -> serde_json::Value {
    let labels = json!({"app": format!("d{n}")});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": format!("d{n}")},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "86400"], "resources": {"requests": {"cpu": "1m"}}}]}}}})
}

/// Deletes all Deployments and waits until their pods are gone.
pub async fn remove_all(cluster: &Cluster) -> Result<()> {
    let client = cluster.client().await?;
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    deployments.delete_collection(&DeleteParams::background(), &ListParams::default()).await?;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let deadline = Instant::now() + PATIENCE;
    while !pods.list_metadata(&ListParams::default().limit(1)).await?.items.is_empty() {
        if Instant::now() > deadline {
            bail!("pods are still there after 5 minutes");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
