//! Resource quotas: says what counts (`status.hard`) and recounts what is used.
//!
//! Whoever creates an object is charged when the API server lets it in; here objects that were there before a quota are
//! counted, and what is gone is given back. An object is charged a moment before it exists, so less than what is charged
//! is believed only when it stays so: a quota that errs, errs by refusing a second too long.

use crate::{
    catalog::discover,
    meta,
    shell::{ActError, Controller, Enqueue, Json, Key, Object, Reconciled, Resource, Shell, Watch, World},
};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};
use tombolo_k8s::{
    quantity::Quantity,
    quota::{Usage, amounts, covers, usage},
};

/// How long less must have been used than was charged before it is given back.
const CERTAIN: Duration = Duration::from_secs(1);
/// Kinds that nobody here watches (Secrets, ConfigMaps, custom resources) are counted this often.
const AGAIN: Duration = Duration::from_secs(30);

/// Group and plural of a kind.
type Kind = (String, String);

/// The kind that an entry of a quota counts; `None` for names that no quota has.
pub fn counted(name: &str) -> Option<Kind> {
    let core = |plural: &str| Some((String::new(), plural.to_owned()));
    if let Some(kind) = name.strip_prefix("count/") {
        let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
        return Some((group.to_owned(), plural.to_owned()));
    }
    match name {
        "services" | "services.nodeports" | "services.loadbalancers" => core("services"),
        "persistentvolumeclaims" | "requests.storage" => core("persistentvolumeclaims"),
        name if name.contains(".storageclass.storage.k8s.io/") => core("persistentvolumeclaims"),
        "secrets" | "configmaps" | "replicationcontrollers" | "resourcequotas" => core(name),
        "pods" | "cpu" | "memory" | "ephemeral-storage" => core("pods"),
        name if name.starts_with("requests.") || name.starts_with("limits.") => core("pods"),
        _ => None,
    }
}

/// What `objects` use of each thing that `quota` limits.
pub fn used<'a>(quota: &Value, objects: impl Iterator<Item = (&'a Kind, &'a Value)>) -> Usage {
    let limits = amounts(&quota["spec"]["hard"]);
    let mut sums: Usage = limits.keys().map(|name| (name.clone(), Quantity::ZERO)).collect();
    for ((group, plural), object) in objects.filter(|((g, p), o)| covers(quota, g, p, o)) {
        for (name, amount) in usage(group, plural, object) {
            if let Some(sum) = sums.get_mut(&name) {
                *sum = sum.plus(amount);
            }
        }
    }
    sums
}

/// How a count compares with what the quota says.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Right,
    /// To be written now: limits changed, or more is used than was charged.
    Wrong,
    /// Only less is used than was charged.
    Less,
}

pub fn verdict(quota: &Value, counted: &Usage) -> Verdict {
    let told = amounts(&quota["status"]["used"]);
    let limits_told = amounts(&quota["spec"]["hard"]) == amounts(&quota["status"]["hard"]);
    let known = told.keys().eq(counted.keys());
    if !limits_told || !known || counted.iter().any(|(name, sum)| told.get(name).is_none_or(|t| sum > t)) {
        return Verdict::Wrong;
    }
    if told == *counted { Verdict::Right } else { Verdict::Less }
}

#[derive(Default)]
pub struct Quotas {
    /// Versions of quotas that say more than is used, and since when they do.
    doubted: Mutex<HashMap<Key, (String, Instant)>>,
    enqueue: Mutex<Option<Enqueue>>,
}

