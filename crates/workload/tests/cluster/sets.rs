//! StatefulSets and DaemonSets.

use crate::fixture::{Site, eventually};
use anyhow::Result;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, StatefulSet},
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

fn names(pods: &[Pod]) -> Vec<String> {
    let mut names: Vec<_> = pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
    names.sort();
    names
}

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().unwrap().containers[0].image.as_deref().unwrap()
}

#[tokio::test]
async fn a_stateful_set_numbers_its_pods_gives_them_volumes_and_updates_from_the_top() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("stateful").await?;
    let sets: Api<StatefulSet> = Api::namespaced(site.client.clone(), &ns);
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &ns);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(site.client.clone(), &ns);
    let set: StatefulSet = serde_json::from_value(json!({
        "metadata": {"name": "db"},
        "spec": {
            "replicas": 3,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {"containers": [{"name": "c", "image": "a:1", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]},
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }],
        },
    }))?;
    sets.create(&PostParams::default(), &set).await?;
    let ready = async |image_wanted: &str, from: usize| {
        let list = pods.list(&ListParams::default()).await?.items;
        let status = sets.get("db").await?.status.unwrap_or_default();
        let updated = list.iter().filter(|pod| image(pod) == image_wanted).count();
        anyhow::Ok(
            names(&list) == ["db-0", "db-1", "db-2"]
                && updated == 3 - from
                && status.ready_replicas == Some(3),
        )
    };
    eventually("three numbered pods", async || ready("a:1", 0).await).await?;
    let bound = claims.list(&ListParams::default()).await?.items;
    assert_eq!(bound.len(), 3);
    for claim in &bound {
        assert_eq!(claim.status.as_ref().unwrap().phase.as_deref(), Some("Bound"));
    }
    let volumes: Api<PersistentVolume> = Api::all(site.client.clone());
    let volume = volumes.get(bound[0].spec.as_ref().unwrap().volume_name.as_deref().unwrap()).await?;
    assert!(volume.spec.as_ref().unwrap().node_affinity.is_some(), "a local volume is tied to its node");

    let patch = json!({"spec": {
        "template": {"spec": {"containers": [{"name": "c", "image": "a:2"}]}},
        "updateStrategy": {"rollingUpdate": {"partition": 2}},
    }});
    sets.patch("db", &PatchParams::default(), &Patch::Strategic(&patch)).await?;
    eventually("only the pod above the partition is updated", async || ready("a:2", 2).await).await?;
    assert_eq!(image(&pods.get("db-2").await?), "a:2");
    let patch = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}});
    sets.patch("db", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    eventually("all are updated", async || ready("a:2", 0).await).await?;
    let status = site.kubectl(&ns, &["rollout", "status", "statefulset/db", "--timeout=20s"])?;
    assert!(status.contains("complete") || status.contains("rolling update"), "{status}");
    let revisions: Api<ControllerRevision> = Api::namespaced(site.client.clone(), &ns);
    assert_eq!(revisions.list(&ListParams::default()).await?.items.len(), 2);
    site.kubectl(&ns, &["rollout", "undo", "statefulset/db"])?;
    eventually("the first template is back", async || ready("a:1", 0).await).await?;

    sets.patch("db", &PatchParams::default(), &Patch::Merge(&json!({"spec": {"replicas": 1}}))).await?;
    eventually("the lowest stays", async || {
        Ok(names(&pods.list(&ListParams::default()).await?.items) == ["db-0"])
    })
    .await?;
    assert_eq!(claims.list(&ListParams::default()).await?.items.len(), 3, "claims stay");
    claims.delete("data-db-2", &DeleteParams::default()).await?;
    eventually("an unused claim goes, and its volume with it", async || {
        Ok(claims.get_opt("data-db-2").await?.is_none()
            && volumes.list(&ListParams::default()).await?.items.len() == 2)
    })
    .await
}

#[tokio::test]
async fn a_daemon_set_runs_once_per_node_and_rolls() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("daemon").await?;
    let sets: Api<DaemonSet> = Api::namespaced(site.client.clone(), &ns);
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &ns);
    let set: DaemonSet = serde_json::from_value(json!({
        "metadata": {"name": "agent"},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {"containers": [{"name": "c", "image": "a:1"}], "nodeSelector": {"daemon": "yes"}},
            },
        },
    }))?;
    sets.create(&PostParams::default(), &set).await?;
    eventually("no node is wanted yet", async || {
        let status = sets.get("agent").await?.status.unwrap_or_default();
        Ok(status.observed_generation == Some(1) && status.desired_number_scheduled == 0)
    })
    .await?;
    for node in ["node-a", "node-b"] {
        site.kubectl(&ns, &["label", "node", node, "daemon=yes"])?;
    }
    let running = async |wanted: &str| {
        let list = pods.list(&ListParams::default()).await?.items;
        let mut nodes: Vec<_> = list
            .iter()
            .filter(|pod| image(pod) == wanted)
            .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
            .collect();
        nodes.sort();
        let status = sets.get("agent").await?.status.unwrap_or_default();
        anyhow::Ok(nodes == ["node-a", "node-b"] && list.len() == 2 && status.number_available == Some(2))
    };
    eventually("one pod per node", async || running("a:1").await).await?;
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "a:2"}]}}}});
    sets.patch("agent", &PatchParams::default(), &Patch::Strategic(&patch)).await?;
    eventually("both are updated", async || running("a:2").await).await?;
    let status = site.kubectl(&ns, &["rollout", "status", "daemonset/agent", "--timeout=20s"])?;
    assert!(status.contains("successfully rolled out"), "{status}");
    site.kubectl(&ns, &["label", "node", "node-b", "daemon-"])?;
    eventually("the pod leaves the node that is not wanted", async || {
        Ok(pods.list(&ListParams::default()).await?.items.len() == 1)
    })
    .await?;
    site.kubectl(&ns, &["label", "node", "node-a", "daemon-"])?;
    Ok(())
}
