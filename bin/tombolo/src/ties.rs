//! The hubs a site (or hub) is tied to: one agent per wish that `tombolo join` wrote down.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tombolo_agent::join::JoinError;
use tombolo_agent::{AgentConfig, AgentError, SiteDial};
use tombolo_apiserver::{Identity, Server};
use tombolo_tunnel::BoxIo;

use crate::commands::join::{
    FAULT_ANNOTATION, TIE_FINALIZER, TIE_LABEL, Tie, clean_up, fault_of, state_of, ties,
};

/// What one copy buffer of an in-process stream holds.
const PIPE: usize = 64 * 1024;
/// Between attempts to leave.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Starts an agent for each tie, starts it anew when the tie is changed, and ends it and cleans up when the tie is removed,
/// until `stop`. A tie is held by a finalizer until all is cleaned up, so leaving goes on after a restart.
///
/// What the hubs want is kept in `folder`, if there is one, so that a site that starts without them knows it.
pub async fn run(
    site: kube::Client,
    server: Server,
    hub_identity: Option<String>,
    folder: Option<PathBuf>,
    stop: CancellationToken,
) {
    let config = watcher::Config::default().labels(TIE_LABEL);
    let mut events = Box::pin(watcher(ties(&site), config).default_backoff());
    let mut ties =
        Ties { site, server, hub_identity, folder, stop, agents: HashMap::new(), leaving: HashMap::new() };
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = ties.stop.cancelled() => break,
        };
        match event {
            Some(Ok(Event::Apply(secret) | Event::InitApply(secret))) => ties.see(&secret).await,
            Some(Ok(Event::Delete(secret))) => ties.gone(&secret),
            Some(Ok(Event::Init | Event::InitDone)) => {}
            Some(Err(error)) => tracing::debug!(%error, "watching ties"),
            None => break,
        }
    }
}

struct Ties {
    site: kube::Client,
    server: Server,
    hub_identity: Option<String>,
    folder: Option<PathBuf>,
    stop: CancellationToken,
    agents: HashMap<String, Agent>,
    /// Hubs that are being left.
    leaving: HashMap<String, JoinHandle<()>>,
}

impl Ties {
    async fn see(&mut self, secret: &Secret) {
        if secret.metadata.deletion_timestamp.is_some() {
            return self.leave(secret);
        }
        let Some(tie) = Tie::from_secret(secret) else {
            return tracing::warn!(
                secret = secret.metadata.name,
                "a tie to a hub is incomplete; run `tombolo join` again"
            );
        };
        // One that gave up tries again when it is asked to, which takes away what it came to.
        let asked_again = fault_of(secret).is_none();
        let goes_on = |agent: &Agent| agent.tie == tie && !(asked_again && agent.task.is_finished());
        if self.agents.get(&tie.name).is_some_and(goes_on) {
            return;
        }
        if let Err(error) = set_finalizer(&self.site, secret, true).await {
            tracing::warn!(hub = tie.url, %error, "a tie is not held: leaving that is interrupted will not go on");
        }
        tracing::info!(hub = tie.url, name = tie.description.name, "tying to hub");
        let old = self.agents.remove(&tie.name);
        let name = tie.name.clone();
        let agent = self.start(tie, old);
        self.agents.insert(name, agent);
    }

    /// The tie is gone: after we let it go, or because it was not held.
    fn gone(&mut self, secret: &Secret) {
        if self.agents.contains_key(&secret.name_any()) {
            self.leave(secret);
        }
        self.leaving.retain(|_, task| !task.is_finished());
    }

    /// Ends the agent and cleans up what its hub placed here; the hub need not be there for it.
    fn leave(&mut self, secret: &Secret) {
        let name = secret.name_any();
        if self.leaving.get(&name).is_some_and(|task| !task.is_finished()) {
            return;
        }
        let agent = self.agents.remove(&name);
        let folder = self.folder.as_ref().map(|folder| folder.join(state_of(&name)));
        let (site, stop, secret) = (self.site.clone(), self.stop.clone(), secret.clone());
        let task = tokio::spawn(async move {
            tokio::select! {
                () = leave(&site, agent, &secret, folder) => {}
                () = stop.cancelled() => {}
            }
        });
        self.leaving.insert(name, task);
    }

