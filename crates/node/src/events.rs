//! Events about pods: what happened and why, for `kubectl describe`.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use tokio::sync::mpsc;

/// Events wait here for the API; when it is full the newest is dropped: events are a courtesy.
const BACKLOG: usize = 256;
/// Remembered for counting repetitions.
const REMEMBERED: usize = 512;

#[derive(Clone)]
pub(crate) struct Events {
    sender: mpsc::Sender<Note>,
}

struct Note {
    about: ObjectReference,
    warning: bool,
    reason: String,
    message: String,
}

impl Events {
    pub fn start(client: Client, node: String) -> Events {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        tokio::spawn(post(client, node, receiver));
        Events { sender }
    }

    pub fn normal(&self, pod: &Pod, container: Option<&str>, reason: &str, message: impl Into<String>) {
        self.send(pod, container, false, reason, message.into());
    }

    pub fn warning(&self, pod: &Pod, container: Option<&str>, reason: &str, message: impl Into<String>) {
        self.send(pod, container, true, reason, message.into());
    }

    fn send(&self, pod: &Pod, container: Option<&str>, warning: bool, reason: &str, message: String) {
        let init = container.is_some_and(|name| {
            pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten()).any(|c| c.name == name)
        });
        let field = if init { "spec.initContainers" } else { "spec.containers" };
        let about = ObjectReference {
            kind: Some("Pod".into()),
            api_version: Some("v1".into()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
            field_path: container.map(|name| format!("{field}{{{name}}}")),
        };
        tracing::info!(pod = about.name, namespace = about.namespace, reason, "{message}");
        let _ = self.sender.try_send(Note { about, warning, reason: reason.to_owned(), message });
    }
}

async fn post(client: Client, node: String, mut notes: mpsc::Receiver<Note>) {
    let mut seen: HashMap<String, (String, i32)> = HashMap::new();
    while let Some(note) = notes.recv().await {
        let namespace = note.about.namespace.clone().unwrap_or_else(|| "default".into());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let uid = note.about.uid.as_deref().unwrap_or_default();
        let key = format!("{uid}/{:?}/{}/{}", note.about.field_path, note.reason, note.message);
        let now = Timestamp::now();
        let outcome = async {
            if let Some((name, count)) = seen.get_mut(&key) {
                *count += 1;
                let patch = serde_json::json!({"count": *count, "lastTimestamp": Time(now)});
                if api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.is_ok() {
                    return Ok(());
                }
            }
            let name = format!("{}.{:x}", note.about.name.as_deref().unwrap_or("pod"), now.as_nanosecond());
            let event = event(&note, &name, &namespace, &node, now);
            api.create(&PostParams::default(), &event).await.map(|_| {
                if seen.len() >= REMEMBERED {
                    seen.clear();
                }
                seen.insert(key, (name, 1));
            })
        };
        match tokio::time::timeout(Duration::from_secs(5), outcome).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, reason = note.reason, "event not recorded"),
            Err(_) => tracing::debug!(reason = note.reason, "event not recorded: the API does not answer"),
        }
    }
}

fn event(note: &Note, name: &str, namespace: &str, node: &str, now: Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        involved_object: note.about.clone(),
        reason: Some(note.reason.clone()),
        message: Some(note.message.chars().take(1024).collect()),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.into()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some("kubelet".into()), host: Some(node.into()) }),
        reporting_component: Some("kubelet".into()),
        reporting_instance: Some(node.into()),
        ..Event::default()
    }
}
