//! What the sites say about one object, merged into one status on the hub's object.
//!
//! Rules, the same for every kind:
//! - `observedGeneration` is the hub's generation only when every site has applied it and observed what it applied.
//! - Counts are sums. What a silent site last said still counts as existing (`replicas`), but not as ready: nobody knows.
//! - A condition that is known to be good news when `True` is as good as the worst site's, and its message names the sites
//!   that differ. A silent site makes it `Unknown`. One that is known to be bad news is `True` if any site says so.
//! - Of any other condition nobody knows which value is the better one: it has the value that all sites give it, else it is
//!   `Unknown` and its message says what each site says.
//! - Where nothing is counted, a field is shown when all sites that are heard say the same. Addresses of load balancers
//!   are those of all of them.
//! - `Placed` is this hub's own word. That of a hub below is told apart from it, and only where it is not well.
//! - When a site is silent, an object without counts says since when ([`stale_since`]), and a pod says `SiteSilent`.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::object::{number, text};

/// One site's word.
#[derive(Clone, Debug, Default)]
pub struct Word {
    pub site: String,
    /// Status of the object there.
    pub object: Option<Value>,
    /// The hub's generation that is applied there, and the generation that makes there.
    pub root_generation: i64,
    pub site_generation: i64,
    /// Since when it was not heard, if that is too long.
    pub silent: Option<String>,
    /// The hub's generation that was sent there.
    pub sent: i64,
}

/// Counts that say what exists, and counts that say what works, per kind.
fn counts(kind: &str) -> Option<(&'static [&'static str], &'static [&'static str])> {
    match kind {
        "Deployment" => Some((&["replicas", "updatedReplicas"], &["readyReplicas", "availableReplicas"])),
        "StatefulSet" => Some((
            &["replicas", "currentReplicas", "updatedReplicas"],
            &["readyReplicas", "availableReplicas"],
        )),
        "ReplicaSet" | "ReplicationController" => {
            Some((&["replicas", "fullyLabeledReplicas"], &["readyReplicas", "availableReplicas"]))
        }
        "DaemonSet" => Some((
            &[
                "desiredNumberScheduled",
                "currentNumberScheduled",
                "updatedNumberScheduled",
                "numberMisscheduled",
            ],
            &["numberReady", "numberAvailable"],
        )),
        "Job" => Some((&["active", "succeeded", "failed"], &["ready"])),
        _ => None,
    }
}

/// Conditions for which `True` is the good news.
const GOOD: [&str; 8] = [
    "Available",
    "Progressing",
    "Ready",
    "Complete",
    "SuccessCriteriaMet",
    "Established",
    "NamesAccepted",
    "Synced",
];

/// Conditions for which `True` is the bad news; a site that has none has none to tell.
const BAD: [&str; 6] = ["Degraded", "Failed", "FailureTarget", "Reconciling", "ReplicaFailure", "Stalled"];

/// Whether an object is placed: here, and at hubs below.
const PLACED: &str = "Placed";
const BELOW: &str = "PlacedBelow";

/// What a condition's `True` means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    Good,
    Bad,
    Unclear,
}

impl News {
    fn of(condition: &str) -> Self {
        match condition {
            good if GOOD.contains(&good) => Self::Good,
            bad if BAD.contains(&bad) => Self::Bad,
            _ => Self::Unclear,
        }
    }

    /// The worst has the highest rank.
    fn rank(self, value: &str) -> u8 {
        match (self, value) {
            (Self::Good, "True") | (Self::Bad, "False") => 0,
            (_, "Unknown") | (Self::Unclear, _) => 1,
            _ => 2,
        }
    }
}

