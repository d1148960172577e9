//! Doing what a plan says, at the hub's API.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{PartialObjectMeta, Request};
use kube::{Client, Error};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tombolo_agent::difference::{has_nulls, merge_patch};
use tombolo_api::{Work, WorkSpec, names};

use crate::config::FleetConfig;
use crate::kept::Kept;
use crate::kinds;
use crate::object::{Key, text};
use crate::plan::{self, Action, parts_annotation};
use crate::status;
use crate::watches::Known;

const AS_METADATA: http::HeaderValue =
    http::HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

/// Does one thing. What the API answers about Works goes into the index at once, so that the next plan knows it; news come
/// back through the watches.
pub async fn act(config: &FleetConfig, known: &Arc<Known>, action: Action) -> Result<(), Error> {
    let client = &config.client;
    match action {
        Action::CreateWork { site, name, spec, parts } => {
            let api = works(client, &site);
            let mut work = Work::new(&name, *spec);
            work.metadata.annotations = parts_annotation(&parts).map(|a| [a].into());
            let body = serde_json::to_vec(&work).map_err(Error::SerdeError)?;
            let request = Request::new(api.resource_url()).create(&PostParams::default(), body);
            match as_metadata::<Work>(client, request).await {
                Ok(answer) => {
                    work.metadata = answer.metadata;
                    known.index.lock().put_work(work);
                }
                Err(Error::Api(status)) if status.code == 409 => {}
                // The site was removed and came back while its namespace was still going.
                Err(Error::Api(status))
                    if status.code == 404 || status.message.contains("being terminated") =>
                {
                    let identity = known.index.lock().sites.get(&site).and_then(|s| {
                        s.site.metadata.annotations.as_ref()?.get(names::IDENTITY_ANNOTATION).cloned()
                    });
                    if let Some(identity) = identity {
                        crate::sites::equip(client, &site, &identity).await?;
                    }
                    return Err(Error::Api(status));
                }
                Err(error) => return Err(error),
            }
        }
        Action::UpdateWork { site, name, spec, parts } => {
            let Some(old) = known.index.lock().work(&site, &name) else { return Ok(()) };
            let api = works(client, &site);
            let request = Request::new(api.resource_url());
            let request = match difference(&old, &spec, &parts) {
                // A patch cannot collide with what the site reports meanwhile.
                Some(patch) => request.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)),
                None => {
                    let mut work = api.get(&name).await?;
                    work.spec = *spec.clone();
                    work.metadata.annotations.get_or_insert_default().extend(parts_annotation(&parts));
                    work.metadata.managed_fields = None;
                    let body = serde_json::to_vec(&work).map_err(Error::SerdeError)?;
                    request.replace(&name, &PostParams::default(), body)
                }
            };
            match as_metadata::<Work>(client, request).await {
                Ok(answer) => {
                    known.index.lock().work_written(&site, answer.metadata, Some(*spec));
                }
                // A uid is no more than a condition here; where it is of another Work, the API says that it cannot change.
                Err(Error::Api(status)) if status.code == 409 || status.message.contains("metadata.uid") => {
                    known.index.lock().mark(&Key::of_root(&old.root));
                }
                Err(error) => return Err(error),
            }
        }
        Action::DeleteWork { site, name, uid } => {
            let only = Preconditions { uid: Some(uid), resource_version: None };
            ignore_gone(
                works(client, &site)
                    .delete(&name, &DeleteParams::default().preconditions(only))
                    .await
                    .map(drop),
            )?;
        }
        Action::NoteLeft { site, name, left } => {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {names::LEFT_ANNOTATION: left}}}));
            match works(client, &site).patch_metadata(&name, &PatchParams::default(), &patch).await {
                Ok(answer) => known.index.lock().work_written(&site, answer.metadata, None),
                Err(Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Action::PatchStatus { key, patch } => {
            let objects = known.objects(client, &key);
            let patched = match patch_status(client, objects.resource_url(), &key.name, &patch).await {
                Err(Error::Api(answer)) if answer.code == 404 && kinds::may_be_custom(&key.api_version) => {
                    patch_with_status(client, objects.resource_url(), &key.name, patch).await
                }
                other => other,
            };
            ignore_gone(patched)?;
        }
        Action::Bind { key, site } => bind(client, &key, &site).await?,
        Action::CreatePod { pod, status } => create_pod(client, pod, status).await?,
        Action::PatchPod { namespace, name, patch } => {
            ignore_gone(patch_status(client, pods(client, &namespace).resource_url(), &name, &patch).await)?;
        }
        Action::DeletePod { namespace, name, uid } => {
            known.own_deletes.lock().insert(format!("{namespace}/{name}"));
            let only = Preconditions { uid: Some(uid), resource_version: None };
            let params = DeleteParams::default().grace_period(0).preconditions(only);
            ignore_gone(pods(client, &namespace).delete(&name, &params).await.map(drop))?;
        }
        Action::DeleteAtSite { site, namespace, pod } => {
            delete_at_site(config, &site, &namespace, &pod).await
        }
        Action::Mark { key, annotation, value } => {
            let patch = json!({"metadata": {"annotations": {annotation: value}}});
            let api = known.objects(client, &key);
            ignore_gone(if key.kind == "Deployment" {
                // Only with the status does an annotation leave the generation of a Deployment, and thereby its Works, alone.
                patch_status(client, api.resource_url(), &key.name, &patch).await
            } else {
                let patch = Patch::Merge(patch);
                api.patch_metadata(&key.name, &PatchParams::default(), &patch).await.map(drop)
            })?;
        }
        Action::Tell { key, warning, reason, brief, message } => {
            let root = known.index.lock().objects.get(&key).cloned().unwrap_or_default();
            if !status::shows_placing(&key.kind) {
                let mut index = known.index.lock();
                match warning {
                    true => drop(index.warned.insert(key.clone(), plan::warning(&root, &brief))),
                    false => drop(index.warned.remove(&key)),
                }
            }
            tell(client, &key, text(&root, "/metadata/uid"), warning, reason, &message).await
        }
    }
    Ok(())
}

