//! Flow schemas and priority levels.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors};
use crate::names;

const MOST_QUEUES: i64 = 10_000_000;
/// A request is dealt to its queues with this many bits of a hash.
const HASH_BITS: u32 = 60;

pub(super) fn flow_schema(e: &mut Errors, object: &At<'_, '_>) {
    let (metadata, spec) = (object.get("metadata"), object.get("spec"));
    let precedence = spec.get("matchingPrecedence");
    match precedence.int().unwrap_or_default() {
        ..=0 => e.invalid(&precedence, "must be a positive value"),
        1 if metadata.get("name").str() != "exempt" => {
            e.invalid(&precedence, "only the schema named 'exempt' may have matchingPrecedence 1");
        }
        10_001.. => e.invalid(&precedence, "must not be greater than 10000"),
        _ => {}
    }
    let method = spec.get("distinguisherMethod");
    if method.is_set() && !matches!(method.get("type").str(), "ByNamespace" | "ByUser") {
        e.not_supported(&method.get("type"), &["ByNamespace", "ByUser"]);
    }
    let level = spec.get("priorityLevelConfiguration");
    let name = level.get("name");
    if name.is_empty() {
        e.required(&name, "must reference a priority level");
    } else {
        e.complaints(&name, names::dns_subdomain(name.str()));
    }
    spec.get("rules").items().for_each(|each| flow_rule(e, &each));
}

