//! Where one root object goes: the placement engine, asked with what the hub knows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use serde_json::Value;
use tombolo_api::{Placement, PlacementSpec};
use tombolo_placement::sites::{self as engine, Decision};

use crate::convert;
use crate::index::Index;
use crate::object::{Key, Nature, is_workload, nature, number, text};
use crate::references;
use crate::render::{PATH_ANNOTATION, lease_terms};

/// On a Work for a hub below: replicas per part, as JSON.
pub const PARTS_ANNOTATION: &str = "tombolo.dev/parts";
/// Replicas go back to a preferred site only when nothing moved for this long.
const REST: i64 = 60;
/// A fenced pod needs a moment to stop after its deadline.
pub const FENCE_MARGIN: i64 = 15;

/// A decision, and what it was made from.
#[derive(Clone, Debug)]
pub struct Decided {
    /// Replicas per site, and per part of it; `None` for kinds without replicas.
    pub sites: BTreeMap<String, Share>,
    /// One line for people.
    pub summary: String,
    /// The whole table.
    pub table: String,
    pub unplaced: u32,
    /// Something waits for room, or for other replicas to move first.
    pub waits: bool,
    /// Something waits for room or for time; look again when either comes.
    unsettled: bool,
    /// The placement was changed, and what that moves has not all moved yet.
    following: bool,
    /// Namespace and name of the Placement that it follows.
    pub by: (String, String),
    inputs: Inputs,
}

