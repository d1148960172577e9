//! Sums over lists of resources, for what a pod asks for as a whole.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Object;
use crate::quantity::Quantity;

type Amounts = BTreeMap<String, Quantity>;

/// Amounts finer than a thousandth are rounded up.
pub fn round_up(list: &mut Map<String, Value>) {
    for value in list.values_mut() {
        if let Some(amount) =
            value.as_str().and_then(|t| Quantity::parse(t).ok()).filter(|q| !q.is_whole_millis())
        {
            *value = Quantity::milli(amount.millis()).to_string().into();
        }
    }
}

/// Pod-level resources are completed from those of the containers, once the user has given any.
pub fn pod_level(spec: &mut Object) {
    let has = |spec: &Object, list: &str| {
        let list = spec.get("resources").and_then(|r| r.get(list)).and_then(Value::as_object);
        list.is_some_and(|l| !l.is_empty())
    };
    if !has(spec, "limits") && !has(spec, "requests") {
        return;
    }
    let limits = total(spec, "limits");
    let requests = total(spec, "requests");
    let Some(resources) = spec.get_mut("resources").and_then(Value::as_object_mut) else { return };
    let asked = resources.get("requests").and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, amount) in limits.iter().filter(|(n, _)| n.starts_with("hugepages-")) {
        if !asked.contains_key(name) {
            put(resources, "limits", name, amount.to_string().into());
        }
    }
    if resources.get("limits").and_then(Value::as_object).is_none_or(|l| l.is_empty()) {
        return;
    }
    for (name, amount) in requests.iter().filter(|(n, _)| matches!(n.as_str(), "cpu" | "memory")) {
        put(resources, "requests", name, amount.to_string().into());
    }
    let limits = resources.get("limits").and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, amount) in limits.into_iter().filter(|(n, _)| supported(n)) {
        put(resources, "requests", &name, amount);
    }
}

fn supported(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn put(resources: &mut Object, list: &str, name: &str, amount: Value) {
    if let Some(list) = resources.entry(list).or_insert_with(|| Value::Object(Map::new())).as_object_mut() {
        list.entry(name).or_insert(amount);
    }
}

/// What all containers need at once: the running ones together, or the neediest step of initialisation if that is more.
fn total(spec: &Object, list: &str) -> Amounts {
    let amounts = |container: &Value| -> Amounts {
        let list = container.pointer("/resources").and_then(|r| r.get(list)).and_then(Value::as_object);
        list.into_iter()
            .flatten()
            .filter_map(|(k, v)| Some((k.clone(), Quantity::from_value(v).ok()?)))
            .collect()
    };
    let containers =
        |field: &str| spec.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut running = Amounts::new();
    for container in containers("containers") {
        add(&mut running, &amounts(container));
    }
    let (mut sidecars, mut step) = (Amounts::new(), Amounts::new());
    for container in containers("initContainers") {
        let mut needed = amounts(container);
        if container["restartPolicy"] == "Always" {
            add(&mut running, &needed);
            add(&mut sidecars, &needed);
            needed = sidecars.clone();
        } else {
            add(&mut needed, &sidecars);
        }
        most(&mut step, &needed);
    }
    most(&mut running, &step);
    running
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        to.entry(name.clone()).and_modify(|a| *a = a.plus(*amount)).or_insert(*amount);
    }
}

fn most(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        to.entry(name.clone()).and_modify(|a| *a = (*a).max(*amount)).or_insert(*amount);
    }
}
