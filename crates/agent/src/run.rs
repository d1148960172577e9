//! The agent's life: join once, dial, serve a session until it breaks, dial again.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use tokio_util::sync::CancellationToken;
use tombolo_tunnel::{Backoff, Connection, DialError, random_fraction};

use crate::apply::Applier;
use crate::config::AgentConfig;
use crate::execute::{self, Epoch};
use crate::join::{self, JoinError};
use crate::keep::Keep;
use crate::leave::{self, Removal};
use crate::observe::Shared;
use crate::serve::{Server, acting};
use crate::state::{State, StateSecret};
use crate::works::{self, Position};
use crate::{clean, doors, report};

const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Milliseconds between two answered heartbeats after which works are compared anew. The hub moves what may run at most once
/// no sooner than 15 seconds after its lease.
const LONG_PAUSE: u64 = 10_000;
/// A session that lasted this long was a good one: the next wait is short again.
const GOOD: Duration = Duration::from_secs(30);

/// Between looks at the certificate, and before something that went wrong is tried again.
const LONGEST_REST: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error("cannot keep the agent's state at the site: {0}")]
    State(#[source] Box<kube::Error>),
    #[error("the hub's certificate authority or our certificate cannot be read: {0}")]
    Tls(#[from] tombolo_tunnel::tls::TlsError),
    #[error("`{0}` is no hub address; it looks like https://hub.example:6443")]
    Address(String),
    #[error("the hub does not take this site's certificate any more; join again with a new token: {0}")]
    Revoked(String),
    #[error("the hub removed this site: {0}")]
    Removed(String),
    #[error(
        "this cluster is tied to the hub as {tied}, not as {asked}: use `--name {tied}`, or leave the hub first"
    )]
    Name { tied: String, asked: String },
}

/// What goes on whether or not the hub is there, and how to end it.
type Running = (Arc<Shared>, Arc<Epoch>, CancellationToken);

/// Ties the site to the hub until `shutdown`, or until joining can no longer succeed.
pub async fn run(config: AgentConfig) -> Result<(), AgentError> {
    let shutdown = config.shutdown.clone();
    let closing = shutdown.child_token();
    let _stop = closing.clone().drop_guard();
    tokio::select! {
        result = live(config, closing) => result,
        () = shutdown.cancelled() => Ok(()),
    }
}