/// Sends a write of which only the metadata of what came of it is read.
async fn as_metadata<K>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<PartialObjectMeta<K>, Error> {
    let mut request = request.map_err(Error::BuildRequest)?;
    request.headers_mut().insert(http::header::ACCEPT, AS_METADATA);
    client.request(request).await
}

/// The merge patch to a new spec; `None` where one cannot say it, because a value in it is null.
fn difference(old: &Kept, spec: &WorkSpec, parts: &[(String, i64)]) -> Option<Value> {
    let wanted = json!(spec);
    if has_nulls(&wanted) {
        return None;
    }
    // A Work of an earlier uid is not the one that was planned for.
    let mut patch = json!({"metadata": {"uid": old.uid}});
    if let Some(changed) = merge_patch(&old.spec_json(), &wanted) {
        patch["spec"] = changed;
    }
    if let Some((key, value)) = parts_annotation(parts) {
        patch["metadata"]["annotations"] = json!({ key: value });
    }
    Some(patch)
}

fn works(client: &Client, site: &str) -> Api<Work> {
    Api::namespaced(client.clone(), &names::site_namespace(site))
}

fn pods(client: &Client, namespace: &str) -> Api<Pod> {
    Api::namespaced(client.clone(), namespace)
}

fn ignore_gone(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        other => other,
    }
}

/// The site goes into an annotation as well: that is what tells a pod of the hub from a pod that only has a node's name.
async fn bind(client: &Client, key: &Key, site: &str) -> Result<(), Error> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": key.name, "annotations": {names::SITE_LABEL: site}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": site}});
    let api = pods(client, &key.namespace);
    let bound: Result<serde_json::Value, Error> =
        api.create_subresource("binding", &key.name, &PostParams::default(), &binding).await;
    ignore_gone(bound.map(drop))
}

async fn create_pod(client: &Client, mut pod: Value, status: Value) -> Result<(), Error> {
    let (api, name) =
        (pods(client, text(&pod, "/metadata/namespace")), text(&pod, "/metadata/name").to_owned());
    pod["status"] = status;
    let request = http::Request::post(format!("{}?withStatus=true", api.resource_url()))
        .header(http::header::ACCEPT, AS_METADATA)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(pod.to_string().into_bytes())
        .map_err(Error::HttpError)?;
    match client.request::<PartialObjectMeta<Pod>>(request).await {
        Err(Error::Api(answer)) if answer.code == 409 => {
            let patch = json!({ "status": pod["status"] });
            ignore_gone(patch_status(client, api.resource_url(), &name, &patch).await)
        }
        other => other.map(drop),
    }
}

