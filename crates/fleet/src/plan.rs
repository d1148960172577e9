//! What to do about one root object: a function of what the hub knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tombolo_api::{Tombstone, WorkSpec, names};

use crate::again::again;
use crate::choose::{Choice, choose};
use crate::compare::status_patch;
use crate::decide::{self, Decided, PARTS_ANNOTATION, Share, decide};
use crate::index::Index;
use crate::kept::{Kept, Mirror, Shown};
use crate::mirror::{mirror, mirror_name, mirror_status};
use crate::object::{Key, Object, annotation, number, text, work_name};
use crate::render::{PartShare, Target, render};
use crate::stamp::stamp;
use crate::status::{self, Word};

/// One thing to do at the hub's API.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    CreateWork {
        site: String,
        name: String,
        spec: Box<WorkSpec>,
        parts: Vec<(String, i64)>,
    },
    /// A new spec for a Work that exists.
    UpdateWork {
        site: String,
        name: String,
        spec: Box<WorkSpec>,
        parts: Vec<(String, i64)>,
    },
    DeleteWork {
        site: String,
        name: String,
        uid: String,
    },
    /// Notes on the Work of a lost site that its share is elsewhere now, or takes the note back.
    NoteLeft {
        site: String,
        name: String,
        left: Option<String>,
    },
    /// A merge patch of the root's status.
    PatchStatus {
        key: Key,
        patch: Value,
    },
    /// Binds a pod of the hub to the site it goes to.
    Bind {
        key: Key,
        site: String,
    },
    CreatePod {
        pod: Value,
        status: Value,
    },
    PatchPod {
        namespace: String,
        name: String,
        patch: Value,
    },
    DeletePod {
        namespace: String,
        name: String,
        uid: String,
    },
    /// Deletes a pod at its site, because its mirror was deleted at the hub.
    DeleteAtSite {
        site: String,
        namespace: String,
        pod: String,
    },
    /// An annotation that tells people and `explain place` what the hub knows of an object; `None` takes it away.
    Mark {
        key: Key,
        annotation: &'static str,
        value: Option<String>,
    },
    /// An event. `brief` is what makes it news: it is told once.
    Tell {
        key: Key,
        warning: bool,
        reason: &'static str,
        brief: String,
        message: String,
    },
}

impl Action {
    /// Whether it only shows what sites said.
    pub fn is_news(&self) -> bool {
        matches!(
            self,
            Self::PatchStatus { .. }
                | Self::CreatePod { .. }
                | Self::PatchPod { .. }
                | Self::DeletePod { .. }
                | Self::Mark { .. }
                | Self::Tell { .. }
        )
    }
}

/// What to do, and what to remember.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub decided: Option<Arc<Decided>>,
    /// Replicas changed their place.
    pub moved: bool,
    /// Something waits for room, or for others.
    unsettled: bool,
    /// Look again then, on the steady clock, even if nothing changes.
    pub again: Option<i64>,
}

/// Seconds after the end of its lease when a pod has certainly stopped.
pub const FENCED: i64 = 5;