async fn live(config: AgentConfig, closing: CancellationToken) -> Result<(), AgentError> {
    let secret = StateSecret::new(config.site.clone(), &config.state);
    let mut state = load(&secret).await;
    if let Some(tied) = state.site().filter(|tied| state.joined() && *tied != config.name) {
        return Err(AgentError::Name { tied, asked: config.name.clone() });
    }
    let mut running: Option<Running> = None;
    let mut position = Position::default();
    // The door that led to the hub last.
    let mut door: Option<String> = None;
    // A tie that takes the place of a worse one, at the same door.
    let mut better: Option<(String, Connection)> = None;
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    loop {
        let saved = state.clone();
        // What the hub wanted is kept right also while nobody can tell whether it still takes our certificate.
        if state.joined() {
            running.get_or_insert_with(|| start(&config, &state, &closing));
        }
        if state.joined() && expired(&state) {
            match renew_until_final(&config, &state, &mut backoff).await {
                Ok(renewed) => state = renewed,
                // A token that was not used before may still bring the site back.
                Err(error) if !unused_token(&config, &state) => return Err(error.into()),
                Err(error) => tracing::error!(site = config.name, %error, "the certificate is over"),
            }
        }
        if !state.joined() || expired(&state) || new_token(&config, &state) {
            state = join_until_final(&config, &state, &mut backoff).await?;
            tracing::info!(site = config.name, hub = state.hub, "joined");
        }
        if saved != state {
            secret.save(&state).await.map_err(|e| AgentError::State(Box::new(e)))?;
        }
        // Another hub than before: what was learned from the old one does not count.
        if let Some((.., acting)) = running.take_if(|(shared, ..)| shared.applier.hub != state.hub) {
            acting.cancel();
            position = Position::default();
        }
        let (shared, epoch, _) = running.get_or_insert_with(|| start(&config, &state, &closing)).clone();
        let started = std::time::Instant::now();
        let dialed = match better.take() {
            Some(found) => Ok(found),
            None => doors::dial(&config, &state, door.as_deref()).await,
        };
        match dialed {
            Ok((opened, connection)) => {
                tracing::info!(
                    site = config.name,
                    door = opened,
                    carrier = connection.carrier(),
                    "tied to the hub"
                );
                let known = state.clone();
                let why = tokio::select! {
                    why = session(&config, &connection, &shared, &epoch, &secret, &mut state, &mut position) => why,
                    found = doors::improve(&config, &known, &opened, &connection) => {
                        better = Some((opened.clone(), found));
                        "QUIC passes again".into()
                    }
                };
                door = Some(opened);
                connection.close(&why);
                position.leave();
                if better.is_some() {
                    tracing::info!(site = config.name, why, "leaving the tie over TCP");
                    continue;
                }
                tracing::warn!(site = config.name, why, "the tie to the hub broke");
                if revoked(&why) {
                    give_up_certificate(&config, &secret, &mut state, &why).await?;
                }
                if let Some(removal) = leave::removal(&why) {
                    part(&config, &secret, &mut state, running.take(), &why, removal).await?;
                    position = Position::default();
                }
            }
            Err(error @ DialError::Refused { status: 401 | 403 | 410, .. }) => {
                let message = error.to_string();
                tracing::error!(site = config.name, message, "the hub does not know this site");
                if revoked(&message) {
                    give_up_certificate(&config, &secret, &mut state, &message).await?;
                }
                if let DialError::Refused { message, .. } = &error
                    && let Some(removal) = leave::removal(message)
                {
                    part(&config, &secret, &mut state, running.take(), message, removal).await?;
                    position = Position::default();
                }
            }
            Err(error) => {
                tracing::warn!(site = config.name, %error, "cannot dial the hub");
            }
        }
        if started.elapsed() > GOOD {
            backoff.reset();
        }
        tokio::time::sleep(backoff.next(random_fraction())).await;
    }
}

/// Does the hub say that it no longer takes our certificate, though it knows the site?
fn revoked(why: &str) -> bool {
    why.contains("was revoked")
}

/// With a token that was not used before the site joins again; without one there is nothing left to try.
async fn give_up_certificate(
    config: &AgentConfig,
    secret: &StateSecret,
    state: &mut State,
    why: &str,
) -> Result<(), AgentError> {
    state.removed = why.to_owned();
    secret.save(state).await.map_err(|e| AgentError::State(Box::new(e)))?;
    if new_token(config, state) { Ok(()) } else { Err(AgentError::Revoked(why.to_owned())) }
}

/// The hub removed this site. What it wanted is no longer kept right, else it would come back while it is cleaned up. An
/// agent that ends in the middle of it has not noted the removal: the next one is told again.
async fn part(
    config: &AgentConfig,
    secret: &StateSecret,
    state: &mut State,
    running: Option<Running>,
    why: &str,
    removal: Removal,
) -> Result<(), AgentError> {
    if let Some((shared, epoch, acting)) = running {
        acting.cancel();
        leave::was_removed(&shared, epoch.get(), &removal).await;
    }
    state.removed = why.to_owned();
    secret.save(state).await.map_err(|e| AgentError::State(Box::new(e)))?;
    if new_token(config, state) { Ok(()) } else { Err(AgentError::Removed(removal.message)) }
}

/// The site's own API may come up after the agent.
async fn load(secret: &StateSecret) -> State {
    let mut backoff = Backoff::new(FIRST_WAIT, Duration::from_secs(5));
    loop {
        match secret.load().await {
            Ok(state) => return state,
            Err(error) => tracing::warn!(%error, "the site's API does not answer"),
        }
        tokio::time::sleep(backoff.next(random_fraction())).await;
    }
}