/// The status of the hub's object. `None`: no site has said anything yet.
pub fn merge(root: &Value, words: &[Word], now: &str) -> Option<Value> {
    let kind = text(root, "/kind");
    let generation = number(root, "/metadata/generation");
    let spoken = words.iter().any(|w| w.object.is_some());
    let counted = counts(kind).is_some() && !(kind == "Job" && words.len() == 1);
    if !spoken && !counted {
        return None;
    }
    let mut status = match counts(kind) {
        // Jobs have rules of their own about which fields go together; one site's word is consistent.
        Some((_, work)) if kind == "Job" && words.len() == 1 => {
            let mut status = agreed(root, words);
            status.retain(|field, _| words[0].silent.is_none() || !work.contains(&field.as_str()));
            status
        }
        Some((exist, work)) => summed(kind, root, words, exist, work),
        None => agreed(root, words),
    };
    let tells_generation =
        |w: &Word| w.object.as_ref().is_some_and(|o| o.get("observedGeneration").is_some());
    let has_generation = counts(kind).is_some() && kind != "Job" || words.iter().any(tells_generation);
    if has_generation {
        let observed = observed(words, generation);
        if observed > 0 {
            status.insert("observedGeneration".into(), json!(observed));
        } else {
            status.remove("observedGeneration");
        }
    }
    if kind == "Pod"
        && let Some(since) = stale_since(kind, words)
    {
        status.insert("reason".into(), json!("SiteSilent"));
        status.insert("message".into(), json!(crate::mirror::silence(since)));
    }
    let conditions = conditions(root, words, now);
    if !conditions.is_empty() {
        status.insert("conditions".into(), Value::Array(conditions));
    } else if counts(kind).is_some() && kind != "Job" {
        status.remove("conditions");
    }
    Some(Value::Object(status))
}

/// What all sites that are heard say alike; what all last said alike, if none is heard. A site that has not said anything
/// yet agrees to nothing.
fn agreed(root: &Value, words: &[Word]) -> Map<String, Value> {
    let any_heard = words.iter().any(|w| w.silent.is_none());
    let said: Vec<Map<String, Value>> = words
        .iter()
        .filter(|w| w.silent.is_none() || !any_heard)
        .map(|w| w.object.as_ref().and_then(Value::as_object).cloned().unwrap_or_default())
        .collect();
    let Some((first, rest)) = said.split_first() else { return Map::new() };
    let mut status = first.clone();
    rest.iter().for_each(|other| keep_same(&mut status, other));
    let balanced = [("v1", "Service"), ("networking.k8s.io/v1", "Ingress")];
    if balanced.contains(&(text(root, "/apiVersion"), text(root, "/kind"))) {
        join_addresses(&mut status, &said);
    }
    // Where an override makes a Service another type at a site, its addresses are of no use here, and the API refuses them.
    if text(root, "/kind") == "Service" && text(root, "/spec/type") != "LoadBalancer" {
        status.remove("loadBalancer");
    }
    status.remove("uncountedTerminatedPods");
    status
}

/// Takes out what another one does not say too. Lists are compared as a whole: their order may mean something.
fn keep_same(status: &mut Map<String, Value>, other: &Map<String, Value>) {
    status.retain(|field, value| match (value, other.get(field)) {
        (Value::Object(own), Some(Value::Object(others))) => {
            keep_same(own, others);
            !own.is_empty() || others.is_empty()
        }
        (own, others) => others == Some(own),
    });
}

