//! What a Deployment can be told about its rollouts: everything at once, not now, not for longer than this, and back.

use crate::fixture::{Site, eventually};
use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentCondition, ReplicaSet},
    core::v1::Pod,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A Deployment in a namespace of its own.
struct Rollout {
    site: Site,
    namespace: String,
    deployments: Api<Deployment>,
    sets: Api<ReplicaSet>,
    pods: Api<Pod>,
}

impl Rollout {
    async fn start(namespace: &str, replicas: i32, more: Value) -> Result<Option<Self>> {
        let Some(site) = Site::get().await? else { return Ok(None) };
        let namespace = site.namespace(namespace).await?;
        let this = Self {
            deployments: Api::namespaced(site.client.clone(), &namespace),
            sets: Api::namespaced(site.client.clone(), &namespace),
            pods: Api::namespaced(site.client.clone(), &namespace),
            site,
            namespace,
        };
        let mut spec = json!({
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "a:1"}]},
            },
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let deployment = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec}))?;
        this.deployments.create(&PostParams::default(), &deployment).await?;
        this.until_done(replicas).await?;
        Ok(Some(this))
    }

    async fn patch(&self, body: Value) -> Result<()> {
        self.deployments.patch("web", &PatchParams::default(), &Patch::Strategic(&body)).await?;
        Ok(())
    }

    async fn set_image(&self, image: &str) -> Result<()> {
        self.patch(template(json!({"spec": {"containers": [{"name": "c", "image": image}]}}))).await
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.site.kubectl(&self.namespace, args)
    }

    /// All pods are of the newest template, and available.
    async fn until_done(&self, replicas: i32) -> Result<()> {
        eventually("the rollout is done", async || {
            let deployment = self.deployments.get("web").await?;
            let status = deployment.status.unwrap_or_default();
            let counts = [status.replicas, status.updated_replicas, status.available_replicas];
            Ok(status.observed_generation == deployment.metadata.generation && counts == [Some(replicas); 3])
        })
        .await
    }

    async fn until_condition(&self, kind: &str, reason: &str) -> Result<DeploymentCondition> {
        eventually(&format!("{kind}: {reason}"), async || {
            Ok(self.condition(kind).await?.is_some_and(|c| c.reason.as_deref() == Some(reason)))
        })
        .await?;
        self.condition(kind).await?.context("it was there")
    }

    async fn condition(&self, kind: &str) -> Result<Option<DeploymentCondition>> {
        let status = self.deployments.get("web").await?.status.unwrap_or_default();
        Ok(status.conditions.unwrap_or_default().into_iter().find(|c| c.type_ == kind))
    }

    /// The images of its ReplicaSets, sorted.
    async fn templates(&self) -> Result<Vec<String>> {
        let image = |set: &ReplicaSet| {
            set.spec.as_ref()?.template.as_ref()?.spec.as_ref()?.containers[0].image.clone()
        };
        let mut images: Vec<_> =
            self.sets.list(&ListParams::default()).await?.iter().filter_map(image).collect();
        images.sort();
        Ok(images)
    }
}

fn template(body: Value) -> Value {
    json!({"spec": {"template": body}})
}

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.containers[0].image.as_deref()).unwrap_or_default()
}

#[tokio::test]
async fn recreate_starts_nothing_new_before_all_that_is_old_is_gone() -> Result<()> {
    let Some(web) = Rollout::start("recreate", 3, json!({"strategy": {"type": "Recreate"}})).await? else {
        return Ok(());
    };
    let before = web.pods.list(&ListParams::default()).await?;
    let version = before.metadata.resource_version.clone().unwrap_or_default();
    let mut old: BTreeSet<_> = before.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
    assert_eq!(old.len(), 3);
    web.set_image("a:2").await?;
    web.until_done(3).await?;
    // All that happened meanwhile, in order.
    let params = WatchParams::default().timeout(5);
    let mut events = web.pods.watch(&params, &version).await?.boxed();
    let mut new = BTreeSet::new();
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(pod) => {
                assert_eq!(image(&pod), "a:2");
                assert!(old.is_empty(), "{old:?} are still there when the first new one comes");
                new.insert(pod.metadata.name.unwrap_or_default());
            }
            WatchEvent::Deleted(pod) => drop(old.remove(&pod.metadata.name.unwrap_or_default())),
            WatchEvent::Error(error) => anyhow::bail!("{error:?}"),
            WatchEvent::Modified(_) | WatchEvent::Bookmark(_) => {}
        }
    }
    assert_eq!(new.len(), 3, "{new:?}");
    Ok(())
}

