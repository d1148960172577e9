//! The hubs a site (or hub) is tied to: one agent per wish that `tombolo join` wrote down.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio_util::sync::CancellationToken;
use tombolo_agent::{AgentConfig, SiteDial};
use tombolo_apiserver::{Identity, Server};
use tombolo_tunnel::BoxIo;

use crate::commands::join::{TIE_LABEL, Tie, state_name, ties};

/// What one copy buffer of an in-process stream holds.
const PIPE: usize = 64 * 1024;

/// Starts an agent for each tie, and ends it when the tie is removed, until `stop`.
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
    let mut agents: HashMap<String, Agent> = HashMap::new();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = stop.cancelled() => break,
        };
        match event {
            Some(Ok(Event::Apply(secret) | Event::InitApply(secret))) => {
                let Some(tie) = Tie::from_secret(&secret) else {
                    tracing::warn!(
                        secret = secret.metadata.name,
                        "a tie to a hub is incomplete; run `tombolo join` again"
                    );
                    continue;
                };
                if agents.get(&tie.name).is_none_or(|agent| agent.url != tie.url || agent.token != tie.token)
                {
                    tracing::info!(hub = tie.url, name = tie.description.name, "tying to hub");
                    let agent =
                        Agent::start(&site, &server, &tie, hub_identity.clone(), folder.as_deref(), &stop);
                    if let Some(old) = agents.insert(tie.name.clone(), agent) {
                        old.stop.cancel();
                    }
                }
            }
            Some(Ok(Event::Delete(secret))) => leave(&site, &mut agents, folder.as_deref(), &secret).await,
            Some(Ok(Event::Init | Event::InitDone)) => {}
            Some(Err(error)) => tracing::debug!(%error, "watching ties"),
            None => break,
        }
    }
}

/// Ends the agent of a removed tie and cleans up what its hub placed here; the hub need not be there for it.
async fn leave(
    site: &kube::Client,
    agents: &mut HashMap<String, Agent>,
    folder: Option<&Path>,
    secret: &Secret,
) {
    let Some(agent) = secret.metadata.name.as_ref().and_then(|name| agents.remove(name)) else { return };
    agent.stop.cancel();
    if let Err(error) = tombolo_agent::leave(site, &agent.state, false).await {
        tracing::error!(hub = agent.url, %error, "leaving the hub left something behind");
    }
    if let Some(folder) = folder {
        // Not there if the hub never sent anything.
        let _ = std::fs::remove_dir_all(folder.join(&agent.state));
    }
}

struct Agent {
    url: String,
    token: String,
    state: String,
    stop: CancellationToken,
}

impl Agent {
    fn start(
        site: &kube::Client,
        server: &Server,
        tie: &Tie,
        hub_identity: Option<String>,
        folder: Option<&Path>,
        stop: &CancellationToken,
    ) -> Self {
        let stop = stop.child_token();
        let state = state_name(&tie.url);
        let mut spec = tie.description.spec.clone();
        // Our own nodes stop a pod by its deadline, or refuse to start it.
        spec.fences |= hub_identity.is_none();
        spec.hubs.extend(hub_identity.clone());
        let config = AgentConfig {
            site: site.clone(),
            site_dial: Some(Arc::new(InProcess(server.clone()))),
            acting_as: tie.acting_as.clone(),
            hub_url: tie.url.clone(),
            ca_hash: Some(tie.ca_hash.clone()),
            token: Some(tie.token.clone()),
            name: tie.description.name.clone(),
            spec,
            labels: tie.description.labels.clone(),
            state: state.clone(),
            keep: folder.map(|folder| folder.join(&state)),
            hub_identity,
            shutdown: stop.clone(),
        };
        let url = tie.url.clone();
        tokio::spawn(async move {
            if let Err(error) = tombolo_agent::run(config).await {
                tracing::error!(hub = url, %error, "the agent ended");
            }
        });
        Self { url: tie.url.clone(), token: tie.token.clone(), state, stop }
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