impl Decided {
    /// The table with the line for people first: lists of events show one line.
    pub fn story(&self) -> String {
        let line = format!("\n{}\n", self.summary);
        format!("{}\n{}", self.summary, self.table.replacen(&line, "", 1))
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    pub replicas: Option<i64>,
    pub parts: Vec<(String, i64)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Inputs {
    generation: i64,
    uid: String,
    placement: PlacementSpec,
    topology: u64,
    /// Pods that sites could not schedule for long, and sites that get no more for it.
    stuck: Vec<(String, usize)>,
    shunned: Vec<String>,
}

/// The decision for a root; an earlier one stands while nothing that it was made from has changed.
pub fn decide(index: &Index, key: &Key, root: &Value, placement: &Placement, now: i64) -> Arc<Decided> {
    let inputs = Inputs {
        generation: number(root, "/metadata/generation"),
        uid: text(root, "/metadata/uid").to_owned(),
        placement: placement.spec.clone(),
        topology: index.topology,
        stuck: stuck(index, key, now),
        shunned: index.stuck.shunned(key).cloned().collect(),
    };
    if let Some(earlier) = index.decided.get(key).filter(|d| d.inputs == inputs && !d.unsettled) {
        return earlier.clone();
    }
    let nature = nature(&key.api_version, &key.kind);
    // Whoever changes a placement wants it now: the rest between moves is against flapping, not against people.
    let following =
        index.decided.get(key).is_some_and(|d| d.following || d.inputs.placement != placement.spec);
    let decision = ask(index, key, root, &placement.spec, nature, following, now);
    let sites = shares(&decision, &placement.spec, nature);
    let silent = sites_silent(index, now);
    let waits = decision.unplaced > 0 || decision.waiting > 0 || overflowed(&decision);
    Arc::new(Decided {
        summary: decision.to_string(),
        table: decision.table(),
        unplaced: decision.unplaced,
        waits,
        unsettled: waits || sites.keys().any(|s| silent.contains_key(s)),
        following: following && decision.waiting > 0,
        by: (placement.namespace().unwrap_or_default(), placement.name_any()),
        sites,
        inputs,
    })
}

fn stuck(index: &Index, key: &Key, now: i64) -> Vec<(String, usize)> {
    let all = index.works_of(key).map(|(site, work)| (site.clone(), index.stuck(site, work, now)));
    all.filter(|(_, count)| *count > 0).collect()
}

/// What each site gets. A hub below has several places: replicas that are divided over them add up, of copies each place has
/// as many.
fn shares(decision: &Decision, spec: &PlacementSpec, nature: Nature) -> BTreeMap<String, Share> {
    let duplicate = convert::duplicates(spec, nature);
    let mut chosen: Vec<&engine::Explanation> = decision.sites.iter().filter(|p| p.chosen).collect();
    // The engine counts a hub as one site; what it has several places for are as many copies.
    if let Some(most) = spec.replicas.copies.filter(|_| duplicate).and_then(|c| usize::try_from(c).ok()) {
        chosen.sort_by_key(|place| (std::cmp::Reverse((place.before > 0, place.score)), &place.site));
        chosen.truncate(most.max(1));
    }
    let mut sites: BTreeMap<String, Share> = BTreeMap::new();
    for place in chosen {
        let share = sites.entry(place.site.clone()).or_default();
        let replicas = i64::from(place.replicas);
        if nature == Nature::Replicated {
            let so_far = share.replicas.get_or_insert(0);
            *so_far = if duplicate { replicas.max(*so_far) } else { *so_far + replicas };
        }
        share.parts.push((place.part.clone(), replicas));
    }
    sites.values_mut().for_each(|share| share.parts.sort());
    sites
}

/// The decision with every site's reason, made without regard to an earlier one.
pub fn decision(index: &Index, key: &Key, root: &Value, placement: &Placement, now: i64) -> Decision {
    ask(index, key, root, &placement.spec, nature(&key.api_version, &key.kind), false, now)
}

/// Replicas are in places that are not the most preferred ones; they go back when room returns.
fn overflowed(decision: &Decision) -> bool {
    let ranks = |chosen: bool| {
        decision.sites.iter().filter(move |p| !chosen || p.replicas > 0).filter_map(|p| p.preference)
    };
    ranks(true).max() > ranks(false).min()
}

fn sites_silent(index: &Index, now: i64) -> BTreeMap<String, u64> {
    index.sites.keys().filter_map(|name| Some((name.clone(), index.silent(name, now)?))).collect()
}

fn ask(
    index: &Index,
    key: &Key,
    root: &Value,
    spec: &PlacementSpec,
    nature: Nature,
    following: bool,
    now: i64,
) -> Decision {
    let groups: BTreeSet<String> = index.groups.keys().cloned().collect();
    let mut rule = convert::rule(spec, nature, &groups);
    rule.failover.wait_seconds = u64::try_from(wait(index, key, root, spec, now)).unwrap_or(0);
    let path: Vec<&str> =
        crate::object::annotation(root, PATH_ANNOTATION).split(',').filter(|h| !h.is_empty()).collect();
    let taken = if nature == Nature::Shared { BTreeMap::new() } else { index.on_their_way(key, now) };
    let none = Vec::new();
    let shunned: BTreeSet<&String> = index.stuck.shunned(key).collect();
    let sites: Vec<engine::SiteView> = index
        .sites
        .iter()
        .filter(|(_, state)| state.site.metadata.deletion_timestamp.is_none())
        .map(|(name, state)| {
            let taken = taken.get(name).unwrap_or(&none);
            let mut view =
                convert::site_view(name, &state.site, state.groups.clone(), index.silent(name, now), taken);
            let came_from = |hub: &&String| path.contains(&hub.as_str()) || **hub == index.hub.id;
            // What has no pods needs no node.
            if !is_workload(key) {
                view.parts.iter_mut().filter(|part| part.capacity.is_without_nodes()).for_each(|part| {
                    part.capacity = engine::Capacity::Unknown;
                });
            }
            // It keeps what it has, and has room for no more.
            if shunned.contains(name) {
                view.parts.iter_mut().for_each(|part| part.capacity = engine::Capacity::Nodes(Vec::new()));
            }
            view.excluded = state
                .site
                .spec
                .hubs
                .iter()
                .find(came_from)
                .map(|hub| format!("the object came through hub {hub}"));
            if shunned.contains(name) && !index.works_of(key).any(|(site, _)| site == name) {
                view.excluded = Some("it could not schedule this lately, whatever its free room says".into());
            }
            view
        })
        .collect();
    let mut request = request(index, key, root, nature, now);
    request.may_return |= following;
    let mut decision = engine::place(&sites, &rule, &request);
    // The others' lines say it.
    let has_some = |site: &&&String| index.works_of(key).any(|(at, _)| at == **site);
    decision
        .notes
        .extend(shunned.iter().filter(has_some).map(|site| engine::Note::Shunned { site: (*site).clone() }));
    decision
}

/// Seconds of silence after which replicas move.
pub fn wait(index: &Index, key: &Key, root: &Value, spec: &PlacementSpec, now: i64) -> i64 {
    let mut wait = spec.failover.wait_seconds.unwrap_or(convert::DEFAULT_WAIT);
    if spec.failover.at_most_once {
        // Nothing starts elsewhere before the lost site has certainly stopped it.
        let template = crate::object::template_pointer(&key.kind).and_then(|pointer| root.pointer(pointer));
        let terms = lease_terms(template.unwrap_or(&Value::Null), spec);
        wait = wait.max(terms.seconds + FENCE_MARGIN + index.unheard);
    }
    if now < index.nobody_lost_before {
        wait = wait.max(index.nobody_lost_before - index.since.steady);
    }
    wait
}

/// From when on replicas may go back to a nicer place.
pub fn rested_at(index: &Index, key: &Key) -> i64 {
    index.moved.get(key).copied().unwrap_or(index.since.steady) + REST
}

fn request(index: &Index, key: &Key, root: &Value, nature: Nature, now: i64) -> engine::Request {
    let replicas = match nature {
        Nature::Replicated => root.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(1),
        _ => 1,
    };
    let small = |n: i64| u32::try_from(n).unwrap_or(0);
    let uid = text(root, "/metadata/uid");
    let mut held = Vec::new();
    let mut moving = 0;
    let mut leaving = false;
    for (site, work) in index.works_of(key) {
        let silent = index.silent(site, now).is_some();
        let left = work.has_left() && silent;
        if work.root.uid != uid || work.tombstone.is_some() || left || index.leaves_all_behind(site) {
            leaving |= work.tombstone.is_some() || left;
            continue;
        }
        let ready = match nature {
            Nature::Replicated => work.object().map_or(0, |o| number(&o, "/readyReplicas")),
            _ => i64::from(work.has_object()),
        };
        let counted = index.counted(site, key, now);
        let stuck = index.stuck(site, work, now) as i64;
        let assigned = if nature == Nature::Replicated { work.replicas.unwrap_or(replicas) } else { 1 };
        // What a lost site has goes elsewhere; what is not up there will not be.
        leaving |= silent;
        moving += if silent { 0 } else { (assigned - ready).max(0) };
        let parts = work.annotations.get(PARTS_ANNOTATION);
        let parts: Vec<(String, i64)> =
            parts.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if parts.is_empty() {
            held.push(engine::Held {
                site: site.clone(),
                part: String::new(),
                assigned: small(assigned),
                ready: small(ready.min(assigned)),
                counted: small(counted.min(assigned)),
                stuck: small(stuck.min(assigned)),
            });
        }
        // Which of its places is full a hub below does not say.
        let mut stuck = stuck;
        for (part, assigned) in parts {
            let stuck_here = stuck.min(assigned);
            stuck -= stuck_here;
            let (assigned, ready) = (small(assigned), small(ready.min(assigned)));
            held.push(engine::Held {
                site: site.clone(),
                part,
                assigned,
                ready,
                counted: assigned,
                stuck: small(stuck_here),
            });
        }
    }
    let rested = now >= rested_at(index, key);
    engine::Request {
        replicas: small(replicas),
        each: if nature == Nature::Replicated || nature == Nature::Unit {
            convert::asks(root)
        } else {
            Default::default()
        },
        local_volumes: references::local_volumes(root, |name| {
            index.objects.get(&Key::new("v1", "PersistentVolumeClaim", &key.namespace, name)).cloned()
        }),
        held,
        moving: if leaving { small(moving) } else { 0 },
        may_return: rested,
    }
}