    /// `old` ends before the new one begins: limits that were made tighter count for what is open, too.
    fn start(&self, tie: Tie, old: Option<Agent>) -> Agent {
        let stop = self.stop.child_token();
        let state = state_of(&tie.name);
        let mut spec = tie.description.spec.clone();
        // Our own nodes stop a pod by its deadline, or refuse to start it.
        spec.fences |= self.hub_identity.is_none();
        spec.hubs.extend(self.hub_identity.clone());
        let config = AgentConfig {
            site: self.site.clone(),
            site_dial: Some(Arc::new(InProcess(self.server.clone()))),
            acting_as: tie.acting_as.clone(),
            hub_url: tie.url.clone(),
            ca_hash: Some(tie.ca_hash.clone()),
            token: Some(tie.token.clone()),
            name: tie.description.name.clone(),
            spec,
            labels: tie.description.labels.clone(),
            keep: self.folder.as_ref().map(|folder| folder.join(&state)),
            state,
            hub_identity: self.hub_identity.clone(),
            shutdown: stop.clone(),
        };
        let (url, name, site) = (tie.url.clone(), tie.name.clone(), self.site.clone());
        let task = tokio::spawn(async move {
            if let Some(old) = old {
                old.end().await;
            }
            if let Err(error) = tombolo_agent::run(config).await {
                tracing::error!(hub = url, %error, "the agent ended");
                tell_fault(&site, &name, &fault(error)).await;
            }
        });
        Agent { tie, stop, task }
    }
}

/// Why a tie came to nothing, with what to do about it.
fn fault(error: AgentError) -> String {
    let is_token = |e: &kube::Error| matches!(e, kube::Error::Api(s) if s.code == 401 || s.code == 403);
    match error {
        AgentError::Join(JoinError::Hub(error)) if is_token(&error) => {
            "the token is unknown, expired or used up; `tombolo token create` at the hub makes a new one"
                .into()
        }
        error => crate::fault::words(&error.into()),
    }
}

/// Whoever typed `tombolo join` looks for it at the tie.
async fn tell_fault(site: &kube::Client, tie: &str, why: &str) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {FAULT_ANNOTATION: why}}}));
    match ties(site).patch(tie, &PatchParams::default(), &patch).await {
        Ok(_) => {}
        // It is being left.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => tracing::warn!(tie, %error, "why the agent ended cannot be told"),
    }
}

async fn leave(site: &kube::Client, agent: Option<Agent>, secret: &Secret, folder: Option<PathBuf>) {
    if let Some(agent) = agent {
        agent.end().await;
    }
    let name = secret.name_any();
    loop {
        match clean_up(site, &name).await {
            Ok(0) => break,
            Ok(left) => {
                tracing::error!(tie = name, left, "leaving the hub left something behind; tried again")
            }
            Err(error) => tracing::error!(tie = name, %error, "leaving the hub is tried again"),
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
    if let Some(folder) = folder {
        // Not there if the hub never sent anything.
        let _ = std::fs::remove_dir_all(folder);
    }
    while let Err(error) = set_finalizer(site, secret, false).await {
        tracing::warn!(tie = name, %error, "a tie that was left is still there");
        tokio::time::sleep(TRY_AGAIN).await;
    }
    tracing::info!(tie = name, "left the hub");
}

/// Holds the tie, or lets it go.
async fn set_finalizer(site: &kube::Client, secret: &Secret, held: bool) -> Result<(), kube::Error> {
    let mut all = secret.finalizers().to_vec();
    if all.iter().any(|f| f == TIE_FINALIZER) == held {
        return Ok(());
    }
    all.retain(|f| f != TIE_FINALIZER);
    all.extend(held.then(|| TIE_FINALIZER.to_owned()));
    let patch = Patch::Merge(json!({"metadata": {"uid": secret.metadata.uid, "finalizers": all}}));
    match ties(site).patch(&secret.name_any(), &PatchParams::default(), &patch).await {
        // Of another Secret by that name, the API says that its uid cannot change.
        Err(kube::Error::Api(status))
            if matches!(status.code, 404 | 409) || status.message.contains("metadata.uid") =>
        {
            Ok(())
        }
        other => other.map(drop),
    }
}

struct Agent {
    tie: Tie,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Agent {
    async fn end(self) {
        self.stop.cancel();
        // A panic in it was logged, and it is over in any case.
        let _ = self.task.await;
    }
}

/// The site's API server in this process, as a byte stream.
struct InProcess(Server);

#[async_trait]
impl SiteDial for InProcess {
    async fn dial(&self) -> io::Result<BoxIo> {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let server = self.0.clone();
        // The agent has already turned the hub's call into one of the identity that the owner chose.
        tokio::spawn(
            async move { server.serve_stream(theirs, Identity::system("system:tombolo:agent")).await },
        );
        Ok(Box::new(ours))
    }
}
