//! Carries out actions and offers the answers to the caches.

use super::{
    Action, Announce, Json, Key, Note, PatchKind, Recorder, Resource, Severity, World,
    queue::{Queue, Task},
};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Asks for nothing but the metadata of an object.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Requests in flight at once, over all controllers.
const IN_FLIGHT: usize = 64;
/// Requests in flight at once for one key, so that a huge set leaves room for others.
const PER_KEY: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum ActError {
    #[error("{verb} {path}: {source}")]
    Request { verb: &'static str, path: String, source: Box<kube::Error> },
    #[error("{0}")]
    Refused(String),
}

impl ActError {
    fn code(&self) -> u16 {
        match self {
            Self::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => status.code,
                _ => 0,
            },
            Self::Refused(_) => 0,
        }
    }

    /// What the server said, without the request around it.
    pub fn reason(&self) -> String {
        match self {
            Self::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => status.message.clone(),
                other => other.to_string(),
            },
            Self::Refused(text) => text.clone(),
        }
    }

    pub fn is_conflict(&self) -> bool {
        self.code() == 409
    }

    pub fn is_namespace_terminating(&self) -> bool {
        let Self::Request { source, .. } = self else { return false };
        let kube::Error::Api(status) = source.as_ref() else { return false };
        let causes = status.details.iter().flat_map(|details| &details.causes);
        status.code == 403 && causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == 404
    }
}

/// What controllers act through; cheap to clone.
#[derive(Clone)]
pub struct Shell {
    pub client: Client,
    pub world: Arc<World>,
    pub events: Recorder,
    pub(super) queue: Arc<Queue>,
    in_flight: Arc<Semaphore>,
}

