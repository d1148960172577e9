//! Events for users. They are written beside the work, few at a time, and repeats only count up.

use super::{Note, Severity};
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

/// Events that wait to be written; when full, the oldest are dropped: they are news, not records.
const WAITING: usize = 4096;
/// Events that are remembered so that a repeat counts up instead of making a new one.
const REMEMBERED: usize = 1024;
const IN_FLIGHT: usize = 4;
/// Events wait so long before they are written: first what they tell of, then the telling.
const PATIENCE: Duration = Duration::from_millis(200);

#[derive(Clone)]
pub struct Recorder {
    client: Client,
    waiting: Arc<Mutex<VecDeque<(Note, Timestamp)>>>,
    wake: Arc<Notify>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Same {
    uid: String,
    reason: &'static str,
    message: String,
}

struct Written {
    namespace: String,
    name: String,
    count: i32,
}

impl Recorder {
    pub fn new(client: Client) -> Self {
        Self { client, waiting: Arc::default(), wake: Arc::default() }
    }

    /// Never waits.
    pub fn tell(&self, note: Note) {
        let mut waiting = self.waiting.lock();
        if waiting.len() == WAITING {
            waiting.pop_front();
        }
        waiting.push_back((note, Timestamp::now()));
        drop(waiting);
        self.wake.notify_one();
    }

    pub async fn run(self, shutdown: CancellationToken) {
        let slots = Arc::new(Semaphore::new(IN_FLIGHT));
        let mut written: HashMap<Same, Written> = HashMap::new();
        loop {
            let next = self.waiting.lock().pop_front();
            let Some((note, at)) = next else {
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = shutdown.cancelled() => return,
                }
                tokio::time::sleep(PATIENCE).await;
                continue;
            };
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            if written.len() >= REMEMBERED {
                written.clear();
            }
            let same = Same {
                uid: note.about.uid.clone().unwrap_or_default(),
                reason: note.reason,
                message: note.message.clone(),
            };
            let (verb, path, content_type, body) = match written.get_mut(&same) {
                Some(known) => {
                    known.count += 1;
                    let path = format!("/api/v1/namespaces/{}/events/{}", known.namespace, known.name);
                    let body = json!({"count": known.count, "lastTimestamp": seconds(at)});
                    ("PATCH", path, "application/merge-patch+json", body)
                }
                None => {
                    let (namespace, name, body) = event(&note, at);
                    let path = format!("/api/v1/namespaces/{namespace}/events");
                    written.insert(same, Written { namespace, name, count: 1 });
                    ("POST", path, "application/json", body)
                }
            };
            let client = self.client.clone();
            tokio::spawn(async move {
                let request = http::Request::builder()
                    .method(verb)
                    .uri(path)
                    .header(http::header::CONTENT_TYPE, content_type)
                    .body(body.to_string().into_bytes());
                if let Ok(request) = request
                    && let Err(error) = client.request_text(request).await
                {
                    tracing::debug!(%error, "event not written");
                }
                drop(slot);
            });
        }
    }
}

fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn event(note: &Note, at: Timestamp) -> (String, String, Value) {
    let namespace =
        note.about.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".into());
    let about = note.about.name.as_deref().unwrap_or_default();
    let name = format!("{about}.{:x}", at.as_nanosecond());
    let body = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": name},
        "involvedObject": note.about,
        "type": match note.severity { Severity::Normal => "Normal", Severity::Warning => "Warning" },
        "reason": note.reason,
        "message": note.message,
        "count": 1,
        "firstTimestamp": seconds(at),
        "lastTimestamp": seconds(at),
        "source": {"component": note.component},
        "reportingComponent": note.component,
        "reportingInstance": "",
    });
    (namespace, name, body)
}
