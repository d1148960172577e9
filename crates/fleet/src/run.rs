//! The fleet's life: install, lead, watch, plan, act.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Error, ResourceExt};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tombolo_agent::rush::Rush;
use tombolo_api::{Placement, Site, SiteGroup, Work, names};

use crate::act::{act, delete_at_site};
use crate::config::FleetConfig;
use crate::identity::{self, Identity};
use crate::index::{Index, work_id};
use crate::object::{DEPENDENCIES, Key, workloads};
use crate::plan::{plan, remove_mirror};
use crate::restored::{self, Quiet};
use crate::told::Told;
use crate::tunnels::{Admission, Tied};
use crate::watches::Known;
use crate::{clock, import, install, lead, register, renew, sites, standing};

/// Roots acted on at once.
const AT_ONCE: usize = 64;
/// Writes for one root at once; news of a thousand sites must not crowd out the sites themselves.
const INTENTS: usize = 16;
const NEWS: usize = 4;
/// A root that changes at so many sites makes a rush by itself.
const CROWD: usize = 8;
/// How long a removed site that is still there gets to clean up.
const FAREWELL: i64 = 60;
/// Seconds between two looks at what Placements say about themselves.
const STANDING: i64 = 3;
/// When many sites come at once, they are looked at together.
const GATHER: Duration = Duration::from_millis(50);
/// Sites that are brought up to date at once.
const SHOWS: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("the hub's API does not answer: {0}")]
    Api(#[from] Box<Error>),
}

/// Runs the fleet's controllers until `shutdown`.
pub async fn run(config: FleetConfig) -> Result<(), FleetError> {
    let shutdown = config.shutdown.clone();
    let config = Arc::new(config);
    tokio::select! {
        result = live(config.clone()) => result,
        // What led has ended by now.
        () = shutdown.cancelled() => {
            if config.elect {
                lead::give_up(&config.client, &config.replica).await;
            }
            Ok(())
        }
    }
}

async fn live(config: Arc<FleetConfig>) -> Result<(), FleetError> {
    let began = Instant::now();
    let boxed = |error: Error| FleetError::Api(Box::new(error));
    for crd in tombolo_api::crds() {
        install::apply(&config.client, serde_json::json!(crd)).await.map_err(boxed)?;
    }
    install::served(&config.client).await.map_err(boxed)?;
    let everywhere = CancellationToken::new();
    let _stop = everywhere.clone().drop_guard();
    let quiet = match &config.restored {
        Some(_) => Some(restored::look(&config.client, began).await.map_err(boxed)?),
        None => None,
    };
    if let Some((mark, quiet)) = config.restored.clone().zip(quiet) {
        spawn(&everywhere, async move { restored::forget(&mark, quiet).await });
    }
    spawn(&everywhere, admit(config.clone(), quiet));
    let written = renew::Written::default();
    spawn(&everywhere, renew::leases(config.clone(), written.clone()));
    if config.elect {
        spawn(&everywhere, renew::let_go(config.clone(), written));
    }
    spawn(&everywhere, announce(config.clone()));
    loop {
        if config.elect {
            install::apply(&config.client, serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names::SYSTEM_NAMESPACE}}))
                .await
                .map_err(boxed)?;
            lead::wait(&config.client, &config.replica).await;
            tracing::info!(replica = config.replica, "leading");
        }
        let term = everywhere.child_token();
        let _over = term.clone().drop_guard();
        let ruling = rule(config.clone(), term, quiet);
        if config.elect {
            tokio::select! {
                result = ruling => result.map_err(boxed)?,
                () = lead::keep(&config.client, &config.replica) => tracing::warn!("no longer leading"),
            }
        } else {
            ruling.await.map_err(boxed)?;
        }
    }
}

fn spawn(until: &CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
    let until = until.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = task => {}
            () = until.cancelled() => {}
        }
    });
}

