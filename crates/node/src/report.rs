//! Tells the API what a pod is, without ever making the pod wait for the API.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use tokio::sync::watch;

use crate::context::Context;
use crate::pod::spec;
use crate::pod::worker::Wanted;

const PATIENCE: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// Sends the newest status of one pod; older ones that were not sent yet are skipped.
pub(crate) struct Reporter {
    ctx: Arc<Context>,
    api: Api<Pod>,
    name: String,
    uid: String,
    newest: watch::Sender<Option<PodStatus>>,
    task: tokio::task::JoinHandle<()>,
}

impl Reporter {
    pub fn start(ctx: Arc<Context>, pod: &Pod) -> Reporter {
        let api: Api<Pod> = Api::namespaced(ctx.client.clone(), spec::namespace(pod));
        let (newest, receiver) = watch::channel(None);
        let (name, uid) = (spec::name(pod).to_owned(), spec::uid(pod).to_owned());
        let task = tokio::spawn(send_all(ctx.clone(), api.clone(), name.clone(), uid.clone(), receiver));
        Reporter { ctx, api, name, uid, newest, task }
    }

    pub fn report(&self, status: PodStatus) {
        self.newest.send_if_modified(|old| {
            let differs = old.as_ref() != Some(&status);
            if differs {
                *old = Some(status);
            }
            differs
        });
    }

    /// Sends the last status and deletes the pod; returns when it is gone from the API, however long that takes.
    pub async fn finish(&self, last: Option<PodStatus>, wanted: &mut watch::Receiver<Wanted>) {
        self.task.abort();
        let mut last = last;
        loop {
            if matches!(*wanted.borrow(), Wanted::Gone(_)) {
                return;
            }
            if let Some(status) = &last {
                match patch(&self.ctx, &self.api, &self.name, &self.uid, status).await {
                    // A status the API refuses must not keep the pod from going.
                    Sent::Done | Sent::Refused => last = None,
                    Sent::Gone => return,
                    Sent::Later => {}
                }
            }
            if last.is_none() {
                let preconditions = Preconditions { uid: Some(self.uid.clone()), resource_version: None };
                let params = DeleteParams {
                    grace_period_seconds: Some(0),
                    preconditions: Some(preconditions),
                    ..Default::default()
                };
                match tokio::time::timeout(PATIENCE, self.api.delete(&self.name, &params)).await {
                    // A finalizer may keep it; what runs is gone, and the API will say when the object is.
                    Ok(Ok(_)) => return,
                    Ok(Err(kube::Error::Api(status))) if status.code == 404 => return,
                    Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                        if is_another(&self.api, &self.name, &self.uid).await {
                            return;
                        }
                    }
                    Ok(Err(error)) => {
                        tracing::debug!(pod = self.name, %error, "final delete failed, trying again")
                    }
                    Err(_) => self.ctx.set_online(false),
                }
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                _ = wanted.changed() => {}
            }
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn send_all(
    ctx: Arc<Context>,
    api: Api<Pod>,
    name: String,
    uid: String,
    mut newest: watch::Receiver<Option<PodStatus>>,
) {
    let mut sent: Option<PodStatus> = None;
    loop {
        let status = newest.borrow_and_update().clone();
        if let Some(status) = status.filter(|status| sent.as_ref() != Some(status)) {
            match patch(&ctx, &api, &name, &uid, &status).await {
                Sent::Done | Sent::Refused => sent = Some(status),
                Sent::Gone => {}
                Sent::Later => {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
        }
        if newest.changed().await.is_err() {
            return;
        }
    }
}

/// A conflict means either "try again" or "this name belongs to another pod by now".
async fn is_another(api: &Api<Pod>, name: &str, uid: &str) -> bool {
    match tokio::time::timeout(PATIENCE, api.get_opt(name)).await {
        Ok(Ok(Some(pod))) => spec::uid(&pod) != uid,
        Ok(Ok(None)) => true,
        _ => false,
    }
}

enum Sent {
    Done,
    /// The API will never take it.
    Refused,
    Gone,
    Later,
}

async fn patch(ctx: &Context, api: &Api<Pod>, name: &str, uid: &str, status: &PodStatus) -> Sent {
    let Ok(mut value) = serde_json::to_value(status) else { return Sent::Done };
    // A field that is absent now must not stay from before.
    for field in ["reason", "message", "podIP", "podIPs", "initContainerStatuses"] {
        if value.get(field).is_none() {
            value[field] = serde_json::Value::Null;
        }
    }
    // The API merges this list by address; an old one must go.
    if let Some(addresses) = value["podIPs"].as_array_mut() {
        addresses.insert(0, serde_json::json!({"$patch": "replace"}));
    }
    let body = serde_json::json!({"metadata": {"uid": uid}, "status": value});
    let (params, body) = (PatchParams::default(), Patch::Strategic(&body));
    let request = api.patch_status(name, &params, &body);
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(Ok(_)) => Sent::Done,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Sent::Gone,
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
            if is_another(api, name, uid).await {
                Sent::Gone
            } else {
                Sent::Later
            }
        }
        // A uid that is not the pod's is refused as a change of it.
        Ok(Err(kube::Error::Api(status))) if status.code == 422 && is_another(api, name, uid).await => {
            Sent::Gone
        }
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 400 | 413 | 415 | 422) => {
            tracing::warn!(pod = name, error = %status, "the API refused the pod's status");
            Sent::Refused
        }
        Ok(Err(error)) => {
            tracing::debug!(pod = name, %error, "status not sent, trying again");
            Sent::Later
        }
        Err(_) => {
            ctx.set_online(false);
            Sent::Later
        }
    }
}
