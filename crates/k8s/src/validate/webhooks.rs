//! Webhook configurations, and what they share with admission policies: rules, conditions, expressions.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors, same};
use super::meta::label_selector;
use crate::{cel, names};

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const MOST_CONDITIONS: usize = 64;

pub(super) fn webhooks(e: &mut Errors, object: &At<'_, '_>) {
    checked_webhooks(e, object, None);
}

/// What an old object already had wrong, it may keep.
pub(super) fn webhooks_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    checked_webhooks(e, object, Some(old));
}

fn checked_webhooks(e: &mut Errors, object: &At<'_, '_>, old: Option<&Value>) {
    let before = || old.and_then(|o| o["webhooks"].as_array()).into_iter().flatten();
    let of = |hook: &Value, field: &str| hook[field].as_str().unwrap_or_default().to_owned();
    let harmless = |hook: &Value| ["None", "NoneOnDryRun"].contains(&of(hook, "sideEffects").as_str());
    let pure = before().all(harmless);
    let names: Vec<String> = before().map(|hook| of(hook, "name")).collect();
    let unique = names.iter().enumerate().all(|(i, name)| !names[..i].contains(name));
    let conditions: Vec<&Value> = before().map(|hook| &hook["matchConditions"]).collect();

    let list = object.get("webhooks");
    let mut seen = HashSet::new();
    for (i, hook) in list.items().enumerate() {
        let unchanged =
            conditions.len() == list.len() && same(hook.get("matchConditions").value, conditions[i]);
        webhook(e, &hook, pure, unchanged);
        let name = hook.get("name");
        if unique && !name.is_empty() && !seen.insert(name.str()) {
            e.duplicate(&name);
        }
    }
}

fn webhook(e: &mut Errors, hook: &At<'_, '_>, pure: bool, same_conditions: bool) {
    qualified_name(e, &hook.get("name"));
    hook.get("rules").items().for_each(|each| rule(e, &each));
    e.set_one_of(&hook.get("failurePolicy"), &["Fail", "Ignore"]);
    e.set_one_of(&hook.get("matchPolicy"), &["Equivalent", "Exact"]);
    let effects = hook.get("sideEffects");
    let allowed: &[&str] =
        if pure { &["None", "NoneOnDryRun"] } else { &["None", "NoneOnDryRun", "Some", "Unknown"] };
    if effects.is_set() {
        e.set_one_of(&effects, allowed);
    } else {
        e.required(&effects, format!("must specify one of {}", allowed.join(", ")));
    }
    let timeout = hook.get("timeoutSeconds");
    if timeout.int().is_some_and(|t| !(1..=30).contains(&t)) {
        e.invalid(&timeout, "the timeout value must be between 1 and 30 seconds");
    }
    label_selector(e, &hook.get("namespaceSelector"));
    label_selector(e, &hook.get("objectSelector"));
    e.set_one_of(&hook.get("reinvocationPolicy"), &["IfNeeded", "Never"]);
    client(e, &hook.get("clientConfig"));
    if !same_conditions {
        match_conditions(e, &hook.get("matchConditions"), false);
    }
    review_versions(e, &hook.get("admissionReviewVersions"));
}

/// A domain with at least three parts.
fn qualified_name(e: &mut Errors, name: &At<'_, '_>) {
    if name.is_empty() {
        e.required(name, "");
        return;
    }
    let complaints = names::dns_subdomain(name.str());
    if !complaints.is_empty() {
        e.invalid(name, complaints.join(","));
    } else if name.str().split('.').count() < 3 {
        e.invalid(name, "should be a domain with at least three segments separated by dots");
    }
}

fn client(e: &mut Errors, config: &At<'_, '_>) {
    let (url, service) = (config.get("url"), config.get("service"));
    match (url.is_set(), service.is_set()) {
        (true, false) => webhook_url(e, &url),
        (false, true) => webhook_service(e, &service),
        _ => e.required(config, "exactly one of url or service is required"),
    }
}