/// What the leading replica does.
async fn rule(config: Arc<FleetConfig>, term: CancellationToken, quiet: Option<Quiet>) -> Result<(), Error> {
    let Identity { hub, restored } = identity::establish(&config.client).await?;
    let restored = restored || config.restored.is_some();
    install::install(&config.client, &config.ca_cert, &config.url, &hub.id, config.quic_port).await?;
    tracing::info!(hub = hub.id, epoch = hub.epoch, "fleet starts");
    let lease = i64::try_from(config.lease.as_secs()).unwrap_or(40).max(1);
    let mut index = Index::new(hub, restored, clock::now(), lease);
    if let Some(quiet) = quiet {
        let left = quiet.until.saturating_duration_since(Instant::now()).as_secs();
        index.nothing_once_before = index.since.steady + i64::try_from(left).unwrap_or(0) + 1;
        if quiet.doors {
            index.nobody_lost_before = index.nothing_once_before + lease.max(restored::RETURN);
        }
    }
    if config.elect {
        index.unheard = renew::unheard(config.lease);
    }
    let known = Known::new(index);
    spawn(&term, refit(config.clone()));
    spawn(&term, register::run(config.clone()));
    let client = &config.client;
    let plain = watcher::Config::default;
    let follow = || known.clone();
    let sites = Api::<Site>::all(client.clone());
    spawn(
        &term,
        follow().follow(
            sites,
            "Site",
            plain(),
            |i, s| i.put_site(s, clock::now()),
            Site::name_any,
            |i, name| i.drop_site(name),
        ),
    );
    let groups = Api::<SiteGroup>::all(client.clone());
    spawn(
        &term,
        follow().follow(groups, "SiteGroup", plain(), Index::put_group, SiteGroup::name_any, |i, name| {
            i.drop_group(name)
        }),
    );
    let placements = Api::<Placement>::all(client.clone());
    spawn(
        &term,
        follow().follow(
            placements,
            "Placement",
            plain(),
            Index::put_placement,
            |p| (p.namespace().unwrap_or_default(), p.name_any()),
            |i, (namespace, name)| i.drop_placement(namespace, name),
        ),
    );
    let works = Api::<Work>::all(client.clone());
    spawn(
        &term,
        follow().follow(works, "Work", plain().page_size(200), Index::put_work, work_id, Index::drop_work),
    );
    let leases = plain().fields(&format!("metadata.name={}", names::SITE_LEASE));
    spawn(
        &term,
        follow().follow(Api::<Lease>::all(client.clone()), "Lease", leases, put_lease, |_| (), |_, ()| {}),
    );
    spawn(&term, known.clone().follow_mirrors(client.clone()));
    let ours = ["Site", "SiteGroup", "Placement", "Work", "Lease", "Mirror"]
        .map(|k| (names::GROUP.to_owned(), k.to_owned()));
    known.wait_synced(&ours).await;
    let mut watched = HashSet::new();
    watch_kinds(&config, &known, &term, &mut watched);
    let first: Vec<(String, String)> =
        workloads().chain(DEPENDENCIES).map(|(v, k)| (v.to_owned(), k.to_owned())).collect();
    known.wait_synced(&first).await;
    known.index.lock().mark_all();
    steer(config, known, term, watched).await;
    Ok(())
}

fn put_lease(index: &mut Index, lease: Lease) {
    let Some(site) = lease.namespace().as_deref().and_then(names::site_of_namespace).map(str::to_owned)
    else {
        return;
    };
    let ago = lease.annotations().get(names::HEARD_ANNOTATION).and_then(|ago| ago.parse().ok());
    index.read_lease(&site, &lease.resource_version().unwrap_or_default(), ago.unwrap_or(0), clock::now());
}

/// Watches every kind that is placed, named by a placement, or already at a site.
fn watch_kinds(
    config: &Arc<FleetConfig>,
    known: &Arc<Known>,
    term: &CancellationToken,
    watched: &mut HashSet<(String, String)>,
) {
    let mut wanted: HashSet<(String, String)> =
        workloads().chain(DEPENDENCIES).map(|(v, k)| (v.to_owned(), k.to_owned())).collect();
    wanted.extend(known.index.lock().kinds.iter().cloned());
    for kind in wanted {
        if watched.insert(kind.clone()) {
            spawn(term, known.clone().follow_objects(config.client_for(&kind.1).clone(), kind.0, kind.1));
        }
    }
}

