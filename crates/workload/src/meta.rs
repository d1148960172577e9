//! Small facts about objects that every controller needs: owners, selectors, hashes, patches.

use crate::shell::{Action, Announce, Json, Note, Object, PatchKind, Severity};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ObjectReference, Pod},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference, Time},
        util::intstr::IntOrString,
    },
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Duration};

pub type Labels = BTreeMap<String, String>;

pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}

pub fn uid(meta: &ObjectMeta) -> &str {
    meta.uid.as_deref().unwrap_or_default()
}

pub fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

pub fn namespace(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}

pub fn created(meta: &ObjectMeta) -> Timestamp {
    meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}

pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

pub fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

pub fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|f| f == finalizer)
}

/// The reference with which `K` named in `meta` controls what it creates.
pub fn controller_reference<K: Object>(meta: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: K::RESOURCE.api_version(),
        kind: K::RESOURCE.kind.to_string(),
        name: name(meta).to_owned(),
        uid: uid(meta).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

pub fn reference<K: Object>(meta: &ObjectMeta) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::RESOURCE.api_version()),
        kind: Some(K::RESOURCE.kind.to_string()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

pub fn tell<K: Object>(
    meta: &ObjectMeta,
    component: &'static str,
    severity: Severity,
    reason: &'static str,
    message: impl Into<String>,
) -> Action {
    Action::Tell(Note { about: reference::<K>(meta), severity, reason, message: message.into(), component })
}

/// Whether the selector selects these labels. An empty or invalid selector selects nothing.
pub fn selects(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let value = |key: &str| labels.and_then(|labels| labels.get(key));
    let equal = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    if equal.clone().next().is_none() && expressions.clone().next().is_none() {
        return false;
    }
    let listed = |key: &str, values: &Option<Vec<String>>| {
        value(key).is_some_and(|value| values.iter().flatten().any(|listed| listed == value))
    };
    equal.into_iter().all(|(key, wanted)| value(key) == Some(wanted))
        && expressions.into_iter().all(|e| match e.operator.as_str() {
            "In" => listed(&e.key, &e.values),
            "NotIn" => !listed(&e.key, &e.values),
            "Exists" => value(&e.key).is_some(),
            "DoesNotExist" => value(&e.key).is_none(),
            _ => false,
        })
}

/// Which of the objects belong to the owner, and the steps that adopt or release the others.
///
/// Adopted: matches the selector and has no controller. Released: ours, but no longer matches.
pub struct Claim<K> {
    pub mine: Vec<std::sync::Arc<K>>,
    pub actions: Vec<Action>,
}

pub fn claim<O: Object, K: Object>(
    owner: &ObjectMeta,
    selector: &LabelSelector,
    owned: Vec<std::sync::Arc<K>>,
    orphans: Vec<std::sync::Arc<K>>,
) -> Claim<K> {
    let mut claim = Claim { mine: Vec::new(), actions: Vec::new() };
    let deleting = owner.deletion_timestamp.is_some();
    for object in owned {
        let meta = object.meta();
        if selects(selector, meta.labels.as_ref()) {
            claim.mine.push(object);
        } else if !deleting && meta.deletion_timestamp.is_none() {
            let rest: Vec<_> =
                meta.owner_references.iter().flatten().filter(|o| o.uid != uid(owner)).cloned().collect();
            claim.actions.push(patch::<K>(
                meta,
                "",
                &json!({"metadata": {"uid": meta.uid, "ownerReferences": rest, "resourceVersion": meta.resource_version}}),
            ));
        }
    }
    for object in orphans {
        let meta = object.meta();
        let adoptable = !deleting && meta.deletion_timestamp.is_none();
        if adoptable && selects(selector, meta.labels.as_ref()) {
            let mut owners = meta.owner_references.clone().unwrap_or_default();
            owners.push(controller_reference::<O>(owner));
            claim.actions.push(patch::<K>(
                meta,
                "",
                &json!({"metadata": {"uid": meta.uid, "ownerReferences": owners, "resourceVersion": meta.resource_version}}),
            ));
        }
    }
    claim
}

pub fn create<K: Object + Serialize>(object: &K) -> Action {
    Action::Create {
        resource: K::RESOURCE,
        namespace: namespace(object.meta()).to_owned(),
        body: Json::of(object),
        announce: None,
    }
}

/// Creates a pod and tells so in an event about its owner, with the name that the server chose.
pub fn create_pod<O: Object>(pod: &Pod, owner: &ObjectMeta, component: &'static str) -> Action {
    Action::Create {
        resource: Pod::RESOURCE,
        namespace: namespace(&pod.metadata).to_owned(),
        body: Json::of(pod),
        announce: Some(Box::new(Announce { about: reference::<O>(owner), component })),
    }
}

pub fn delete<K: Object>(meta: &ObjectMeta) -> Action {
    Action::Delete {
        resource: K::RESOURCE,
        namespace: namespace(meta).to_owned(),
        name: name(meta).to_owned(),
        uid: meta.uid.clone(),
        grace_seconds: None,
        propagation: None,
    }
}

pub fn patch<K: Object>(meta: &ObjectMeta, subresource: &'static str, body: &Value) -> Action {
    Action::Patch {
        resource: K::RESOURCE,
        namespace: namespace(meta).to_owned(),
        name: name(meta).to_owned(),
        subresource,
        kind: PatchKind::Merge,
        body: Json::of(body),
    }
}

/// The step that turns the stored status into `new`, or nothing when they are equal.
pub fn status<K: Object, S: Serialize + PartialEq>(
    meta: &ObjectMeta,
    old: Option<&S>,
    new: &S,
) -> Option<Action> {
    if old == Some(new) {
        return None;
    }
    let old = old.map_or(Value::Null, |old| serde_json::to_value(old).unwrap_or_default());
    let new = serde_json::to_value(new).unwrap_or_default();
    let change = merge_diff(&old, &new)?;
    Some(patch::<K>(meta, "status", &json!({ "status": change })))
}

/// The JSON merge patch from `old` to `new`; `None` when they are equal.
pub fn merge_diff(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut change = Map::new();
            for key in old.keys().filter(|key| !new.contains_key(*key)) {
                change.insert(key.clone(), Value::Null);
            }
            for (key, value) in new {
                if let Some(part) = merge_diff(old.get(key).unwrap_or(&Value::Null), value) {
                    change.insert(key.clone(), part);
                }
            }
            (!change.is_empty()).then_some(Value::Object(change))
        }
        (old, new) if old == new => None,
        (_, new) => Some(new.clone()),
    }
}