fn webhook_url(e: &mut Errors, at: &At<'_, '_>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (head, fragment) = at.str().split_once('#').unwrap_or((at.str(), ""));
    let (head, query) = head.split_once('?').unwrap_or((head, ""));
    let (scheme, rest) = head.split_once("://").unwrap_or(("", head));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    let mut wrong = |value: &str, detail: String| e.invalid_value(at, &Value::from(value), detail);
    if scheme != "https" {
        wrong(scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        wrong(host, format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        wrong(user, "user information is not permitted in the URL".to_owned());
    }
    if !fragment.is_empty() {
        wrong(fragment, "fragments are not permitted in the URL".to_owned());
    }
    if !query.is_empty() {
        wrong(query, "query parameters are not permitted in the URL".to_owned());
    }
}

fn webhook_service(e: &mut Errors, service: &At<'_, '_>) {
    for field in ["name", "namespace"] {
        if service.get(field).is_empty() {
            e.required(&service.get(field), "");
        }
    }
    let port = service.get("port");
    let complaints = names::port_number(port.int().unwrap_or_default());
    if !complaints.is_empty() {
        e.invalid(&port, format!("port is not valid: {}", complaints.join(", ")));
    }
    let path = service.get("path");
    if matches!(path.str(), "" | "/") {
        return;
    }
    let Some(steps) = path.str().strip_prefix('/') else {
        e.invalid(&path, "must start with a '/'");
        return;
    };
    for (i, step) in steps.strip_suffix('/').unwrap_or(steps).split('/').enumerate() {
        if step.is_empty() {
            e.invalid(&path, format!("segment[{i}] may not be empty"));
            continue;
        }
        for complaint in names::dns_subdomain(step) {
            e.invalid(&path, format!("segment[{i}]: {complaint}"));
        }
    }
}

fn review_versions(e: &mut Errors, versions: &At<'_, '_>) {
    if versions.is_empty() {
        e.required(versions, format!("must specify one of {}", REVIEW_VERSIONS.join(", ")));
        return;
    }
    let mut seen = HashSet::new();
    for version in versions.items() {
        if seen.insert(version.str()) {
            e.complaints(&version, names::dns1035_label(version.str()));
        } else {
            e.invalid(&version, "duplicate version");
        }
    }
    if !versions.items().any(|v| REVIEW_VERSIONS.contains(&v.str())) {
        e.invalid(versions, format!("must include at least one of {}", REVIEW_VERSIONS.join(", ")));
    }
}

pub(super) fn rule(e: &mut Errors, rule: &At<'_, '_>) {
    let alone = |e: &mut Errors, list: &At<'_, '_>, what: &str| {
        if list.is_empty() {
            e.required(list, "");
        } else if list.len() > 1 && list.items().any(|item| item.str() == "*") {
            e.invalid(list, format!("if '*' is present, must not specify other {what}"));
        }
    };
    let operations = rule.get("operations");
    alone(e, &operations, "operations");
    for operation in operations.items() {
        e.set_one_of(&operation, &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"]);
    }
    alone(e, &rule.get("apiGroups"), "API groups");
    let versions = rule.get("apiVersions");
    alone(e, &versions, "API versions");
    for version in versions.items().filter(|v| v.is_empty()) {
        e.required(&version, "");
    }
    resources(e, &rule.get("resources"));
    e.set_one_of(&rule.get("scope"), &["*", "Cluster", "Namespaced"]);
}

fn resources(e: &mut Errors, list: &At<'_, '_>) {
    if list.is_empty() {
        e.required(list, "");
    }
    let (mut whole, mut parts) = (HashSet::new(), HashSet::new());
    for item in list.items() {
        if item.is_empty() {
            e.required(&item, "");
            continue;
        }
        let Some((resource, part)) = item.str().split_once('/') else { continue };
        if whole.contains(resource) {
            e.invalid(&item, format!("if '{resource}/*' is present, must not specify {}", item.str()));
        }
        if parts.contains(part) {
            e.invalid(&item, format!("if '*/{part}' is present, must not specify {}", item.str()));
        }
        if part == "*" {
            whole.insert(resource);
        }
        if resource == "*" {
            parts.insert(part);
        }
    }
    let has = |text: &str| list.items().any(|item| item.str() == text);
    if list.len() > 1 && has("*/*") {
        e.invalid(list, "if '*/*' is present, must not specify other resources");
    }
    let plain = list.items().filter(|item| !item.is_empty() && !item.str().contains('/')).last();
    if has("*") && plain.is_some_and(|item| item.str() != "*") {
        e.invalid(list, "if '*' is present, must not specify other resources without subresources");
    }
}

/// What an admission expression may speak of.
pub(super) fn known(params: bool, authorizer: bool, variables: bool) -> Vec<&'static str> {
    let mut known = vec!["object", "oldObject", "request", "namespaceObject"];
    known.extend(params.then_some("params"));
    known.extend(authorizer.then_some("authorizer"));
    known.extend(variables.then_some("variables"));
    known
}

pub(super) fn compiles(e: &mut Errors, expression: &At<'_, '_>, known: &[&str]) {
    if let Err(error) = cel::check_names(expression.str(), known) {
        e.invalid(expression, error.to_string());
    }
}

/// Required, and it compiles.
pub(super) fn expression(e: &mut Errors, at: &At<'_, '_>, known: &[&str], missing: &str) {
    if at.str().trim().is_empty() {
        e.required(at, missing);
    } else {
        compiles(e, at, known);
    }
}

pub(super) fn match_conditions(e: &mut Errors, list: &At<'_, '_>, params: bool) {
    if list.len() > MOST_CONDITIONS {
        e.too_many(list, list.len(), MOST_CONDITIONS);
    }
    let mut seen = HashSet::new();
    for condition in list.items() {
        expression(e, &condition.get("expression"), &known(params, true, false), "");
        let name = condition.get("name");
        if name.is_empty() {
            e.required(&name, "");
        } else {
            e.complaints(&name, names::label_key(name.str()));
            if !seen.insert(name.str()) {
                e.duplicate(&name);
            }
        }
    }
}