/// The loop: plan for what changed, act, look at the clock.
async fn steer(
    config: Arc<FleetConfig>,
    known: Arc<Known>,
    term: CancellationToken,
    mut watched: HashSet<(String, String)>,
) {
    let mut acting: JoinSet<(Key, bool, bool)> = JoinSet::new();
    let mut rush = Rush::default();
    // Roots that go to many sites at once.
    let mut crowds = 0;
    let mut active: HashSet<Key> = HashSet::new();
    let mut again: HashSet<Key> = HashSet::new();
    let mut failures: HashMap<Key, u32> = HashMap::new();
    let mut lost: BTreeMap<String, bool> = BTreeMap::new();
    let shown: Arc<Shown> = Arc::default();
    let mut told = Told::default();
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ties = config.tunnels.changes();
    loop {
        let now = Instant::now();
        for key in known.index.lock().take_told() {
            told.add(key, now);
        }
        let room = AT_ONCE.saturating_sub(acting.len());
        let wanted = if room > 0 { known.index.lock().take_wanted(256) } else { Vec::new() };
        let busy = crowds > 0 || rush.is_on(now);
        let due = if room > 0 { told.due(now, busy) } else { Vec::new() };
        let wanted = wanted.into_iter().map(|key| (key, true));
        for (key, wanted) in wanted.chain(due.into_iter().map(|key| (key, false))) {
            if active.contains(&key) {
                if wanted {
                    again.insert(key);
                } else {
                    told.add(key, now);
                }
                continue;
            }
            // Absence means something only where everything is known.
            if !known.is_synced(&key) {
                continue;
            }
            let began = Instant::now();
            let mut actions = think(&known, &key);
            told.planned(&key, began.elapsed(), Instant::now());
            if wanted {
                let before = actions.len();
                actions.retain(|action| !action.is_news());
                if actions.len() < before {
                    told.add(key.clone(), now);
                }
            }
            if !actions.is_empty() {
                active.insert(key.clone());
                rush.note(key.clone(), now);
                let intents = actions.iter().filter(|action| !action.is_news()).count();
                let crowd = intents >= CROWD;
                crowds += usize::from(crowd);
                let width = if intents > 0 { INTENTS } else { NEWS };
                let (config, known) = (config.clone(), known.clone());
                acting.spawn(async move {
                    let mut well = true;
                    let acts = actions.into_iter().map(|action| act(&config, &known, action));
                    for result in
                        futures::stream::iter(acts).buffer_unordered(width).collect::<Vec<_>>().await
                    {
                        if let Err(error) = result {
                            tracing::warn!(object = %key, %error, "not done");
                            well = false;
                        }
                    }
                    (key, well, crowd)
                });
            }
        }
        let wished: Vec<_> = std::mem::take(&mut *known.wished_away.lock());
        for (site, namespace, pod) in wished {
            let config = config.clone();
            spawn(&term, async move { delete_at_site(&config, &site, &namespace, &pod).await });
        }
        if known.index.lock().wants_any() && acting.len() < AT_ONCE {
            continue;
        }
        let next = told.next(busy).filter(|_| acting.len() < AT_ONCE);
        tokio::select! {
            () = known.changed.notified() => watch_kinds(&config, &known, &term, &mut watched),
            Some(done) = acting.join_next(), if !acting.is_empty() => {
                let Ok((key, well, crowd)) = done else { continue };
                crowds -= usize::from(crowd);
                active.remove(&key);
                if !well {
                    // Try again, later each time.
                    let count = failures.entry(key.clone()).or_default();
                    *count += 1;
                    let wait = Duration::from_secs(1 << (*count).min(6));
                    let (known, key) = (known.clone(), key.clone());
                    spawn(&term, async move {
                        tokio::time::sleep(wait).await;
                        known.index.lock().mark(&key);
                        known.changed.notify_one();
                    });
                } else {
                    failures.remove(&key);
                }
                if again.remove(&key) {
                    known.index.lock().mark(&key);
                }
            }
            () = tokio::time::sleep_until(next.unwrap_or(now).into()), if next.is_some() => {}
            _ = ties.changed() => clock.reset_after(GATHER),
            _ = clock.tick() => look(&config, &known, &mut lost, &shown, &term).await,
        }
    }
}