/// Each site has load balancers of its own, and every one of them leads there.
fn join_addresses(status: &mut Map<String, Value>, said: &[Map<String, Value>]) {
    let mut all: Vec<&Value> = Vec::new();
    for address in said.iter().filter_map(|s| s.get("loadBalancer")?.get("ingress")?.as_array()).flatten() {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    if !all.is_empty() {
        status.insert("loadBalancer".into(), json!({ "ingress": all }));
    }
}

fn summed(kind: &str, root: &Value, words: &[Word], exist: &[&str], work: &[&str]) -> Map<String, Value> {
    let mut status = Map::new();
    let none = json!({});
    let sum = |field: &str, silent_too: bool| -> i64 {
        let heard = words.iter().filter(|w| silent_too || w.silent.is_none());
        heard.map(|w| number(w.object.as_ref().unwrap_or(&none), &format!("/{field}"))).sum()
    };
    for field in exist {
        status.insert((*field).into(), json!(sum(field, true)));
    }
    for field in work {
        status.insert((*field).into(), json!(sum(field, false)));
    }
    let of = |status: &Map<String, Value>, field: &str| {
        status.get(field).and_then(Value::as_i64).unwrap_or_default()
    };
    match kind {
        "Deployment" => {
            let missing = (number(root, "/spec/replicas").max(of(&status, "replicas"))
                - of(&status, "availableReplicas"))
            .max(0);
            status.insert("unavailableReplicas".into(), json!(missing));
        }
        "DaemonSet" => {
            let missing = (of(&status, "desiredNumberScheduled") - of(&status, "numberAvailable")).max(0);
            status.insert("numberUnavailable".into(), json!(missing));
        }
        "StatefulSet" => revisions(&mut status, words),
        "Job" => {
            let times = |field: &str| {
                let mut all: Vec<String> = words
                    .iter()
                    .filter_map(|w| Some(w.object.as_ref()?.get(field)?.as_str()?.to_owned()))
                    .collect();
                all.sort();
                all
            };
            if let Some(start) = times("startTime").first() {
                status.insert("startTime".into(), json!(start));
            }
            let ended = times("completionTime");
            if ended.len() == words.len()
                && let Some(end) = ended.last()
            {
                status.insert("completionTime".into(), json!(end));
            }
        }
        _ => {}
    }
    status.retain(|key, value| {
        value != &json!(0) || key == "replicas" || key.contains("Number") || key.starts_with("number")
    });
    status
}

/// Sites count revisions each for itself. What `kubectl rollout` needs is whether current and updated are the same.
fn revisions(status: &mut Map<String, Value>, words: &[Word]) {
    let revision = |w: &Word, field: &str| {
        w.object.as_ref().map(|o| text(o, &format!("/{field}")).to_owned()).unwrap_or_default()
    };
    let Some(first) = words.iter().find(|w| w.object.is_some()) else { return };
    let updated = revision(first, "updateRevision");
    if updated.is_empty() {
        return;
    }
    let behind = words.iter().find(|w| revision(w, "currentRevision") != revision(w, "updateRevision"));
    let current = behind.map_or(updated.clone(), |w| revision(w, "currentRevision"));
    status.insert("updateRevision".into(), json!(updated));
    status.insert("currentRevision".into(), json!(current));
}

/// The hub's generation that every site has applied and observed.
fn observed(words: &[Word], generation: i64) -> i64 {
    let one = |word: &Word| {
        let own = word.object.as_ref().map_or(0, |o| number(o, "/observedGeneration"));
        let seen = own >= word.site_generation && word.site_generation > 0;
        if word.silent.is_none() && word.sent == generation && seen {
            word.root_generation
        } else {
            word.root_generation.min(generation - 1)
        }
    };
    if words.is_empty() { 0 } else { words.iter().map(one).min().unwrap_or(0).min(generation) }
}

fn of(word: &Word) -> Vec<Value> {
    word.object.as_ref().and_then(|o| o.get("conditions")?.as_array().cloned()).unwrap_or_default()
}

fn conditions(root: &Value, words: &[Word], now: &str) -> Vec<Value> {
    let mut kinds: Vec<String> = Vec::new();
    let placing = shows_placing(text(root, "/kind"));
    for word in words {
        for condition in of(word) {
            let kind = text(&condition, "/type").to_owned();
            if placing && [PLACED, BELOW].contains(&kind.as_str()) {
                continue;
            }
            if !kind.is_empty() && !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
    }
    let many = words.len() > 1;
    let any_silent = words.iter().any(|w| w.silent.is_some());
    let mut merged = Vec::new();
    for kind in kinds {
        let news = News::of(&kind);
        let mut worst: Option<(u8, Value)> = None;
        let (mut told, mut values) = (Vec::new(), BTreeSet::new());
        for word in words {
            let own = of(word).into_iter().find(|c| text(c, "/type") == kind);
            // A failure that only some sites have is not made unknown by those that lack it.
            if own.is_none() && word.silent.is_none() && news == News::Bad {
                continue;
            }
            let value = match (&word.silent, &own) {
                (None, Some(c)) => text(c, "/status").to_owned(),
                _ => "Unknown".to_owned(),
            };
            let rank = news.rank(&value);
            if let Some(since) = &word.silent {
                told.push(format!("{}: not heard since {since}", word.site));
            } else if rank > 0 || !many {
                let message = match &own {
                    None => "no word yet".to_owned(),
                    Some(c) if many && news == News::Unclear => spelt(&value, text(c, "/message")),
                    Some(c) => text(c, "/message").to_owned(),
                };
                told.push(if many { format!("{}: {message}", word.site) } else { message });
            }
            values.insert(own.as_ref().filter(|_| word.silent.is_none()).map(|_| value.clone()));
            if worst.as_ref().is_none_or(|(other, _)| rank > *other) {
                let mut condition = own.unwrap_or_else(|| json!({"type": kind}));
                condition["status"] = json!(value);
                worst = Some((rank, condition));
            }
        }
        let Some((_, mut condition)) = worst else { continue };
        let alike = values.len() == 1 && !values.contains(&None);
        match (news, alike) {
            (News::Unclear, false) => condition["status"] = json!("Unknown"),
            (News::Unclear, true) if many => told.clear(),
            _ => {}
        }
        if many || any_silent {
            let all = format!("at {} sites", words.len());
            condition["message"] = json!(if told.is_empty() { all } else { few(&told) });
            if text(&condition, "/status") == "Unknown" && !alike {
                condition["reason"] = json!(if any_silent { "SiteSilent" } else { "SitesDiffer" });
            }
        }
        keep_times(root, &mut condition, now);
        merged.push(condition);
    }
    if placing && let Some(mut condition) = below(words) {
        keep_times(root, &mut condition, now);
        merged.push(condition);
    }
    merged
}

/// What hubs below, and those below them, could not place.
fn below(words: &[Word]) -> Option<Value> {
    let not_placed = |c: &Value| [PLACED, BELOW].contains(&text(c, "/type")) && text(c, "/status") == "False";
    let mut condition: Option<Value> = None;
    let mut told = Vec::new();
    for word in words.iter().filter(|w| w.silent.is_none()) {
        for own in of(word).into_iter().filter(not_placed) {
            told.push(format!("{}: {}", word.site, text(&own, "/message")));
            condition.get_or_insert(own);
        }
    }
    let mut condition = condition?;
    condition["type"] = json!(BELOW);
    condition["message"] = json!(few(&told));
    Some(condition)
}

/// As many words as a message has room for.
fn few(told: &[String]) -> String {
    const MOST: usize = 20;
    let more = told.len().saturating_sub(MOST);
    let text = told[..told.len() - more].join("; ");
    if more > 0 { format!("{text}; and {more} more") } else { text }
}

fn spelt(value: &str, message: &str) -> String {
    if message.is_empty() { value.to_owned() } else { format!("{value}, {message}") }
}

/// Transition times are the hub's own: they change when the merged status does.
fn keep_times(root: &Value, condition: &mut Value, now: &str) {
    let before = root.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    let same =
        before.into_iter().find(|c| c["type"] == condition["type"] && c["status"] == condition["status"]);
    let (transition, update) = match same {
        Some(old) if old["message"] == condition["message"] && old["reason"] == condition["reason"] => {
            (text(old, "/lastTransitionTime").to_owned(), text(old, "/lastUpdateTime").to_owned())
        }
        Some(old) => (text(old, "/lastTransitionTime").to_owned(), now.to_owned()),
        None => {
            let own = text(condition, "/lastTransitionTime").to_owned();
            (if own.is_empty() { now.to_owned() } else { own }, now.to_owned())
        }
    };
    condition["lastTransitionTime"] = json!(transition);
    if condition.get("lastUpdateTime").is_some() {
        condition["lastUpdateTime"] = json!(if update.is_empty() { now } else { update.as_str() });
    }
}

/// Since when the oldest word is old, for kinds whose status is what sites say as it stands; the others say in counts and
/// conditions what is not known. A site that was lost before it said anything counts, where others have.
pub fn stale_since<'a>(kind: &str, words: &'a [Word]) -> Option<&'a str> {
    if counts(kind).is_some() && kind != "Job" {
        return None;
    }
    let shown = words.iter().any(|w| w.object.is_some());
    words.iter().filter(|_| shown).filter_map(|w| w.silent.as_deref()).min()
}

/// Whether the status of a kind has room for the condition `Placed`.
pub fn shows_placing(kind: &str) -> bool {
    matches!(kind, "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet")
}

/// Adds a condition of our own about the placing, for kinds whose conditions are free.
pub fn with_condition(
    status: Option<Value>,
    root: &Value,
    value: &str,
    reason: &str,
    message: &str,
    now: &str,
) -> Option<Value> {
    let kind = text(root, "/kind");
    if !shows_placing(kind) {
        return status;
    }
    let mut status = status.unwrap_or_else(|| json!({}));
    let mut condition = json!({"type": PLACED, "status": value, "reason": reason, "message": message});
    if kind == "Deployment" {
        condition["lastUpdateTime"] = json!(now);
    }
    keep_times(root, &mut condition, now);
    match status.get_mut("conditions").and_then(Value::as_array_mut) {
        Some(all) => all.push(condition),
        None => status["conditions"] = json!([condition]),
    }
    Some(status)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