/// Equal up to empty lists and maps, which servers and clients drop as they like.
pub fn semantically_equal<T: Serialize + PartialEq>(a: &T, b: &T) -> bool {
    a == b || pruned(a) == pruned(b)
}

fn pruned(value: &impl Serialize) -> Value {
    fn prune(value: Value) -> Value {
        match value {
            Value::Object(map) => Value::Object(
                map.into_iter()
                    .map(|(key, value)| (key, prune(value)))
                    .filter(|(_, value)| match value {
                        Value::Null => false,
                        Value::Array(items) => !items.is_empty(),
                        _ => true,
                    })
                    .collect(),
            ),
            Value::Array(items) => Value::Array(items.into_iter().map(prune).collect()),
            other => other,
        }
    }
    prune(serde_json::to_value(value).unwrap_or_default())
}

/// A short hash in the style of pod-template hashes: FNV-1a, written with letters that spell no words.
///
/// `collisions` is the owner's collision count: a changed count gives a different name.
pub fn short_hash(value: &impl Serialize, collisions: Option<i32>) -> String {
    let mut bytes = pruned(value).to_string().into_bytes();
    if let Some(count) = collisions {
        bytes.extend(count.to_le_bytes());
    }
    safe_encode(&fnv32(&bytes).to_string())
}

pub fn fnv32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Replaces each byte by a letter of the alphabet that generated names use.
pub fn safe_encode(text: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    text.bytes().map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()])).collect()
}

/// `3` or `25%` of a total. `None` when the text is neither.
pub fn scaled(value: &IntOrString, total: i32, round_up: bool) -> Option<i32> {
    match value {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            let hundredths = percent * i64::from(total);
            let whole = if round_up { (hundredths + 99).div_euclid(100) } else { hundredths.div_euclid(100) };
            i32::try_from(whole).ok()
        }
    }
}

pub fn now_time(now: Timestamp) -> Time {
    // The API keeps whole seconds; keeping more would make every status look changed.
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The time left until `at`, at least a millisecond.
pub fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_millis(1))
}

pub fn plus(at: Timestamp, seconds: i64) -> Timestamp {
    at.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_diff_removes_what_is_gone_and_keeps_what_is_equal() {
        let old = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1]});
        let new = json!({"a": 1, "b": {"c": 4}, "e": [1, 2]});
        assert_eq!(merge_diff(&old, &new), Some(json!({"b": {"c": 4, "d": null}, "e": [1, 2]})));
        assert_eq!(merge_diff(&old, &old), None);
    }

    #[test]
    fn percentages_round_as_told() {
        let quarter = IntOrString::String("25%".into());
        assert_eq!(scaled(&quarter, 10, true), Some(3));
        assert_eq!(scaled(&quarter, 10, false), Some(2));
        assert_eq!(scaled(&IntOrString::Int(7), 1, false), Some(7));
        assert_eq!(scaled(&IntOrString::String("many".into()), 1, false), None);
    }

    #[test]
    fn hashes_ignore_empty_lists_and_follow_the_collision_count() {
        let with = json!({"a": [], "b": 1});
        let without = json!({"b": 1});
        assert_eq!(short_hash(&with, None), short_hash(&without, None));
        assert_ne!(short_hash(&with, None), short_hash(&with, Some(1)));
    }
}
