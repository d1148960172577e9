//! Jobs and CronJobs.

use crate::fixture::{Site, eventually};
use anyhow::Result;
use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::Pod,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

fn job(name: &str, outcome: &str, spec: Value) -> Job {
    let mut body = json!({
        "metadata": {"name": name},
        "spec": {"template": {
            "metadata": {"annotations": {"test/outcome": outcome}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "a"}]},
        }},
    });
    for (key, value) in spec.as_object().unwrap() {
        body["spec"][key] = value.clone();
    }
    serde_json::from_value(body).unwrap()
}

fn condition(job: &Job, kind: &str) -> Option<String> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind && c.status == "True")?.reason.clone()
}

#[tokio::test]
async fn a_job_counts_its_pods_exactly() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("jobs").await?;
    let jobs: Api<Job> = Api::namespaced(site.client.clone(), &ns);
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &ns);
    let create = async |job: Job| jobs.create(&PostParams::default(), &job).await;
    create(job("many", "Succeeded", json!({"completions": 5, "parallelism": 2}))).await?;
    create(job(
        "indexed",
        "Succeeded",
        json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"}),
    ))
    .await?;
    create(job("bad", "Failed", json!({"backoffLimit": 0}))).await?;
    create(job("slow", "", json!({"activeDeadlineSeconds": 1}))).await?;
    create(job("brief", "Succeeded", json!({"ttlSecondsAfterFinished": 1}))).await?;
    create(job("later", "Succeeded", json!({"suspend": true}))).await?;

    eventually("five completions", async || Ok(condition(&jobs.get("many").await?, "Complete").is_some()))
        .await?;
    let status = jobs.get("many").await?.status.unwrap();
    assert_eq!((status.succeeded, status.failed, status.active), (Some(5), None, None));
    assert_eq!(pods.list(&ListParams::default().labels("job-name=many")).await?.items.len(), 5);
    eventually("all indexes", async || Ok(condition(&jobs.get("indexed").await?, "Complete").is_some()))
        .await?;
    assert_eq!(jobs.get("indexed").await?.status.unwrap().completed_indexes.as_deref(), Some("0-3"));
    eventually("no pod is held back", async || {
        let all = pods.list(&ListParams::default().labels("job-name in (many,indexed)")).await?;
        Ok(all.items.iter().all(|pod| pod.metadata.finalizers.clone().unwrap_or_default().is_empty()))
    })
    .await?;
    eventually("the bad one gives up", async || {
        Ok(condition(&jobs.get("bad").await?, "Failed").as_deref() == Some("BackoffLimitExceeded"))
    })
    .await?;
    assert_eq!(jobs.get("bad").await?.status.unwrap().failed, Some(1));
    eventually("the slow one is stopped", async || {
        Ok(condition(&jobs.get("slow").await?, "Failed").as_deref() == Some("DeadlineExceeded"))
    })
    .await?;
    eventually("its pod is gone", async || {
        Ok(pods.list(&ListParams::default().labels("job-name=slow")).await?.items.is_empty())
    })
    .await?;
    eventually("the brief one is cleaned up", async || Ok(jobs.get_opt("brief").await?.is_none())).await?;
    eventually("the later one is suspended", async || {
        Ok(condition(&jobs.get("later").await?, "Suspended").is_some())
    })
    .await?;
    assert!(pods.list(&ListParams::default().labels("job-name=later")).await?.items.is_empty());
    jobs.patch("later", &PatchParams::default(), &Patch::Merge(&json!({"spec": {"suspend": false}}))).await?;
    eventually("and resumed", async || Ok(condition(&jobs.get("later").await?, "Complete").is_some())).await
}

#[tokio::test]
async fn a_cron_job_starts_a_job_when_its_time_comes() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("cron").await?;
    let crons: Api<CronJob> = Api::namespaced(site.client.clone(), &ns);
    let jobs: Api<Job> = Api::namespaced(site.client.clone(), &ns);
    let template = serde_json::to_value(job("x", "Succeeded", json!({})).spec)?;
    let cron: CronJob = serde_json::from_value(json!({
        "metadata": {"name": "tick"},
        "spec": {"schedule": "@every 2s", "jobTemplate": {"spec": template}, "successfulJobsHistoryLimit": 1},
    }))?;
    crons.create(&PostParams::default(), &cron).await?;
    eventually("a job ran", async || {
        let status = crons.get("tick").await?.status.unwrap_or_default();
        Ok(status.last_schedule_time.is_some() && status.last_successful_time.is_some())
    })
    .await?;
    crons.patch("tick", &PatchParams::default(), &Patch::Merge(&json!({"spec": {"suspend": true}}))).await?;
    let made = jobs.list(&ListParams::default()).await?.items;
    assert!(made.iter().all(|job| job.metadata.owner_references.as_ref().unwrap()[0].name == "tick"));
    Ok(())
}