#[tokio::test]
async fn a_paused_deployment_scales_and_rolls_out_once_when_resumed() -> Result<()> {
    let Some(web) = Rollout::start("paused", 2, json!({})).await? else { return Ok(()) };
    web.kubectl(&["rollout", "pause", "deployment/web"])?;
    web.until_condition("Progressing", "DeploymentPaused").await?;
    web.set_image("a:2").await?;
    web.set_image("a:3").await?;
    web.kubectl(&["scale", "deployment/web", "--replicas=4"])?;
    eventually("it is scaled with the template it had", async || {
        let pods = web.pods.list(&ListParams::default()).await?;
        let deployment = web.deployments.get("web").await?;
        let status = deployment.status.unwrap_or_default();
        Ok(status.observed_generation == deployment.metadata.generation
            && status.available_replicas == Some(4)
            && pods.items.len() == 4
            && pods.iter().all(|pod| image(pod) == "a:1"))
    })
    .await?;
    assert_eq!(web.templates().await?, ["a:1"], "nothing is rolled out");
    web.kubectl(&["rollout", "resume", "deployment/web"])?;
    web.until_done(4).await?;
    web.until_condition("Progressing", "NewReplicaSetAvailable").await?;
    assert_eq!(web.templates().await?, ["a:1", "a:3"], "what was only meant for a while is left out");
    Ok(())
}

#[tokio::test]
async fn a_rollout_that_does_not_get_on_says_so_and_keeps_what_works() -> Result<()> {
    let Some(web) = Rollout::start("deadline", 4, json!({"progressDeadlineSeconds": 2})).await? else {
        return Ok(());
    };
    web.patch(template(json!({"metadata": {"annotations": {"test/outcome": "NotReady"}}}))).await?;
    let late = web.until_condition("Progressing", "ProgressDeadlineExceeded").await?;
    assert_eq!(late.status, "False");
    let message = late.message.unwrap_or_default();
    assert!(message.contains("has timed out progressing"), "{message}");
    let told = web.kubectl(&["rollout", "status", "deployment/web", "--timeout=20s"]);
    let told = told.expect_err("a rollout that failed").to_string();
    assert!(told.contains("exceeded its progress deadline"), "{told}");
    // A quarter of four may be missing.
    let status = web.deployments.get("web").await?.status.unwrap_or_default();
    assert_eq!(status.available_replicas, Some(3), "{status:?}");
    assert_eq!(web.condition("Available").await?.context("a condition")?.status, "True");

    web.patch(template(json!({"metadata": {"annotations": {"test/outcome": null}}}))).await?;
    web.until_done(4).await?;
    let done = web.until_condition("Progressing", "NewReplicaSetAvailable").await?;
    assert_eq!(done.status, "True");
    Ok(())
}

#[tokio::test]
async fn a_rollback_goes_to_the_revision_that_is_named_and_history_keeps_its_length() -> Result<()> {
    let Some(web) = Rollout::start("rollback", 2, json!({"revisionHistoryLimit": 2})).await? else {
        return Ok(());
    };
    for image in ["a:2", "a:3"] {
        web.set_image(image).await?;
        web.until_done(2).await?;
    }
    let wrong = web.kubectl(&["rollout", "undo", "deployment/web", "--to-revision=9"]);
    let wrong = wrong.expect_err("there is no such revision").to_string();
    assert!(wrong.contains("unable to find specified revision 9"), "{wrong}");
    web.kubectl(&["rollout", "undo", "deployment/web", "--to-revision=1"])?;
    web.until_done(2).await?;
    let pods = web.pods.list(&ListParams::default()).await?;
    assert!(pods.iter().all(|pod| image(pod) == "a:1"), "{:?}", pods.iter().map(image).collect::<Vec<_>>());
    // The old set is used again, under a new number.
    assert_eq!(web.templates().await?, ["a:1", "a:2", "a:3"]);
    let history = web.kubectl(&["rollout", "history", "deployment/web"])?;
    let revisions: Vec<_> =
        history.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u32>().ok()).collect();
    assert_eq!(revisions, [2, 3, 4], "{history}");
    web.set_image("a:4").await?;
    web.until_done(2).await?;
    eventually("only two old ones are kept", async || Ok(web.templates().await? == ["a:1", "a:3", "a:4"]))
        .await
}