/// A certificate that is over is renewed with itself, once the hub can be reached.
async fn renew_until_final(
    config: &AgentConfig,
    state: &State,
    backoff: &mut Backoff,
) -> Result<State, JoinError> {
    tracing::warn!(site = config.name, "the certificate is over; asking the hub for another one");
    loop {
        match join::renew_outdated(config, state).await {
            Ok(renewed) => {
                backoff.reset();
                tracing::info!(site = config.name, "certificate renewed");
                return Ok(renewed);
            }
            Err(error) if error.is_final() => return Err(error),
            Err(error) => tracing::warn!(%error, hub = config.hub_url, "cannot renew the certificate yet"),
        }
        tokio::time::sleep(backoff.next(random_fraction())).await;
    }
}

async fn join_until_final(
    config: &AgentConfig,
    old: &State,
    backoff: &mut Backoff,
) -> Result<State, JoinError> {
    loop {
        match join::join(config, old).await {
            Ok(state) => {
                backoff.reset();
                return Ok(state);
            }
            Err(error) if error.is_final() => return Err(error),
            Err(error) => tracing::warn!(%error, hub = config.hub_url, "cannot join yet"),
        }
        tokio::time::sleep(backoff.next(random_fraction())).await;
    }
}

fn expired(state: &State) -> bool {
    state.validity().is_none_or(|(_, end)| end <= jiff::Timestamp::now().as_second())
}

/// After a removal, a token that was not used before brings the site back.
fn new_token(config: &AgentConfig, state: &State) -> bool {
    !state.removed.is_empty() && unused_token(config, state)
}

fn unused_token(config: &AgentConfig, state: &State) -> bool {
    let id = config.token.as_deref().and_then(|t| t.split('.').next());
    id.is_some_and(|id| id != state.token_id)
}

/// What runs whether or not the hub is there.
fn start(config: &AgentConfig, state: &State, closing: &CancellationToken) -> Running {
    let closing = closing.child_token();
    let as_hub_wishes = acting(&config.site, config.acting_as.as_ref());
    let applier = Applier::new(config.site.clone(), as_hub_wishes, &state.hub);
    let shared = Shared::new(applier, Keep::new(config.keep.clone()), closing.clone());
    works::recall(&shared);
    let epoch = Arc::new(Epoch::new(state.epoch));
    let spawn = |task: futures::future::BoxFuture<'static, ()>| {
        let closing = closing.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = task => {}
                () = closing.cancelled() => {}
            }
        });
    };
    spawn(Box::pin(shared.clone().watch_pods(config.site.clone())));
    spawn(Box::pin(shared.clone().watch_nodes(config.site.clone())));
    if config.hub_identity.is_some() {
        *shared.below.lock() = None;
        spawn(Box::pin(shared.clone().watch_sites_below(config.site.clone())));
    }
    let keeper = shared.clone();
    spawn(Box::pin(async move { keeper.keep.run().await }));
    spawn(Box::pin(execute::run(shared.clone(), epoch.clone(), config.hub_identity.clone())));
    (shared, epoch, closing)
}