/// Whose requests for what.
fn flow_rule(e: &mut Errors, rule: &At<'_, '_>) {
    let subjects = rule.get("subjects");
    if subjects.is_empty() {
        e.required(&subjects, "subjects must contain at least one value");
    }
    subjects.items().for_each(|each| subject(e, &each));
    let (resources, paths) = (rule.get("resourceRules"), rule.get("nonResourceRules"));
    if resources.is_empty() && paths.is_empty() {
        e.required(rule, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    resources.items().for_each(|each| resource_rule(e, &each));
    paths.items().for_each(|each| path_rule(e, &each));
}

fn subject(e: &mut Errors, subject: &At<'_, '_>) {
    const KINDS: [(&str, &str); 3] =
        [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = subject.get("kind");
    let Some((_, own)) = KINDS.iter().find(|(name, _)| *name == kind.str()) else {
        e.not_supported(&kind, &["Group", "ServiceAccount", "User"]);
        return;
    };
    for (name, field) in KINDS.iter().filter(|(_, field)| field != own) {
        if subject.get(field).is_set() {
            e.forbidden(
                &subject.get(field),
                format!("{field} is forbidden when subject kind is not '{name}'"),
            );
        }
    }
    let who = subject.get(own);
    if !who.is_set() {
        e.required(&who, format!("{own} is required when subject kind is '{}'", kind.str()));
        return;
    }
    let name = who.get("name");
    if name.is_empty() {
        e.required(&name, "");
    } else if *own == "serviceAccount" && name.str() != "*" {
        e.complaints(&name, names::dns_subdomain(name.str()));
    }
    if *own == "serviceAccount" {
        let namespace = who.get("namespace");
        if namespace.is_empty() {
            e.required(&namespace, "must specify namespace for service account");
        } else {
            e.complaints(&namespace, names::dns_label(namespace.str()));
        }
    }
}

/// `*` stands alone; whether it stands there is the answer.
fn wildcard(e: &mut Errors, list: &At<'_, '_>, what: &str) -> bool {
    let found = list.items().any(|item| item.str() == "*");
    if found && list.len() > 1 {
        e.invalid(list, format!("if '*' is present, must not specify other {what}"));
    }
    found
}

fn verbs(e: &mut Errors, rule: &At<'_, '_>) {
    const VERBS: [&str; 9] =
        ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
    let verbs = rule.get("verbs");
    if verbs.is_empty() {
        e.required(&verbs, "verbs must contain at least one value");
    } else if !wildcard(e, &verbs, "verbs") && verbs.items().any(|verb| !VERBS.contains(&verb.str())) {
        e.not_supported(&verbs, &VERBS);
    }
}

fn resource_rule(e: &mut Errors, rule: &At<'_, '_>) {
    verbs(e, rule);
    for (field, one, many) in
        [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")]
    {
        let list = rule.get(field);
        if list.is_empty() {
            e.required(&list, format!("resource rules must supply at least one {one}"));
        } else {
            wildcard(e, &list, many);
        }
    }
    let namespaces = rule.get("namespaces");
    if namespaces.is_empty() && !rule.get("clusterScope").bool() {
        let detail = "resource rules that are not cluster scoped must supply at least one namespace";
        e.required(&namespaces, detail);
    } else if !wildcard(e, &namespaces, "namespaces") {
        for namespace in namespaces.items() {
            for complaint in names::dns_label(namespace.str()) {
                let detail = format!("each member of this list must be '*' or a DNS-1123 label; {complaint}");
                e.invalid(&namespace, detail);
            }
        }
    }
}

fn path_rule(e: &mut Errors, rule: &At<'_, '_>) {
    verbs(e, rule);
    let paths = rule.get("nonResourceURLs");
    if paths.is_empty() {
        e.required(&paths, "nonResourceURLs must contain at least one value");
    } else if !wildcard(e, &paths, "non-resource URLs") {
        for path in paths.items() {
            let text = path.str();
            let detail = match text {
                "" => "must not be empty",
                "/" => continue,
                _ if !text.starts_with('/') => "must start with slash",
                _ if text.contains(' ') => "must not contain white-space",
                _ if text.contains("//") => "must not contain double slash",
                _ if text.strip_suffix("/*").unwrap_or(text).contains('*') => {
                    "wildcard can only do suffix matching"
                }
                _ => continue,
            };
            e.invalid(&path, detail);
        }
    }
}

pub(super) fn priority_level(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let kind = spec.get("type");
    let metadata = object.get("metadata");
    if (metadata.get("name").str() == "exempt") != (kind.str() == "Exempt") {
        e.invalid(&kind, "must be 'Exempt' if and only if `name` is 'exempt'");
    }
    let (limited, exempt) = (spec.get("limited"), spec.get("exempt"));
    match kind.str() {
        "Exempt" => {
            if limited.is_set() {
                e.forbidden(&limited, "must be nil if the type is not Limited");
            }
            shares(e, &exempt);
        }
        "Limited" => {
            if exempt.is_set() {
                e.forbidden(&exempt, "must be nil if the type is Limited");
            }
            if limited.is_set() {
                shares(e, &limited);
                limit_response(e, &limited.get("limitResponse"));
                let borrowing = limited.get("borrowingLimitPercent");
                e.at_least(&borrowing, 0, "if specified, must be a non-negative integer");
            } else {
                e.required(&limited, "must not be empty when type is Limited");
            }
        }
        _ => e.one_of(&kind, &["Exempt", "Limited"]),
    }
}

fn shares(e: &mut Errors, level: &At<'_, '_>) {
    e.at_least(&level.get("nominalConcurrencyShares"), 0, "must be a non-negative integer");
    let lendable = level.get("lendablePercent");
    if lendable.int().is_some_and(|percent| !(0..=100).contains(&percent)) {
        e.invalid(&lendable, "must be between 0 and 100, inclusive");
    }
}

fn limit_response(e: &mut Errors, response: &At<'_, '_>) {
    let (kind, queuing) = (response.get("type"), response.get("queuing"));
    match kind.str() {
        "Reject" => {
            if queuing.is_set() {
                e.forbidden(&queuing, "must be nil if limited.limitResponse.type is not Limited");
            }
        }
        "Queue" if queuing.is_set() => queues(e, &queuing),
        "Queue" => e.required(&queuing, "must not be empty if limited.limitResponse.type is Limited"),
        _ => e.one_of(&kind, &["Queue", "Reject"]),
    }
}

fn queues(e: &mut Errors, queuing: &At<'_, '_>) {
    let number = |name| queuing.get(name).int().unwrap_or_default();
    let (queues, hand) = (number("queues"), number("handSize"));
    let at = queuing.get("queueLengthLimit");
    e.at_least(&at, 1, "must be positive");
    let at = queuing.get("queues");
    e.at_least(&at, 1, "must be positive");
    if queues > MOST_QUEUES {
        e.invalid(&at, format!("must not be greater than {MOST_QUEUES}"));
    }
    let at = queuing.get("handSize");
    e.at_least(&at, 1, "must be positive");
    if hand > queues {
        e.invalid(&at, format!("should not be greater than queues ({queues})"));
    } else if hand > 0 {
        let bits = entropy(queues, hand);
        if bits > HASH_BITS {
            let detail = format!(
                "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
            );
            e.invalid(&at, detail);
        }
    }
}

/// How many bits of a hash it takes to pick a hand of queues.
fn entropy(queues: i64, hand: i64) -> u32 {
    ((queues as f64).log2() * hand as f64).ceil() as u32
}

/// Conditions of both kinds have a type each.
pub(super) fn conditions(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    let mut seen = HashSet::new();
    let status = object.get("status");
    for condition in status.get("conditions").items() {
        let kind = condition.get("type");
        if kind.is_empty() {
            e.required(&kind, "");
        } else if !seen.insert(kind.str()) {
            e.duplicate(&kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn said(spec: Value) -> Vec<String> {
        let level = json!({"metadata": {"name": "work"}, "spec": spec});
        let group = "flowcontrol.apiserver.k8s.io";
        let errors = crate::validate::create(group, "PriorityLevelConfiguration", false, &level);
        errors.into_iter().map(|e| e.path).collect()
    }

    #[test]
    fn a_limited_level_says_what_happens_beyond_its_limit() {
        assert_eq!(said(json!({"type": "Limited"})), ["spec.limited"]);
        assert_eq!(said(json!({"type": "Limited", "limited": {}})), ["spec.limited.limitResponse.type"]);
        let queue =
            json!({"type": "Queue", "queuing": {"queues": 64, "handSize": 6, "queueLengthLimit": 50}});
        assert!(said(json!({"type": "Limited", "limited": {"limitResponse": queue}})).is_empty());
    }

    #[test]
    fn a_hand_larger_than_the_hash_can_deal_is_refused() {
        let queue =
            json!({"type": "Queue", "queuing": {"queues": 1024, "handSize": 8, "queueLengthLimit": 5}});
        let refused = said(json!({"type": "Limited", "limited": {"limitResponse": queue}}));
        assert_eq!(refused, ["spec.limited.limitResponse.queuing.handSize"]);
    }
}