impl Quotas {
    async fn recount(&self, key: &Key, shell: &Shell) -> Reconciled {
        // From the server, quota first: what is let in after this changes the quota, and then the write is refused.
        let Some(mut quota) = shell.get::<Value>(&ResourceQuota::RESOURCE, &key.namespace, &key.name).await?
        else {
            self.doubted.lock().remove(key);
            return Ok(None);
        };
        let kinds: BTreeSet<Kind> =
            amounts(&quota["spec"]["hard"]).keys().filter_map(|n| counted(n)).collect();
        let mut objects: Vec<(Kind, Value)> = Vec::new();
        for resource in resources(shell, &kinds).await? {
            let kind = (resource.group.to_string(), resource.plural.to_string());
            let list: Value = shell.get(&resource, &key.namespace, "").await?.unwrap_or_default();
            let items = list["items"].as_array().cloned().unwrap_or_default();
            objects.extend(items.into_iter().map(|item| (kind.clone(), item)));
        }
        let sums = used(&quota, objects.iter().map(|(kind, object)| (kind, object)));
        let again = kinds.iter().any(|kind| !is_watched(kind)).then_some(AGAIN);
        let version = quota["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        match verdict(&quota, &sums) {
            Verdict::Right => return Ok(again),
            Verdict::Less if !self.stays_so(key, &version) => return Ok(Some(CERTAIN)),
            Verdict::Less | Verdict::Wrong => {}
        }
        quota["status"] = json!({
            "hard": quota["spec"]["hard"],
            "used": sums.iter().map(|(name, sum)| (name.clone(), json!(sum.to_string()))).collect::<serde_json::Map<_, _>>(),
        });
        let path = ResourceQuota::RESOURCE.path(&key.namespace, &key.name, "status");
        match shell.send("PUT", &path, "application/json", Json::of(&quota).0).await {
            Ok(_) => Ok(again),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn stays_so(&self, key: &Key, version: &str) -> bool {
        let mut doubted = self.doubted.lock();
        match doubted.get(key) {
            Some((seen, since)) if seen == version && since.elapsed() >= CERTAIN => {
                doubted.remove(key);
                true
            }
            Some((seen, _)) if seen == version => false,
            _ => {
                doubted.insert(key.clone(), (version.to_owned(), Instant::now()));
                false
            }
        }
    }
}

/// Kinds whose removal is seen at once.
fn is_watched((group, plural): &Kind) -> bool {
    match group.as_str() {
        "" => matches!(
            plural.as_str(),
            "pods" | "services" | "persistentvolumeclaims" | "replicationcontrollers" | "resourcequotas"
        ),
        "apps" => matches!(plural.as_str(), "deployments" | "replicasets" | "statefulsets" | "daemonsets"),
        "batch" => true,
        _ => false,
    }
}

/// The resources of these kinds; one that the server does not serve has no objects.
async fn resources(shell: &Shell, kinds: &BTreeSet<Kind>) -> Result<Vec<Resource>, ActError> {
    let core = kinds
        .iter()
        .filter(|(group, _)| group.is_empty())
        .map(|(_, plural)| Resource { plural: plural.clone().into(), ..ResourceQuota::RESOURCE });
    let mut all: Vec<Resource> = core.collect();
    if kinds.iter().any(|(group, _)| !group.is_empty()) {
        let served = discover(&shell.client)
            .await
            .map_err(|error| ActError::Refused(format!("the server does not say what it serves: {error}")))?;
        let named = |r: &Resource| kinds.contains(&(r.group.to_string(), r.plural.to_string()));
        let custom = |r: &Resource| !r.group.is_empty() && named(r);
        all.extend(served.into_iter().filter(|s| s.namespaced && s.list).map(|s| s.resource).filter(custom));
    }
    Ok(all)
}

fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn add_all(world: &World, enqueue: &Enqueue, namespace: &str) {
    for quota in world.quotas.in_namespace(namespace) {
        enqueue.add(Key::of(&quota.metadata));
    }
}

impl Controller for Quotas {
    fn name(&self) -> &'static str {
        "quota"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Quotas, Watch::Pods, Watch::Services, Watch::VolumeClaims]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        *self.enqueue.lock() = Some(enqueue.clone());
        let own = enqueue.clone();
        world.quotas.on_change(move |_, new| {
            if let Some(quota) = new {
                own.add(Key::of(&quota.metadata));
            }
        });
        let there = Arc::downgrade(world);
        world.pods.on_change(move |old, new| {
            if let (Some(old), Some(new), Some(world)) = (old, new, there.upgrade())
                && is_finished(new) != is_finished(old)
            {
                add_all(&world, &enqueue, meta::namespace(&new.metadata));
            }
        });
    }