/// Runs all that needs the hub, until the connection or one of its users gives up; says why.
async fn session(
    config: &AgentConfig,
    connection: &Connection,
    shared: &Arc<Shared>,
    epoch: &Arc<Epoch>,
    secret: &StateSecret,
    state: &mut State,
    position: &mut Position,
) -> String {
    let hub = tombolo_tunnel::client(connection.clone());
    let server = Server {
        site: config.site.clone(),
        dial: config.site_dial.clone(),
        acting_as: config.acting_as.clone(),
    };
    let serving = tokio::spawn(server.run(connection.clone()));
    let _stop = AbortOnDrop(serving);
    // However this ends, the hub must not go on hearing heartbeats of an agent that does nothing.
    let _close = CloseOnDrop(connection.clone());
    let version = config.site.apiserver_version().await.map(|v| v.git_version).unwrap_or_default();
    let seen = epoch.clone();
    tokio::select! {
        why = connection.closed() => why,
        error = report::reports(hub.clone(), config.name.clone(), shared.clone()) => {
            reason(connection, format!("reporting to the hub: {error}")).await
        }
        error = report::site_status(hub.clone(), config.name.clone(), shared.clone(), version, move || seen.get()) => {
            reason(connection, format!("reporting the site to the hub: {error}")).await
        }
        result = works::follow(&hub, &config.name, shared, position) => {
            let error = result.err().map_or_else(String::new, |e| e.to_string());
            reason(connection, format!("watching works at the hub: {error}")).await
        }
        error = remember(&hub, config, epoch, secret, state) => error,
        error = renew_lease(&hub, config, connection, shared) => error,
    }
}

/// For workloads that may run at most once: how fresh the tie to the hub is, on record at the site, where the nodes that
/// must stop them read it. What counts is when the last heartbeat that the hub acknowledged was *sent*, on the boot clock;
/// `renewTime` says the same for people.
async fn renew_lease(
    hub: &Client,
    config: &AgentConfig,
    connection: &Connection,
    shared: &Arc<Shared>,
) -> String {
    let name = clean::lease_name(&shared.applier.hub);
    let api: kube::Api<Lease> =
        kube::Api::namespaced(config.site.clone(), tombolo_api::names::SYSTEM_NAMESPACE);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let (machine, boot) = (read("/etc/machine-id"), read("/proc/sys/kernel/random/boot_id"));
    let wanted = shared.ledger.lock().lease_wanted.clone();
    let mut last: Option<u64> = None;
    let mut last_for = String::new();
    let mut caught_up = false;
    let mut tie = uuid::Uuid::new_v4().to_string();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let terms = shared.ledger.lock().lease_seconds();
        let Some((seconds, between)) = terms else {
            wanted.notified().await;
            continue;
        };
        let (Some(sent), Some(now)) = (connection.answered(), tombolo_tunnel::boot_millis()) else {
            continue;
        };
        let age = Duration::from_millis(now.saturating_sub(sent));
        if age >= Duration::from_secs(between.max(4) as u64 / 4) {
            connection.poke();
        }
        let leased =
            || shared.ledger.lock().leased().map(|(work, _)| work.clone()).collect::<Vec<_>>().join(" ");
        // A Work that came since the last heartbeat need not wait for the next one.
        if last == Some(sent) && (!caught_up || leased() == last_for) {
            continue;
        }
        // The same tunnel may have been mute for so long that the hub counted us as lost.
        if caught_up && last.is_some_and(|last| sent.saturating_sub(last) > LONG_PAUSE) {
            caught_up = false;
            tie = uuid::Uuid::new_v4().to_string();
        }
        // What the hub placed elsewhere while we were away must be gone before anything may run on a fresh lease. First the
        // hub is told that we are about to, then it is asked: either it sees our word before it places elsewhere, or we see
        // its tombstone.
        if !caught_up {
            let held = {
                let mut ledger = shared.ledger.lock();
                ledger.hold(&tie);
                ledger.held(&tie)
            };
            if !held {
                shared.report.notify_one();
                continue;
            }
            caught_up = match works::caught_up(hub, &config.name, shared).await {
                Ok(caught_up) => caught_up,
                Err(error) => return format!("comparing works with the hub: {error}"),
            };
            if !caught_up {
                continue;
            }
        }
        // What the hub has forgotten is renewed no more: it may place it elsewhere.
        let works = leased();
        let told =
            tombolo_api::RenewalSent { machine: machine.clone(), boot: boot.clone(), millis: sent as i64 };
        let lease = serde_json::json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "annotations": {tombolo_api::names::RENEWAL_ANNOTATION: told.to_string(),
                tombolo_api::names::RENEWED_FOR_ANNOTATION: works}},
            "spec": {"holderIdentity": shared.applier.hub, "leaseDurationSeconds": seconds,
                "renewTime": (jiff::Timestamp::now() - age).strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()}});
        let params = kube::api::PatchParams::apply(tombolo_api::names::SITE_MANAGER).force();
        match api.patch(&name, &params, &kube::api::Patch::Apply(&lease)).await {
            Ok(_) => (last, last_for) = (Some(sent), works),
            Err(error) => tracing::warn!(%error, "the lease of at-most-once workloads was not renewed"),
        }
    }
}