impl Shell {
    pub fn new(client: Client, world: Arc<World>, events: Recorder) -> Self {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
        Self { client, world, events, queue: Arc::default(), in_flight }
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// Runs a plan for `task`; returns when it wants to be planned again.
    pub(super) async fn act_for(&self, task: &Task, plan: Vec<Action>) -> Result<Option<Duration>, ActError> {
        let mut again = None;
        let mut rest = plan.into_iter().peekable();
        while let Some(first) = rest.next() {
            let first = match first {
                Action::After(delay) => {
                    again = Some(again.map_or(delay, |known: Duration| known.min(delay)));
                    continue;
                }
                Action::Tell(note) => {
                    self.events.tell(note);
                    continue;
                }
                first => first,
            };
            if first.is_status() && self.queue.defer(task) {
                return Ok(again);
            }
            let mut together = vec![first];
            while let Some(next) = rest.next_if(|next| together[0].joins(next)) {
                together.push(next);
            }
            self.run_together(together).await?;
        }
        Ok(again)
    }

    /// Runs a plan outside of the queue.
    pub async fn act(&self, plan: Vec<Action>) -> Result<(), ActError> {
        for action in plan {
            match action {
                Action::Tell(note) => self.events.tell(note),
                Action::After(_) => {}
                action => self.run(action).await?,
            }
        }
        Ok(())
    }

    async fn run_together(&self, actions: Vec<Action>) -> Result<(), ActError> {
        if actions.len() == 1 {
            for action in actions {
                self.run(action).await?;
            }
            return Ok(());
        }
        stream::iter(actions.into_iter().map(|action| self.run(action)))
            .buffer_unordered(PER_KEY)
            .try_collect::<()>()
            .await
    }

    async fn run(&self, action: Action) -> Result<(), ActError> {
        match action {
            Action::Create { resource, namespace, body, announce } => {
                match self.send("POST", &resource.path(&namespace, "", ""), "application/json", body.0).await
                {
                    Ok(answer) => {
                        let created = self.world.offer(&resource, &answer);
                        if let (Some(announce), Some(name)) = (announce, created) {
                            self.world.refusals.forget(announce.about.uid.as_deref().unwrap_or_default());
                            let message = format!("Created pod: {name}");
                            self.announce(*announce, Severity::Normal, "SuccessfulCreate", message);
                        }
                    }
                    Err(error) if error.is_conflict() => {
                        tracing::debug!(resource = %resource.plural, namespace, %error, "exists already");
                    }
                    // Nothing new may be made there, and nothing is needed any more.
                    Err(error) if error.is_namespace_terminating() => {}
                    Err(error) => {
                        if let Some(announce) = announce {
                            let uid = announce.about.uid.as_deref().unwrap_or_default();
                            self.world.refusals.note(uid, error.reason());
                            let message = format!("Error creating: {}", error.reason());
                            self.announce(*announce, Severity::Warning, "FailedCreate", message);
                        }
                        return Err(error);
                    }
                }
            }
            Action::Patch { resource, namespace, name, subresource, kind, body } => {
                let path = resource.path(&namespace, &name, subresource);
                let answer = self.send("PATCH", &path, kind.content_type(), body.0).await?;
                let _ = self.world.offer(&resource, &answer);
            }
            Action::Replace { resource, namespace, name, subresource, body } => {
                let path = resource.path(&namespace, &name, subresource);
                let answer = self.send("PUT", &path, "application/json", body.0).await?;
                self.world.offer(&resource, &answer);
            }
            Action::Delete { resource, namespace, name, uid, grace_seconds, propagation } => {
                let path = resource.path(&namespace, &name, "");
                let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
                if let Some(uid) = &uid {
                    options["preconditions"] = json!({ "uid": uid });
                }
                if let Some(seconds) = grace_seconds {
                    options["gracePeriodSeconds"] = json!(seconds);
                }
                if let Some(policy) = propagation {
                    options["propagationPolicy"] = json!(policy);
                }
                match self.send("DELETE", &path, "application/json", Json::of(&options).0).await {
                    Ok(answer) => {
                        self.world.offer(&resource, &answer);
                        self.world.mark_deleting(
                            &resource,
                            &Key::new(namespace, name),
                            uid.as_deref(),
                            self.now(),
                        );
                    }
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
            Action::Tell(note) => self.events.tell(note),
            Action::After(_) => {}
        }
        Ok(())
    }

    fn announce(&self, announce: Announce, severity: Severity, reason: &'static str, message: String) {
        let Announce { about, component } = announce;
        self.events.tell(Note { about, severity, reason, message, component });
    }

    /// Reads one object; `None` when it does not exist.
    pub async fn get<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, ActError> {
        self.read("application/json", resource, namespace, name).await
    }

    /// Reads the metadata of one object, which is the same in every version of its kind.
    pub async fn get_metadata<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, ActError> {
        self.read(METADATA, resource, namespace, name).await
    }

    async fn read<T: DeserializeOwned>(
        &self,
        accept: &'static str,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<T>, ActError> {
        let path = resource.path(namespace, name, "");
        match self.request("GET", &path, accept, "application/json", Vec::new()).await {
            Ok(answer) => serde_json::from_str(&answer)
                .map(Some)
                .map_err(|error| ActError::Refused(format!("GET {path}: answer not understood: {error}"))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists a collection as metadata only.
    pub async fn list_metadata(&self, path: &str) -> Result<String, ActError> {
        const ACCEPT: &str =
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        self.request("GET", path, ACCEPT, "application/json", Vec::new()).await
    }

    pub async fn patch(
        &self,
        path: &str,
        kind: PatchKind,
        body: &serde_json::Value,
    ) -> Result<String, ActError> {
        self.send("PATCH", path, kind.content_type(), Json::of(body).0).await
    }

    /// Merges into the metadata of one object.
    pub async fn patch_metadata(&self, path: &str, body: &serde_json::Value) -> Result<String, ActError> {
        let kind = PatchKind::Merge.content_type();
        self.request("PATCH", path, METADATA, kind, Json::of(body).0).await
    }

    pub async fn send(
        &self,
        verb: &'static str,
        path: &str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<String, ActError> {
        self.request(verb, path, "application/json", content_type, body).await
    }

    async fn request(
        &self,
        verb: &'static str,
        path: &str,
        accept: &'static str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<String, ActError> {
        let _permit = self.in_flight.acquire().await;
        let request = http::Request::builder()
            .method(verb)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .header(http::header::ACCEPT, accept)
            .body(body)
            .map_err(|error| ActError::Refused(format!("{verb} {path}: not a valid request: {error}")))?;
        self.client.request_text(request).await.map_err(|source| ActError::Request {
            verb,
            path: path.to_owned(),
            source: Box::new(source),
        })
    }
}