fn think(known: &Arc<Known>, key: &Key) -> Vec<crate::plan::Action> {
    let mut index = known.index.lock();
    let moment = clock::now();
    let now = moment.steady;
    index.note_news(moment);
    let plan = plan(&mut index, key, now, &crate::now_text());
    match plan.decided {
        Some(decided) => drop(index.decided.insert(key.clone(), decided)),
        None => drop(index.decided.remove(key)),
    }
    if plan.moved {
        index.moved.insert(key.clone(), now);
    }
    match plan.again {
        Some(at) => drop(index.unsettled.insert(key.clone(), at)),
        None => drop(index.unsettled.remove(key)),
    }
    if !index.objects.contains_key(key) && index.works_of(key).next().is_none() {
        index.decided.remove(key);
        index.rendered.remove(key);
        index.moved.remove(key);
        index.unsettled.remove(key);
        index.warned.remove(key);
        index.stuck.forget_root(key);
    }
    plan.actions
}

/// What the sites showed when they were last looked at. Shared with the tasks that bring that to the API.
#[derive(Default)]
struct Shown {
    prints: Mutex<HashMap<String, String>>,
    turn: tokio::sync::Mutex<()>,
}

/// The clock's part: who is lost, who is back, who leaves; nodes and conditions that show it.
async fn look(
    config: &Arc<FleetConfig>,
    known: &Arc<Known>,
    lost: &mut BTreeMap<String, bool>,
    shown: &Arc<Shown>,
    term: &CancellationToken,
) {
    let tied: HashMap<String, Tied> =
        config.tunnels.tied().into_iter().map(|t| (t.site.clone(), t)).collect();
    let moment = clock::now();
    let time = moment.steady;
    let (sites, hub, orphans) = {
        let mut index = known.index.lock();
        for (name, tie) in &tied {
            index.heard(name, i64::try_from(tie.heard.as_secs()).unwrap_or(i64::MAX), moment);
        }
        let mut changed = false;
        let names: Vec<String> = index.sites.keys().cloned().collect();
        for name in &names {
            let silent = index.silent(name, time).is_some();
            changed |= lost.insert(name.clone(), silent).is_some_and(|before| before != silent);
        }
        if changed {
            index.topology += 1;
            index.mark_all();
        }
        index.mark_due(time);
        // Only sites that show something else than before are looked at closer.
        let mut sites: Vec<(Site, Option<String>, usize, bool)> = Vec::new();
        for (name, state) in &index.sites {
            let since = index.silent_since(name, time);
            let leaving = state.site.metadata.deletion_timestamp.is_some();
            let rtt = tied.get(name).and_then(|t| t.rtt).map_or(0, |rtt| rtt.as_millis().next_power_of_two());
            let print = format!("{:?} {since:?} {rtt}", state.site.resource_version());
            let mut prints = shown.prints.lock();
            if leaving || prints.get(name) != Some(&print) {
                prints.insert(name.clone(), print);
                let fenced = !leaving || index.fenced_at(name).is_none_or(|at| at <= time);
                sites.push((state.site.clone(), since, index.works_at(name), fenced));
            }
        }
        (sites, index.hub.clone(), index.orphaned_mirrors())
    };
    if !sites.is_empty() {
        let (config, shown) = (config.clone(), shown.clone());
        spawn(term, async move {
            // One after the other, so that what is older is never written last.
            let _turn = shown.turn.lock().await;
            let (tied, hub) = (Arc::new(tied), Arc::new(hub));
            let shows = sites.into_iter().map(|(site, silent, works, fenced)| {
                let (config, shown, tied, hub) = (config.clone(), shown.clone(), tied.clone(), hub.clone());
                async move {
                    let name = site.name_any();
                    let result = if let Some(since) = &site.metadata.deletion_timestamp {
                        let keep =
                            site.annotations().get(names::ON_REMOVE_ANNOTATION).is_some_and(|v| v == "keep");
                        let patience = moment.wall - since.0.as_second() > FAREWELL;
                        // A site may be tied to another replica; its Lease says whether it is heard.
                        let away = silent.is_some() || (!config.elect && !tied.contains_key(&name));
                        match works == 0 || away || keep || patience {
                            true if fenced => sites::remove(&config, &site, hub.epoch, &hub.id).await,
                            // Its Works say where something may still run, until it cannot any more.
                            true => sites::expel(&config, &site, hub.epoch, &hub.id).await,
                            false => Ok(()),
                        }
                    } else {
                        if let Some(asked) = site.annotations().get(names::IMPORT_ANNOTATION) {
                            import::asked(&config, &name, asked).await;
                        }
                        sites::show(&config, &site, silent.as_deref(), tied.get(&name)).await
                    };
                    if let Err(error) = result {
                        tracing::debug!(site = name, %error, "not shown");
                        shown.prints.lock().remove(&name);
                    }
                }
            });
            futures::stream::iter(shows).buffer_unordered(SHOWS).collect::<Vec<()>>().await;
        });
    }
    // Counting all objects is not for every second.
    let news = if time % STANDING == 0 {
        standing::news(&known.index.lock(), &crate::now_text())
    } else {
        Vec::new()
    };
    for (id, status) in news {
        if let Err(error) = standing::show(config, &id, &status).await {
            tracing::debug!(placement = id.1, %error, "not shown");
        }
    }
    for pod in orphans {
        drop(act(config, known, remove_mirror(&pod)).await);
    }
}