/// When a call fails because the connection just closed, the connection knows the better reason.
async fn reason(connection: &Connection, otherwise: String) -> String {
    tokio::time::timeout(Duration::from_millis(200), connection.closed()).await.unwrap_or(otherwise)
}

/// Keeps the certificate fresh and the highest epoch on record.
async fn remember(
    hub: &Client,
    config: &AgentConfig,
    epoch: &Epoch,
    secret: &StateSecret,
    state: &mut State,
) -> String {
    learn_replicas(hub, secret, state).await;
    loop {
        if epoch.get() > state.epoch {
            state.epoch = epoch.get();
            if let Err(error) = secret.save(state).await {
                tracing::warn!(%error, "cannot record the hub's epoch");
            }
        }
        if renew_in(state, jiff::Timestamp::now().as_second()).is_some_and(|seconds| seconds <= 0) {
            match renew(hub, config).await {
                Ok((key, certificate)) => {
                    tracing::info!(site = config.name, "certificate renewed");
                    let renewed = State { key, certificate, ..state.clone() };
                    match secret.save(&renewed).await {
                        Ok(()) => *state = renewed,
                        Err(error) => tracing::warn!(%error, "cannot keep the renewed certificate"),
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot renew the certificate"),
            }
        }
        let pause =
            if epoch.get() > state.epoch { AGAIN } else { rest(state, jiff::Timestamp::now().as_second()) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = epoch.rises() => {}
        }
    }
}

/// A hub of several replicas says where each of them is. Not knowing is no harm while the one we know answers.
async fn learn_replicas(hub: &Client, secret: &StateSecret, state: &mut State) {
    let api: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(hub.clone(), "kube-public");
    let Ok(Some(found)) = api.get_opt(tombolo_api::names::REPLICAS).await else { return };
    let replicas: Vec<String> = found.data.unwrap_or_default().into_values().collect();
    if replicas != state.replicas {
        let learned = State { replicas, ..state.clone() };
        match secret.save(&learned).await {
            Ok(()) => *state = learned,
            Err(error) => tracing::warn!(%error, "cannot record the hub's replicas"),
        }
    }
}

async fn renew(hub: &Client, config: &AgentConfig) -> Result<(String, String), JoinError> {
    let key = rcgen::KeyPair::generate()?;
    let asked = tokio::time::timeout(Duration::from_secs(120), join::request(hub, config, &key)).await;
    let certificate = asked.map_err(|_| JoinError::Denied("no answer within two minutes".into()))??;
    Ok((key.serialize_pem(), certificate))
}

/// Seconds until the certificate is due to be renewed, after two thirds of its life.
fn renew_in(state: &State, now: i64) -> Option<i64> {
    state.validity().map(|(start, end)| start + (end - start) / 3 * 2 - now)
}

/// How long an agent may rest before it looks at its certificate again. Not for long: clocks are set.
fn rest(state: &State, now: i64) -> Duration {
    let due = renew_in(state, now).map(|seconds| Duration::from_secs(seconds.max(0).unsigned_abs()));
    due.map_or(LONGEST_REST, |due| due.clamp(AGAIN, LONGEST_REST))
}

struct CloseOnDrop(Connection);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close("the agent stopped");
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
