//! Deployments, what is left of them, and where their pods go.

use crate::fixture::{Site, eventually};
use anyhow::Result;
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{Namespace, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use serde_json::json;

fn deployment(name: &str, replicas: i32, image: &str) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
        },
    }))
    .unwrap()
}

#[tokio::test]
async fn a_deployment_becomes_running_pods_and_a_new_template_replaces_them() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("rollout").await?;
    let deployments: Api<Deployment> = Api::namespaced(site.client.clone(), &ns);
    let sets: Api<ReplicaSet> = Api::namespaced(site.client.clone(), &ns);
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &ns);
    deployments.create(&PostParams::default(), &deployment("web", 3, "a:1")).await?;
    let done = async || {
        let status = deployments.get("web").await?.status.unwrap_or_default();
        Ok(status.available_replicas == Some(3)
            && status.updated_replicas == Some(3)
            && status.replicas == Some(3))
    };
    eventually("3 pods available", done).await?;
    let made = deployments.get("web").await?.metadata;
    assert_eq!(made.annotations.unwrap_or_default()["deployment.kubernetes.io/revision"], "1");
    assert_eq!(made.generation, Some(1), "noting the revision makes no new generation");
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "a:2"}]}}}});
    deployments.patch("web", &PatchParams::default(), &Patch::Strategic(&patch)).await?;
    eventually("the new template runs", async || {
        let list = pods.list(&ListParams::default()).await?;
        let new = list
            .iter()
            .filter(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("a:2"));
        Ok(new.count() == 3 && list.items.len() == 3 && done().await?)
    })
    .await?;
    let mut revisions: Vec<String> = Vec::new();
    for set in sets.list(&ListParams::default()).await? {
        revisions.push(set.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"].clone());
    }
    revisions.sort();
    assert_eq!(revisions, ["1", "2"]);
    let status = site.kubectl(&ns, &["rollout", "status", "deployment/web", "--timeout=20s"])?;
    assert!(status.contains("successfully rolled out"), "{status}");
    site.kubectl(&ns, &["rollout", "undo", "deployment/web"])?;
    eventually("the old template is back", async || {
        let list = pods.list(&ListParams::default()).await?;
        let old = list
            .iter()
            .filter(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("a:1"));
        Ok(old.count() == 3 && list.items.len() == 3)
    })
    .await?;
    let history = site.kubectl(&ns, &["rollout", "history", "deployment/web"])?;
    assert!(history.contains("\n2 ") && history.contains("\n3 "), "{history}");
    Ok(())
}

#[tokio::test]
async fn deleting_a_deployment_in_any_manner_leaves_what_it_should() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("garbage").await?;
    let deployments: Api<Deployment> = Api::namespaced(site.client.clone(), &ns);
    let sets: Api<ReplicaSet> = Api::namespaced(site.client.clone(), &ns);
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &ns);
    for (name, policy) in [
        ("background", PropagationPolicy::Background),
        ("foreground", PropagationPolicy::Foreground),
        ("orphan", PropagationPolicy::Orphan),
    ] {
        deployments.create(&PostParams::default(), &deployment(name, 2, "a:1")).await?;
        let of = ListParams::default().labels(&format!("app={name}"));
        eventually("2 pods", async || Ok(pods.list(&of).await?.items.len() == 2)).await?;
        let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
        deployments.delete(name, &params).await?;
        eventually("the deployment is gone", async || Ok(deployments.get_opt(name).await?.is_none())).await?;
        if name == "orphan" {
            let set = sets.list(&of).await?.items.pop().expect("the ReplicaSet stays");
            assert!(set.metadata.owner_references.unwrap_or_default().is_empty());
            assert_eq!(pods.list(&of).await?.items.len(), 2);
        } else {
            if name == "foreground" {
                assert!(sets.list(&of).await?.items.is_empty(), "dependents go first");
            }
            eventually("nothing is left", async || {
                Ok(pods.list(&of).await?.items.is_empty() && sets.list(&of).await?.items.is_empty())
            })
            .await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_deleted_namespace_goes_with_all_its_content() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("doomed").await?;
    let deployments: Api<Deployment> = Api::namespaced(site.client.clone(), &ns);
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &ns);
    deployments.create(&PostParams::default(), &deployment("web", 2, "a:1")).await?;
    eventually("2 pods", async || Ok(pods.list(&ListParams::default()).await?.items.len() == 2)).await?;
    let namespaces: Api<Namespace> = Api::all(site.client.clone());
    namespaces.delete(&ns, &DeleteParams::default()).await?;
    let gone =
        eventually("the namespace is gone", async || Ok(namespaces.get_opt(&ns).await?.is_none())).await;
    if gone.is_err() {
        eprintln!("{}", site.kubectl(&ns, &["get", "namespace", &ns, "-o", "yaml"])?);
    }
    gone
}

#[tokio::test]
async fn a_pod_that_fits_nowhere_says_why_with_numbers() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("unfit").await?;
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &ns);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "huge"},
        "spec": {"containers": [{"name": "c", "image": "a", "resources": {"requests": {"cpu": "1000"}}}]},
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    eventually("the condition tells", async || {
        let status = pods.get("huge").await?.status.unwrap_or_default();
        let condition = status.conditions.unwrap_or_default().into_iter().find(|c| c.type_ == "PodScheduled");
        let message = condition.and_then(|c| c.message).unwrap_or_default();
        Ok(message.contains("Insufficient cpu (asked 1000"))
    })
    .await?;
    eventually("and an event", async || {
        let events = site.kubectl(&ns, &["get", "events"])?;
        Ok(events.contains("FailedScheduling") && events.contains("Insufficient cpu (asked 1000, most free "))
    })
    .await
}

/// How long a hundred Deployments take until all their pods have a node; run with `--ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn a_hundred_deployments_are_scheduled() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("hundred").await?;
    let deployments: Api<Deployment> = Api::namespaced(site.client.clone(), &ns);
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &ns);
    let start = std::time::Instant::now();
    let creates = (0..100).map(|number| {
        let deployments = deployments.clone();
        async move {
            deployments.create(&PostParams::default(), &deployment(&format!("d{number}"), 1, "a:1")).await
        }
    });
    futures::future::try_join_all(creates).await?;
    let created = start.elapsed();
    eventually("all are scheduled", async || {
        let list = pods.list(&ListParams::default()).await?.items;
        Ok(list.iter().filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some()).count() == 100)
    })
    .await?;
    println!("created in {created:?}, scheduled in {:?}", start.elapsed());
    Ok(())
}