/// Once per term; a site without all its rights could not renew its certificate.
async fn refit(config: Arc<FleetConfig>) {
    while let Err(error) = sites::refit(&config.client).await {
        tracing::warn!(%error, "the rights of sites are not all given yet");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Every replica keeps its doors: who may tie itself, who was removed.
async fn admit(config: Arc<FleetConfig>, quiet: Option<Quiet>) {
    if let Some(quiet) = quiet.filter(|quiet| quiet.doors) {
        let seconds = quiet.until.saturating_duration_since(Instant::now()).as_secs();
        tracing::warn!(
            seconds,
            "this hub was restored from a backup: no site is heard until what may run at most once has stopped everywhere"
        );
        tokio::time::sleep_until(quiet.until.into()).await;
    }
    let sites: Api<Site> = Api::all(config.client.clone());
    let removed: Api<ConfigMap> = Api::namespaced(config.client.clone(), names::SYSTEM_NAMESPACE);
    let only = watcher::Config::default().fields(&format!("metadata.name={}", names::REMOVED_SITES));
    let mut sites = Box::pin(watcher(sites, watcher::Config::default()).default_backoff());
    let mut removed = Box::pin(watcher(removed, only).default_backoff());
    let mut admission = Admission::default();
    let mut ready = (false, false);
    loop {
        tokio::select! {
            Some(event) = sites.next() => match event {
                Ok(watcher::Event::Init) => admission.sites.clear(),
                Ok(watcher::Event::InitApply(site) | watcher::Event::Apply(site)) => {
                    let Some(identity) = site.annotations().get(names::IDENTITY_ANNOTATION) else { continue };
                    let before = admission.sites.insert(site.name_any(), identity.clone());
                    // Sites report often; who may come changes seldom.
                    if !ready.0 || before.as_ref() == Some(identity) {
                        continue;
                    }
                }
                Ok(watcher::Event::InitDone) => ready.0 = true,
                Ok(watcher::Event::Delete(site)) => drop(admission.sites.remove(&site.name_any())),
                Err(error) => {
                    tracing::debug!(%error, "watch of sites interrupted");
                    continue;
                }
            },
            Some(event) = removed.next() => match event {
                Ok(watcher::Event::InitApply(map) | watcher::Event::Apply(map)) => admission.removed = sites::removed(&map),
                Ok(watcher::Event::InitDone) => ready.1 = true,
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "watch of removed sites interrupted"),
            },
        }
        if ready.0 && ready.1 {
            config.tunnels.set_admission(admission.clone());
        }
    }
}

/// Every replica says where it is, so that sites find the others when one dies.
async fn announce(config: Arc<FleetConfig>) {
    let Some(url) = config.own_url.clone() else { return };
    let api: Api<ConfigMap> = Api::namespaced(config.client.clone(), "kube-public");
    let key: String =
        config.replica.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let object = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names::REPLICAS}, "data": {&key: url}});
    // A manager of its own: what another replica wrote stays.
    let params = kube::api::PatchParams::apply(&format!("{}-{key}", names::HUB_MANAGER)).force();
    while let Err(error) = api.patch(names::REPLICAS, &params, &kube::api::Patch::Apply(&object)).await {
        tracing::debug!(%error, "this replica is not announced yet");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}
