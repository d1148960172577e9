//! The same thousands of good, bad and mutated requests, sent to a real kube-apiserver and to `tombolo serve`, get the
//! same answers: status code, reason, and the object as it would be stored, with who owns which of its fields.
//!
//! Nearly all are dry runs, so no object stands in another one's way. Each base object of `corpus/` is sent as it is, and
//! then once for every small damage at every place in it.

mod answers;
mod applies;
mod corpus;
mod custom;
mod damage;
mod deletes;
mod patches;
mod pods;
mod security;
mod subresources;
mod writes;

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};
use tombolo_testkit::{Fixture, Tombolo, Upstream, UpstreamOptions, require};

use crate::answers::{Servers, client, differing, send};
use crate::corpus::{NOT_KEPT, corpus, kind_and_place, places};
use crate::patches::Target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tombolo_answers_writes_as_upstream_does() -> Result<()> {
    let Some(pair) = Pair::start().await? else { return Ok(()) };
    let servers = &pair.servers;
    for server in servers {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "to-be-bound"},
            "spec": {"containers": [{"name": "c", "image": "pause"}]}});
        send(server, Method::POST, "/api/v1/namespaces/default/pods", &pod).await?;
    }

    let places = places(&servers[0]).await?;
    let objects = corpus()?;
    for (version, kind) in places.keys() {
        let covered =
            objects.iter().any(|o| o["apiVersion"] == version.as_str() && o["kind"] == kind.as_str());
        assert!(covered, "no object of kind {kind} of {version} is in the corpus");
    }
    let mut cases = Vec::new();
    for object in &objects {
        writes::add_creates(object, &places, &mut cases)?;
    }
    assert!(cases.len() > 5_000, "only {} cases", cases.len());
    let mut differ = differing("creates", servers, &cases).await?;

    let mut cases = Vec::new();
    for object in &objects {
        writes::add_protobuf(servers, object, &places, &mut cases).await?;
    }
    differ += differing("creates in protobuf", servers, &cases).await?;

    let mut cases = Vec::new();
    for object in objects.iter().filter(|object| is_kept(object)) {
        writes::add_updates(servers, object, &places, &mut cases).await?;
    }
    assert!(cases.len() > 3_000, "only {} cases", cases.len());
    differ += differing("updates", servers, &cases).await?;
    assert!(differ == 0, "{differ} answers differ; see the lines above");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tombolo_answers_changes_as_upstream_does() -> Result<()> {
    let Some(pair) = Pair::start().await? else { return Ok(()) };
    let servers = &pair.servers;
    custom::define(servers).await?;
    let places = places(&servers[0]).await?;
    let mut differ = custom::compare(servers, &places).await?;

    let mut objects = custom::objects()?;
    objects.retain(|object| object["kind"] != "Loose");
    objects.extend(corpus()?.into_iter().filter(is_kept));
    let targets = objects.into_iter().map(|object| {
        let (kind, place) = kind_and_place(&object, &places)?;
        let name = object["metadata"]["name"].as_str().context("an object has no name")?;
        let custom = place.contains("/shop.example.com/");
        Ok(Target { kind, path: format!("{place}/{name}"), object, custom })
    });
    let targets = targets.collect::<Result<Vec<_>>>()?;
    differ += applies::make(servers, &targets).await?;

    let mut cases = Vec::new();
    for target in &targets {
        patches::add_everywhere(target, &mut cases);
        if GENERAL.contains(&target.object["kind"].as_str().unwrap_or_default()) {
            patches::add_general(target, &mut cases);
        }
    }
    assert!(cases.len() > 6_000, "only {} cases", cases.len());
    differ += differing("patches", servers, &cases).await?;

    let mut cases = Vec::new();
    for target in &targets {
        applies::add_everywhere(target, &mut cases);
        if GENERAL.contains(&target.object["kind"].as_str().unwrap_or_default()) {
            applies::add_general(target, &mut cases);
        }
    }
    assert!(cases.len() > 5_000, "only {} cases", cases.len());
    differ += differing("applies", servers, &cases).await?;
    differ += applies::share(servers).await?;

    let mut cases = Vec::new();
    subresources::add_certain(&mut cases);
    for target in &targets {
        let kind = target.object["kind"].as_str().unwrap_or_default();
        subresources::add_statuses(servers, target, &mut cases).await?;
        if subresources::SCALED.contains(&kind) {
            subresources::add_scales(servers, target, &mut cases).await?;
        }
        subresources::add_wrong(target, &mut cases);
    }
    assert!(cases.len() > 4_000, "only {} cases", cases.len());
    differ += differing("subresources", servers, &cases).await?;

    let mut cases = Vec::new();
    for target in &targets {
        let kind = target.object["kind"].as_str().unwrap_or_default();
        if !NOT_DELETED.contains(&kind) {
            deletes::add(servers, target, &mut cases).await?;
        }
        deletes::add_collections(target, &mut cases);
    }
    assert!(cases.len() > 4_000, "only {} cases", cases.len());
    differ += differing("deletes", servers, &cases).await?;
    assert!(differ == 0, "{differ} answers differ; see the lines above");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tombolo_judges_pods_as_upstream_does() -> Result<()> {
    let Some(pair) = Pair::start().await? else { return Ok(()) };
    let differ = security::compare(&pair.servers).await?;
    assert!(differ == 0, "{differ} answers differ; see the lines above");
    Ok(())
}

/// Kinds that are also sent what does not depend on the kind.
const GENERAL: &[&str] =
    &["ConfigMap", "Deployment", "Lease", "Namespace", "Node", "Pod", "Service", "Widget", "Heap"];

/// Kinds whose deletes are not compared: events of two groups are the same objects, a finalizer of upstream's holds classes of
/// attributes, and one try to delete a namespace there shows in the next.
const NOT_DELETED: &[&str] = &["Event", "VolumeAttributesClass", "Namespace"];

fn is_kept(object: &Value) -> bool {
    !NOT_KEPT.contains(&object["kind"].as_str().unwrap_or_default())
}

/// A real kube-apiserver and a Tombolo, with as little in them.
struct Pair {
    servers: Servers,
    _upstream: Upstream,
    _tombolo: Tombolo,
    _dir: tempfile::TempDir,
}

impl Pair {
    /// Nothing where the programs are missing.
    async fn start() -> Result<Option<Self>> {
        if !require(&[Fixture::Kubectl, Fixture::KubeApiserver, Fixture::Etcd]) {
            return Ok(None);
        }
        let upstream = Upstream::start(&UpstreamOptions { lift_limits: true, ..Default::default() })?;
        let dir = tempfile::tempdir()?;
        let tombolo = Tombolo::serve(dir.path())?;
        let servers = [client(&upstream.kubeconfig).await?, client(&tombolo.kubeconfig).await?];
        for server in &servers {
            // Pods need it, and no controller makes it here.
            let account =
                json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
            send(server, Method::POST, "/api/v1/namespaces/default/serviceaccounts", &account).await?;
        }
        Ok(Some(Self { servers, _upstream: upstream, _tombolo: tombolo, _dir: dir }))
    }
}