    fn feed(&self, world: &Arc<World>, followed: &[Watch]) {
        let Some(enqueue) = self.enqueue.lock().clone() else { return };
        let there = Arc::downgrade(world);
        world.on_any_change(followed, move |_, metadata, exists| {
            if let Some(world) = there.upgrade().filter(|_| !exists) {
                add_all(&world, &enqueue, metadata.namespace.as_deref().unwrap_or_default());
            }
        });
    }

    fn reconcile<'a>(&'a self, key: &'a Key, shell: &'a Shell) -> Option<BoxFuture<'a, Reconciled>> {
        Some(self.recount(key, shell).boxed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(hard: Value, told: Value) -> Value {
        json!({"spec": {"hard": hard}, "status": {"hard": hard, "used": told}})
    }

    #[test]
    fn every_entry_names_the_kind_it_counts() {
        let kind = |group: &str, plural: &str| Some((group.to_owned(), plural.to_owned()));
        assert_eq!(counted("requests.cpu"), kind("", "pods"));
        assert_eq!(counted("requests.storage"), kind("", "persistentvolumeclaims"));
        assert_eq!(counted("services.nodeports"), kind("", "services"));
        assert_eq!(counted("count/deployments.apps"), kind("apps", "deployments"));
        assert_eq!(counted("count/secrets"), kind("", "secrets"));
        assert_eq!(
            counted("fast.storageclass.storage.k8s.io/requests.storage"),
            kind("", "persistentvolumeclaims")
        );
        assert_eq!(counted("wishes"), None);
    }

    #[test]
    fn what_is_there_is_counted_and_what_has_ended_is_not() {
        let quota = quota(json!({"pods": "5", "requests.cpu": "2", "secrets": "1"}), json!({}));
        let pods = ("".to_owned(), "pods".to_owned());
        let pod = |cpu: &str, phase: &str| json!({"spec": {"containers": [{"resources": {"requests": {"cpu": cpu}}}]}, "status": {"phase": phase}});
        let objects = [pod("500m", "Running"), pod("250m", "Pending"), pod("1", "Succeeded")];
        let sums = used(&quota, objects.iter().map(|o| (&pods, o)));
        let text: Vec<String> = sums.iter().map(|(name, sum)| format!("{name}={sum}")).collect();
        assert_eq!(text, ["pods=2", "requests.cpu=750m", "secrets=0"]);
    }

    #[test]
    fn more_is_believed_at_once_and_less_only_if_it_stays() {
        let one = || Usage::from([("pods".to_owned(), Quantity::new(1))]);
        let hard = || json!({"pods": "5"});
        assert_eq!(verdict(&quota(hard(), json!({"pods": "1"})), &one()), Verdict::Right);
        assert_eq!(verdict(&quota(hard(), json!({"pods": "0"})), &one()), Verdict::Wrong);
        assert_eq!(verdict(&quota(hard(), json!({"pods": "2"})), &one()), Verdict::Less);
        assert_eq!(verdict(&quota(hard(), json!({})), &one()), Verdict::Wrong);
        let unseen = json!({"spec": {"hard": hard()}});
        assert_eq!(verdict(&unseen, &one()), Verdict::Wrong, "its limits count from now on");
        assert_eq!(verdict(&quota(hard(), json!({"pods": "1", "cpu": "1"})), &one()), Verdict::Wrong);
        let quotas = Quotas::default();
        let key = Key::new("a", "q");
        assert!(!quotas.stays_so(&key, "1"));
        quotas.doubted.lock().insert(key.clone(), ("1".into(), Instant::now() - CERTAIN));
        assert!(!quotas.stays_so(&key, "2"), "somebody was charged meanwhile");
        quotas.doubted.lock().insert(key.clone(), ("2".into(), Instant::now() - CERTAIN));
        assert!(quotas.stays_so(&key, "2"));
    }
}