/// The watch shows what came of it; the answer is not read.
async fn patch_status(client: &Client, all: &str, name: &str, patch: &Value) -> Result<(), Error> {
    let request = Request::new(format!("{all}/{name}"))
        .patch_metadata("status", &PatchParams::default(), &Patch::Merge(patch))
        .map_err(Error::BuildRequest)?;
    client.request::<PartialObjectMeta<Pod>>(request).await.map(drop)
}

/// Of a custom kind without the subresource the status is written with the object, where any change makes a new
/// generation: to tell that one as observed would make the next.
async fn patch_with_status(client: &Client, all: &str, name: &str, mut patch: Value) -> Result<(), Error> {
    let Some(status) = patch["status"].as_object_mut() else { return Ok(()) };
    status.remove("observedGeneration");
    if status.is_empty() {
        return Ok(());
    }
    let request = Request::new(all)
        .patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch))
        .map_err(Error::BuildRequest)?;
    client.request::<PartialObjectMeta<Pod>>(request).await.map(drop)
}

/// Somebody deleted a mirror at the hub: the pod itself is meant. The site's own controllers replace it.
pub async fn delete_at_site(config: &FleetConfig, site: &str, namespace: &str, pod: &str) {
    let api: Api<Pod> = Api::namespaced(config.tunnels.client(site), namespace);
    let params = DeleteParams::default();
    match tokio::time::timeout(std::time::Duration::from_secs(30), api.delete(pod, &params)).await {
        Ok(Ok(_)) => {
            tracing::info!(site, namespace, pod, "deleted at the site, as its mirror was at the hub")
        }
        Ok(Err(error)) => tracing::warn!(site, namespace, pod, %error, "not deleted at the site"),
        Err(_) => tracing::warn!(site, namespace, pod, "not deleted at the site: no answer"),
    }
}

/// An event on the object, or one more of the same. Losing one is no harm.
async fn tell(client: &Client, key: &Key, uid: &str, warning: bool, reason: &str, message: &str) {
    let namespace = if key.namespace.is_empty() { "default" } else { &key.namespace };
    let message = cut(message);
    let digest = hex::encode(Sha256::digest(format!("{key}|{uid}|{reason}|{message}")));
    let name = format!("{}.{}", key.name, &digest[..16]);
    let now = crate::now_text();
    let event = json!({"metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"apiVersion": key.api_version, "kind": key.kind, "name": key.name, "namespace": key.namespace, "uid": uid},
        "type": if warning { "Warning" } else { "Normal" }, "reason": reason, "message": message,
        "source": {"component": "tombolo-fleet"}, "firstTimestamp": now, "lastTimestamp": now, "count": 1});
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let Ok(event) = serde_json::from_value::<Event>(event) else { return };
    if let Err(Error::Api(status)) = api.create(&PostParams::default(), &event).await
        && status.code == 409
        && let Ok(before) = api.get(&name).await
    {
        let count = before.count.unwrap_or(1) + 1;
        let patch = Patch::Merge(json!({"count": count, "lastTimestamp": now}));
        drop(api.patch(&name, &PatchParams::default(), &patch).await);
    }
}

/// As much of a text as an event holds, in whole lines where there are several.
fn cut(text: &str) -> &str {
    const MOST: usize = 1000;
    let text = text.trim_end();
    if text.len() <= MOST {
        return text;
    }
    let most = (0..=MOST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let end = text[..most].rfind('\n').unwrap_or(most);
    text[..end].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_ends_with_a_whole_line() {
        assert_eq!(cut("one\ntwo\n"), "one\ntwo");
        let lines = "a line of some length\n".repeat(100);
        let kept = cut(&lines);
        assert!(kept.len() <= 1000 && kept.len() > 970);
        assert!(kept.lines().all(|line| line == "a line of some length"));
        assert_eq!(cut(&"ü".repeat(600)).chars().count(), 500);
    }
}