pub fn plan(index: &mut Index, key: &Key, now: i64, now_text: &str) -> Plan {
    let mut plan = Plan::default();
    index.note_stuck(key, now);
    let root = index.objects.get(key).cloned().filter(|r| text(r, "/metadata/deletionTimestamp").is_empty());
    let works: Vec<(String, Arc<Kept>)> = index.works_of(key).map(|(s, w)| (s.clone(), w.clone())).collect();
    settle_tombstones(index, &works, &mut plan);
    let controlled = |root: &Value| {
        root.pointer("/metadata/ownerReferences").is_some_and(|o| o.as_array().is_some_and(|a| !a.is_empty()))
    };
    let Some(root) = root.filter(|r| !controlled(r)) else {
        let gone = index.objects.get(key).is_none_or(|r| !text(r, "/metadata/deletionTimestamp").is_empty());
        bury(
            index,
            &works,
            if gone { "deleted at the hub" } else { "owned by another object" },
            false,
            &mut plan,
        );
        mirrors(index, key, None, &works, now, &mut plan);
        return plan;
    };
    if annotation(&root, names::GIVE_BACK_ANNOTATION) == "true" {
        bury(index, &works, "given back to the site", true, &mut plan);
        mark(key, &root, names::SHUNNED_ANNOTATION, None, &mut plan);
        mirrors(index, key, Some(&root), &works, now, &mut plan);
        return plan;
    }
    let mut placed: Result<String, (&'static str, String)> = Ok(String::new());
    let spec = match choose(key, &root, &index.placements) {
        Choice::Nowhere => {
            index.warned.remove(key);
            bury(index, &works, "no longer placed", false, &mut plan);
            None
        }
        // What runs stays until something places it elsewhere.
        Choice::Unplaced(why) => {
            placed = Err(("NoPlacement", why));
            None
        }
        Choice::By(placement) => Some(placement.clone()),
    };
    let was_placed = spec.is_some() || placed.is_err();
    let wait = spec.as_ref().map(|placement| decide::wait(index, key, &root, &placement.spec, now));
    if let Some(placement) = spec {
        let decided = decide(index, key, &root, &placement, now);
        if decided.unplaced > 0 || decided.sites.is_empty() {
            placed = Err(("NoRoom", decided.summary.clone()));
        } else {
            placed = Ok(decided.summary.clone());
        }
        let at = Moment { now, text: now_text };
        propagate(index, key, &root, &placement.spec, &decided, &works, at, &mut plan, &mut placed);
        plan.unsettled |= decided.waits;
        plan.decided = Some(decided);
    }
    if was_placed {
        observe(index, key, &root, &works, &placed, now, now_text, &mut plan);
    }
    let shunned = index.stuck.written(key).filter(|_| was_placed);
    mark(key, &root, names::SHUNNED_ANNOTATION, shunned, &mut plan);
    mirrors(index, key, Some(&root), &works, now, &mut plan);
    plan.again = again(index, key, &works, wait, plan.unsettled, now);
    plan
}

/// Tombstones that are done disappear; those of an earlier epoch are confirmed, or dropped when the hub was restored.
fn settle_tombstones(index: &Index, works: &[(String, Arc<Kept>)], plan: &mut Plan) {
    for (site, work) in works {
        let Some(tombstone) = &work.tombstone else { continue };
        let done = work.is_removed();
        let void = tombstone.epoch < index.hub.epoch && index.restored;
        if done || void || !index.sites.contains_key(site) {
            let (name, uid) = (work.name.clone(), work.uid.clone());
            plan.actions.push(Action::DeleteWork { site: site.clone(), name, uid });
        } else if tombstone.epoch < index.hub.epoch {
            plan.actions.push(entomb(index, site, work, &tombstone.reason, tombstone.keep));
        }
    }
}

fn bury(index: &Index, works: &[(String, Arc<Kept>)], reason: &str, keep: bool, plan: &mut Plan) {
    for (site, work) in works.iter().filter(|(_, w)| w.tombstone.is_none()) {
        plan.actions.push(entomb(index, site, work, reason, keep));
        plan.moved = true;
    }
}

fn entomb(index: &Index, site: &str, work: &Kept, reason: &str, keep: bool) -> Action {
    let mut spec = work.spec();
    spec.tombstone = Some(Tombstone {
        hub: index.hub.id.clone(),
        epoch: index.hub.epoch,
        reason: reason.to_owned(),
        keep,
    });
    spec.hub.epoch = index.hub.epoch;
    work.pass_terms_on(&mut spec);
    update(site, work, spec, Vec::new())
}

fn update(site: &str, work: &Kept, spec: WorkSpec, parts: Vec<(String, i64)>) -> Action {
    Action::UpdateWork { site: site.to_owned(), name: work.name.clone(), spec: Box::new(spec), parts }
}

#[allow(clippy::too_many_arguments)]
fn propagate(
    index: &mut Index,
    key: &Key,
    root: &Value,
    placement: &tombolo_api::PlacementSpec,
    decided: &Decided,
    works: &[(String, Arc<Kept>)],
    at: Moment<'_>,
    plan: &mut Plan,
    placed: &mut Result<String, (&'static str, String)>,
) {
    let now = at.now;
    let uid = text(root, "/metadata/uid");
    let name = work_name(key, uid);
    let needs = if placement.without_dependencies { Vec::new() } else { index.needs(key, root) };
    let stamp = stamp(index, root, &needs, placement, decided, works, now);
    if stamp.is_some() && index.rendered.get(key) == stamp.as_ref() {
        return;
    }
    let before = plan.actions.len();
    let current = |w: &Kept| w.name == name;
    for (site, work) in works {
        let stays = current(work) && decided.sites.contains_key(site);
        // A lost site cannot be told now, and may still be wanted when it is back: then it keeps what it runs.
        // With at-most-once it must know before it runs anything again.
        let later = !placement.failover.at_most_once && index.silent(site, now).is_some();
        if !stays && current(work) && work.tombstone.is_none() && later {
            if !work.has_left() {
                let name = work.name.clone();
                let left = Some(at.text.to_owned());
                plan.actions.push(Action::NoteLeft { site: site.clone(), name, left });
                plan.moved = true;
            }
        } else if !stays && work.tombstone.is_none() && !index.leaves_all_behind(site) {
            let reason =
                if current(work) { "placed elsewhere" } else { "replaced by a new object of the same name" };
            plan.actions.push(entomb(index, site, work, reason, false));
            plan.moved = true;
        }
    }
    // With at-most-once, nothing grows anywhere while something may still run elsewhere.
    let held_back = placement.failover.at_most_once
        && (now < index.nothing_once_before
            || works.iter().any(|(site, w)| may_still_run(index, site, w, decided, now)));
    let ordinals =
        if key.kind == "StatefulSet" { ordinals(decided, works, &name, root) } else { BTreeMap::new() };
    let hub = {
        let mut hub = index.hub.clone();
        let came: Vec<String> = annotation(root, crate::render::PATH_ANNOTATION)
            .split(',')
            .filter(|h| !h.is_empty())
            .map(str::to_owned)
            .collect();
        hub.path = came.into_iter().chain([hub.id.clone()]).collect();
        hub
    };
    let mine: BTreeMap<&String, &Arc<Kept>> =
        works.iter().filter(|(_, w)| current(w)).map(|(s, w)| (s, w)).collect();
    for (site, share) in &decided.sites {
        let Some(state) = index.sites.get(site) else { continue };
        let existing = mine.get(site).copied();
        // A tombstone is carried out first; the Work is then made anew.
        if existing.is_some_and(|w| w.tombstone.is_some()) {
            plan.unsettled = true;
            continue;
        }
        let labels = state.site.metadata.labels.clone().unwrap_or_default();
        let target = Target {
            site,
            spec: &state.site.spec,
            labels: &labels,
            groups: &state.groups,
            replicas: share.replicas,
            first_ordinal: ordinals.get(site).copied().unwrap_or(0),
            parts: &part_shares(share, &state.site),
        };
        let mut spec = match render(root, &needs, placement, &target, &hub) {
            Ok(spec) => spec,
            Err(error) => {
                *placed = Err(("CannotRender", format!("for site {site}: {error}")));
                continue;
            }
        };
        if let Some(work) = existing {
            work.pass_terms_on(&mut spec);
        }
        let parts = parts_of(share);
        if let Some(work) = existing.filter(|w| w.has_left() && index.silent(site, now).is_none()) {
            let name = work.name.clone();
            plan.actions.push(Action::NoteLeft { site: site.clone(), name, left: None });
        }
        match existing {
            None if held_back => plan.unsettled = true,
            None => {
                plan.moved |= !works.is_empty();
                let (site, name) = (site.clone(), name.clone());
                plan.actions.push(Action::CreateWork { site, name, spec: Box::new(spec), parts });
            }
            Some(work) if work.says(&spec) => {}
            Some(work) if held_back && spec.replicas > work.replicas => plan.unsettled = true,
            Some(work) => {
                plan.moved |= work.replicas != spec.replicas;
                plan.actions.push(update(site, work, spec, parts));
            }
        }
    }
    match stamp.filter(|_| plan.actions.len() == before && !plan.unsettled && placed.is_ok()) {
        Some(stamp) => drop(index.rendered.insert(key.clone(), stamp)),
        None => drop(index.rendered.remove(key)),
    }
}

/// When a plan is made.
#[derive(Clone, Copy)]
struct Moment<'a> {
    now: i64,
    text: &'a str,
}

fn part_shares(share: &Share, site: &tombolo_api::Site) -> Vec<PartShare> {
    let offers = site.status.iter().flat_map(|s| &s.offers);
    let sites: BTreeMap<String, i64> = offers.map(|o| (crate::parts::name(o), o.sites)).collect();
    let one = |(name, replicas): &(String, i64)| PartShare {
        name: name.clone(),
        replicas: *replicas,
        sites: sites.get(name).copied().unwrap_or(1),
    };
    share.parts.iter().map(one).collect()
}

fn parts_of(share: &Share) -> Vec<(String, i64)> {
    share.parts.iter().filter(|(part, _)| !part.is_empty()).cloned().collect()
}

/// Could more run at `site` than the decision leaves it? Only what a site was told, and did, is certain; or that its
/// lease ran out after it was told.
fn may_still_run(index: &Index, site: &str, work: &Kept, decided: &Decided, now: i64) -> bool {
    if work.is_removed() {
        return false;
    }
    let share = decided.sites.get(site);
    let allowed = share.map_or(0, |s| s.replicas.unwrap_or(1));
    let told = if work.tombstone.is_some() { 0 } else { work.replicas.unwrap_or(1) };
    if told > allowed {
        return true;
    }
    let stopped = work.stops_after().map(|seconds| seconds + FENCED + index.unheard);
    let silence = index.silent(site, now).map(|s| i64::try_from(s).unwrap_or(i64::MAX));
    let fenced = stopped.zip(silence).is_some_and(|(stopped, silence)| silence > stopped);
    let running =
        work.status.pods.values().filter(|p| !matches!(p.phase.as_str(), "Succeeded" | "Failed")).count();
    let counted = share.is_some_and(|s| s.replicas.is_some());
    let too_many = counted && i64::try_from(running).unwrap_or(i64::MAX) > allowed;
    !fenced && (work.tombstone.is_some() || !work.acted() || too_many)
}

/// First ordinals of a divided StatefulSet: what a site has it keeps, so that no pod changes its name.
fn ordinals(
    decided: &Decided,
    works: &[(String, Arc<Kept>)],
    name: &str,
    root: &Value,
) -> BTreeMap<String, i64> {
    // What came from a hub above has a block of its own; it is shared out in smaller ones.
    let from = number(root, "/spec/ordinals/start");
    let above = annotation(root, crate::render::PATH_ANNOTATION).split(',').filter(|h| !h.is_empty()).count();
    let block = 1000 / 10_i64.pow(u32::try_from(above.min(3)).unwrap_or(3));
    let mut starts: BTreeMap<String, i64> = BTreeMap::new();
    let mut used: BTreeSet<i64> = BTreeSet::new();
    let mut held: Vec<_> =
        works.iter().filter(|(s, w)| decided.sites.contains_key(s) && w.name == name).collect();
    // Who took over from a lost site has its numbers; where that site is wanted again, it gets others.
    held.sort_by_key(|(_, work)| work.has_left());
    for (site, work) in held {
        let start = number(&work.spec().object, "/spec/ordinals/start");
        if used.insert(start) {
            starts.insert(site.clone(), start);
        }
    }
    let mut free = (0..).map(|n| from + n * block).filter(|start| !used.contains(start));
    for site in decided.sites.keys() {
        if !starts.contains_key(site) {
            starts.insert(site.clone(), free.next().unwrap_or(from));
        }
    }
    starts
}

/// Status of the root: what the sites said, and whether it is placed.
#[allow(clippy::too_many_arguments)]
fn observe(
    index: &Index,
    key: &Key,
    root: &Value,
    works: &[(String, Arc<Kept>)],
    placed: &Result<String, (&'static str, String)>,
    now: i64,
    now_text: &str,
    plan: &mut Plan,
) {
    let uid = text(root, "/metadata/uid");
    let speaks = |(site, w): &&(String, Arc<Kept>)| {
        let left = w.has_left() && index.silent(site, now).is_some();
        w.root.uid == uid && w.tombstone.is_none() && !left
    };
    let alive = || works.iter().filter(speaks);
    let words: Vec<Word> = alive()
        .map(|(site, work)| Word {
            site: site.clone(),
            object: work.object().filter(|_| !work.never_applied()),
            root_generation: work.status.root_generation,
            site_generation: work.status.site_generation,
            silent: index.silent_since(site, now),
            sent: work.root.generation,
        })
        .collect();
    let mut status = if words.is_empty() { None } else { status::merge(root, &words, now_text) };
    let refusals: Vec<String> = alive()
        .filter_map(|(site, work)| {
            let applied = work.condition("Applied").filter(|c| c.status == "False")?;
            Some(format!("{site} refuses it: {} ({})", applied.message, applied.reason))
        })
        .collect();
    let (value, reason, message) = match placed {
        Ok(_) if !refusals.is_empty() => ("False", "Refused", refusals.join("; ")),
        Ok(summary) => ("True", "Placed", summary.clone()),
        Err((reason, why)) => ("False", *reason, why.clone()),
    };
    status = status::with_condition(status, root, value, reason, &message, now_text);
    if is_news(index, key, root, value, &message) {
        let (key, warning) = (key.clone(), value != "True");
        let whole = plan.decided.as_ref().filter(|_| matches!(reason, "Placed" | "NoRoom"));
        let brief = message.clone();
        let message = whole.map_or(message, |decided| decided.story());
        let reason = if warning { "NotPlaced" } else { "Placed" };
        plan.actions.push(Action::Tell { key, warning, reason, brief, message });
    }
    if key.kind == "Pod" && text(root, "/spec/nodeName").is_empty() {
        if let Some((site, _)) = alive().next() {
            plan.actions.push(Action::Bind { key: key.clone(), site: site.clone() });
        }
        return;
    }
    let Some(status) = status.filter(|_| !key.has_status_of_its_own()) else { return };
    let stale = status::stale_since(&key.kind, &words);
    mark(key, root, names::STALE_ANNOTATION, stale.map(str::to_owned), plan);
    let before = root.get("status").cloned().unwrap_or_else(|| json!({}));
    if let Some(patch) = status_patch(&before, &status) {
        plan.actions.push(Action::PatchStatus { key: key.clone(), patch: json!({ "status": patch }) });
    }
}

fn mark(key: &Key, root: &Value, name: &'static str, value: Option<String>, plan: &mut Plan) {
    if value.as_deref().unwrap_or_default() != annotation(root, name) {
        plan.actions.push(Action::Mark { key: key.clone(), annotation: name, value });
    }
}

/// Has nobody been told this yet? Where the status has a condition for it, that remembers what was told. Of other objects
/// only what is wrong is told, and that it is right again.
fn is_news(index: &Index, key: &Key, root: &Value, value: &str, message: &str) -> bool {
    if status::shows_placing(&key.kind) {
        let conditions = root.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        let told = conditions.into_iter().find(|c| c["type"] == "Placed");
        return told.map(|c| (text(c, "/status"), text(c, "/message"))) != Some((value, message));
    }
    match index.warned.get(key) {
        Some(warned) => value == "True" || *warned != warning(root, message),
        None => value != "True",
    }
}

/// What is remembered of a warning: an object of the same name that is made anew is another one.
pub fn warning(root: &Value, brief: &str) -> (String, String) {
    (text(root, "/metadata/uid").to_owned(), brief.to_owned())
}

/// Pods of the sites as pods of the hub.
fn mirrors(
    index: &mut Index,
    key: &Key,
    root: Option<&Object>,
    works: &[(String, Arc<Kept>)],
    now: i64,
    plan: &mut Plan,
) {
    // A pod of the hub is its own mirror.
    if key.kind == "Pod" {
        return;
    }
    let generation = root.map_or(-1, |root| number(root, "/metadata/generation"));
    for (site, work) in works {
        let id = (site.clone(), work.name.clone());
        let silent = index.silent_since(site, now);
        let seen = Shown { work: work.version, root: generation, silent };
        let shown = index.mirrors_of(&id);
        if shown.is_some_and(|shown| shown.right_for.as_ref() == Some(&seen)) {
            continue;
        }
        let mut shown = shown.map(|shown| shown.pods.clone()).unwrap_or_default();
        let before = plan.actions.len();
        let spec =
            if root.is_none() && !work.status.pods.is_empty() { work.spec() } else { WorkSpec::default() };
        let object = root.map_or(&spec.object, |root| root);
        let images = images(object, &key.kind);
        for (pod, summary) in &work.status.pods {
            let status = mirror_status(summary, &images, seen.silent.as_deref());
            match shown.remove(&mirror_name(pod, site)) {
                // Reports may overtake each other: one without containers is only a part, and a pod's spec cannot change.
                None if summary.leaving || summary.containers.is_empty() => {}
                None => {
                    let pod = mirror(object, site, &work.name, pod, summary);
                    plan.actions.push(Action::CreatePod { pod, status });
                }
                Some(there) if there.leaving => {
                    let (site, namespace) = (site.clone(), key.namespace.clone());
                    plan.actions.push(Action::DeleteAtSite { site, namespace, pod: pod.clone() });
                }
                Some(there) => {
                    if let Some(patch) = status_patch(&there.status(), &status) {
                        let name = mirror_name(pod, site);
                        let patch = json!({ "status": patch });
                        plan.actions.push(Action::PatchPod { namespace: key.namespace.clone(), name, patch });
                    }
                }
            }
        }
        plan.actions.extend(shown.values().map(|there| remove_mirror(there)));
        if plan.actions.len() == before {
            index.mirrors_are_right(&id, seen);
        }
    }
}

pub fn remove_mirror(pod: &Mirror) -> Action {
    Action::DeletePod { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }
}

fn images(object: &Value, kind: &str) -> BTreeMap<String, String> {
    let pointer =
        crate::object::template_pointer(kind).map(|p| format!("{p}/spec/containers")).unwrap_or_default();
    let containers = object.pointer(&pointer).and_then(Value::as_array).into_iter().flatten();
    containers.map(|c| (text(c, "/name").to_owned(), text(c, "/image").to_owned())).collect()
}

/// The annotation that remembers the parts of a hub below.
pub fn parts_annotation(parts: &[(String, i64)]) -> Option<(String, String)> {
    (!parts.is_empty()).then(|| (PARTS_ANNOTATION.to_owned(), json!(parts).to_string()))
}

#[cfg(test)]
#[path = "plan_tests/mod.rs"]
mod tests;
