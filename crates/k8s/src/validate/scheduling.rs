//! Where pods may run: affinity, tolerations, spread.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::at::{At, Errors};
use super::meta::label_selector;
use crate::names;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn affinity(e: &mut Errors, affinity: &At<'_, '_>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let node = affinity.get("nodeAffinity");
    if node.get(REQUIRED).is_set() {
        node_selector(e, &node.get(REQUIRED));
    }
    for term in node.get(PREFERRED).items() {
        weight(e, &term.get("weight"));
        node_term(e, &term.get("preference"), false);
    }
    for name in ["podAffinity", "podAntiAffinity"] {
        let pod = affinity.get(name);
        pod.get(REQUIRED).items().for_each(|term| pod_term(e, &term));
        for term in pod.get(PREFERRED).items() {
            weight(e, &term.get("weight"));
            pod_term(e, &term.get("podAffinityTerm"));
        }
    }
}

fn weight(e: &mut Errors, weight: &At<'_, '_>) {
    if weight.int().is_none_or(|w| !(1..=100).contains(&w)) {
        e.invalid_value(weight, &Value::from(weight.int().unwrap_or_default()), "must be in the range 1-100");
    }
}

pub(super) fn node_selector(e: &mut Errors, selector: &At<'_, '_>) {
    let terms = selector.get("nodeSelectorTerms");
    if terms.is_empty() {
        e.required(&terms, "must have at least one node selector term");
    }
    terms.items().for_each(|term| node_term(e, &term, true));
}

fn node_term(e: &mut Errors, term: &At<'_, '_>, check_values: bool) {
    for expression in term.get("matchExpressions").items() {
        let (operator, values, key) =
            (expression.get("operator"), expression.get("values"), expression.get("key"));
        match operator.str() {
            "In" | "NotIn" if values.is_empty() => {
                e.required(&values, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                e.forbidden(&values, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            "Gt" | "Lt" if values.len() != 1 => {
                e.required(&values, "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            _ => e.invalid(&operator, "not a valid selector operator"),
        }
        e.complaints(&key, names::label_key(key.str()));
        if check_values {
            values.items().for_each(|value| e.complaints(&value, names::label_value(value.str())));
        }
    }
    for field in term.get("matchFields").items() {
        let (operator, values, key) = (field.get("operator"), field.get("values"), field.get("key"));
        match operator.str() {
            "In" | "NotIn" if values.len() != 1 => {
                let detail =
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                e.required(&values, detail);
            }
            "In" | "NotIn" => {}
            _ => e.invalid(&operator, "not a valid selector operator"),
        }
        if key.str() == "metadata.name" {
            values.items().for_each(|value| e.complaints(&value, names::dns_subdomain(value.str())));
        } else {
            e.invalid(&key, "not a valid field selector key");
        }
    }
}

fn pod_term(e: &mut Errors, term: &At<'_, '_>) {
    label_selector(e, &term.get("labelSelector"));
    label_selector(e, &term.get("namespaceSelector"));
    let shown = term.get("namespace");
    for namespace in term.get("namespaces").items() {
        e.complaints(&shown.with(namespace.value), names::dns_label(namespace.str()));
    }
    let key = term.get("topologyKey");
    if key.is_empty() {
        e.required(&key, "can not be empty");
    }
    e.complaints(&key, names::label_key(key.str()));
}

pub(super) fn tolerations(e: &mut Errors, tolerations: &At<'_, '_>) {
    for toleration in tolerations.items() {
        let (key, operator) = (toleration.get("key"), toleration.get("operator"));
        let (value, effect) = (toleration.get("value"), toleration.get("effect"));
        if !key.is_empty() {
            e.complaints(&key, names::label_key(key.str()));
        } else if operator.str() != "Exists" {
            let detail =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            e.invalid(&operator, detail);
        }
        if toleration.get("tolerationSeconds").is_set() && effect.str() != "NoExecute" {
            e.invalid(&effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        match operator.str() {
            "Equal" | "" => {
                let complaints = names::label_value(value.str());
                if !complaints.is_empty() {
                    e.invalid_value(&operator, value.value, complaints.join(";"));
                }
            }
            "Exists" => {
                if !value.is_empty() {
                    e.invalid_value(
                        &operator,
                        value.value,
                        "value must be empty when `operator` is 'Exists'",
                    );
                }
            }
            "Lt" | "Gt" => e.not_supported(&operator, &["Equal", "Exists", "Lt", "Gt"]),
            _ => e.not_supported(&operator, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            e.optional_one_of(&effect, &EFFECTS);
        }
    }
}

pub(super) fn taints(e: &mut Errors, taints: &At<'_, '_>) {
    let mut seen = HashSet::new();
    for taint in taints.items() {
        let (key, value, effect) = (taint.get("key"), taint.get("value"), taint.get("effect"));
        e.complaints(&key, names::label_key(key.str()));
        let complaints = names::label_value(value.str());
        if !complaints.is_empty() {
            e.invalid(&value, complaints.join(";"));
        }
        e.one_of(&effect, &EFFECTS);
        if !seen.insert((key.str(), effect.str())) {
            e.duplicate(&taint);
            if let Some(last) = e.0.last_mut() {
                last.detail = "taints must be unique by key and effect pair".into();
            }
        }
    }
}

pub(super) fn spread(e: &mut Errors, constraints: &At<'_, '_>) {
    fn pair<'v>(constraint: &At<'v, '_>) -> [&'v str; 2] {
        ["topologyKey", "whenUnsatisfiable"].map(|field| constraint.get(field).str())
    }
    let mut to_come: HashMap<[&str; 2], usize> = HashMap::new();
    constraints.items().for_each(|constraint| *to_come.entry(pair(&constraint)).or_default() += 1);
    for constraint in constraints.items() {
        e.positive(&constraint.get("maxSkew"));
        let (key, action) = (constraint.get("topologyKey"), constraint.get("whenUnsatisfiable"));
        if key.is_empty() {
            e.required(&key, "can not be empty");
        }
        if !matches!(action.str(), "DoNotSchedule" | "ScheduleAnyway") {
            e.not_supported(&action, &["DoNotSchedule", "ScheduleAnyway"]);
        }
        let more = to_come.entry(pair(&constraint)).or_default();
        *more -= 1;
        if *more > 0 {
            let shown = Value::from(format!("{{{}, {}}}", key.str(), action.str()));
            e.duplicate(&constraint.get("{topologyKey, whenUnsatisfiable}").with(&shown));
        }
        let domains = constraint.get("minDomains");
        if domains.is_set() {
            e.positive(&domains);
            if action.str() != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                    action.str()
                );
                e.invalid(&domains, detail);
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            e.optional_one_of(&constraint.get(policy), &["Honor", "Ignore"]);
        }
        label_selector(e, &constraint.get("labelSelector"));
    }
}
