//! Admission policies and their bindings.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors, same};
use super::meta::label_selector;
use super::webhooks::{compiles, expression, known, match_conditions, rule};
use crate::names;

const MOST_AUDIT_ANNOTATIONS: usize = 20;
const LONGEST_AUDIT_EXPRESSION: usize = 5 * 1024;

/// The parts that policies of both kinds share: whether they have parameters is the answer.
fn policy(e: &mut Errors, spec: &At<'_, '_>, old: Option<&Value>) -> bool {
    e.set_one_of(&spec.get("failurePolicy"), &["Fail", "Ignore"]);
    let kind = spec.get("paramKind");
    if kind.is_set() {
        param_kind(e, &kind);
    }
    let constraints = spec.get("matchConstraints");
    if constraints.is_set() {
        match_resources(e, &constraints);
        if constraints.get("resourceRules").is_empty() {
            e.required(&constraints.get("resourceRules"), "");
        }
    } else {
        e.required(&constraints, "");
    }
    let unchanged = old.is_some_and(|old| {
        ["paramKind", "matchConditions"].iter().all(|field| same(spec.get(field).value, &old["spec"][field]))
    });
    if !unchanged {
        match_conditions(e, &spec.get("matchConditions"), kind.is_set());
    }
    for variable in spec.get("variables").items() {
        let name = variable.get("name");
        if name.str().trim().is_empty() {
            e.required(&name, "name is not specified");
        } else if !is_identifier(name.str()) {
            e.invalid(&name, "must be a valid CEL identifier");
        }
        let known = known(kind.is_set(), true, true);
        expression(e, &variable.get("expression"), &known, "expression is not specified");
    }
    kind.is_set()
}

fn is_identifier(name: &str) -> bool {
    const RESERVED: &[&str] = &[
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    let fits = |c: char| c == '_' || c.is_ascii_alphanumeric();
    name.chars().all(fits) && !name.starts_with(|c: char| c.is_ascii_digit()) && !RESERVED.contains(&name)
}

fn param_kind(e: &mut Errors, kind: &At<'_, '_>) {
    let version = kind.get("apiVersion");
    let parts: Vec<&str> = version.str().split('/').collect();
    let mut wrong = |value: &str, complaints: Vec<String>| {
        if !complaints.is_empty() {
            e.invalid_value(&version, &Value::from(value), complaints.join(","));
        }
    };
    match parts[..] {
        [""] => e.required(&version, ""),
        ["", ""] | [_, ""] => wrong(version.str(), vec!["version must be specified".to_owned()]),
        [version] => wrong(version, names::dns1035_label(version)),
        [group, version] => {
            if !group.is_empty() {
                wrong(group, names::dns_subdomain(group));
            }
            wrong(version, names::dns1035_label(version));
        }
        _ => wrong(version.str(), vec![format!("unexpected GroupVersion string: {}", version.str())]),
    }
    let name = kind.get("kind");
    let complaints = names::dns1035_label(&name.str().to_lowercase());
    if name.is_empty() {
        e.required(&name, "");
    } else if !complaints.is_empty() {
        let detail = format!("may have mixed case, but should otherwise match: {}", complaints.join(","));
        e.invalid(&name, detail);
    }
}

fn match_resources(e: &mut Errors, resources: &At<'_, '_>) {
    e.set_one_of(&resources.get("matchPolicy"), &["Equivalent", "Exact"]);
    label_selector(e, &resources.get("namespaceSelector"));
    label_selector(e, &resources.get("objectSelector"));
    for list in ["resourceRules", "excludeResourceRules"] {
        for each in resources.get(list).items() {
            let mut seen = HashSet::new();
            for name in each.get("resourceNames").items() {
                e.complaints(&name, names::path_segment(name.str()));
                if !seen.insert(name.str()) {
                    e.duplicate(&name);
                }
            }
            rule(e, &each);
        }
    }
}

/// Only what writes an object can be mutated.
fn mutable_operations(e: &mut Errors, resources: &At<'_, '_>) {
    let rules = resources.get("resourceRules");
    for operation in
        rules.value.as_array().into_iter().flatten().flat_map(|rule| rule["operations"].as_array())
    {
        for operation in operation {
            // Upstream reports at the list.
            e.set_one_of(&rules.get("operations").with(operation), &["*", "CONNECT", "CREATE", "UPDATE"]);
        }
    }
}

pub(super) fn validating_policy(e: &mut Errors, object: &At<'_, '_>) {
    checked_validating_policy(e, object, None);
}

pub(super) fn validating_policy_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    checked_validating_policy(e, object, Some(old));
}

fn checked_validating_policy(e: &mut Errors, object: &At<'_, '_>, old: Option<&Value>) {
    let spec = object.get("spec");
    let params = policy(e, &spec, old);
    let variables = !spec.get("variables").is_empty();
    let (validations, audits) = (spec.get("validations"), spec.get("auditAnnotations"));
    if validations.is_empty() && audits.is_empty() {
        e.required(&validations, "validations or auditAnnotations must contain at least one item");
        e.required(&audits, "validations or auditAnnotations must contain at least one item");
        return;
    }
    for each in validations.items() {
        validation(e, &each, params, variables);
    }
    if audits.len() > MOST_AUDIT_ANNOTATIONS {
        e.invalid(&audits, format!("must not have more than {MOST_AUDIT_ANNOTATIONS} auditAnnotations"));
    }
    let mut seen = HashSet::new();
    for audit in audits.items() {
        audit_annotation(e, object, &audit, &known(params, true, variables));
        if !seen.insert(audit.get("key").str()) {
            e.duplicate(&audit.get("key"));
        }
    }
}

fn validation(e: &mut Errors, each: &At<'_, '_>, params: bool, variables: bool) {
    let known_here = known(params, true, variables);
    expression(e, &each.get("expression"), &known_here, "expression is not specified");
    let (message, of_message) = (each.get("message"), each.get("messageExpression"));
    if !of_message.is_empty() {
        match of_message.str().trim() {
            "" => e.invalid(&of_message, "must be non-empty if specified"),
            _ => compiles(e, &of_message, &known(params, false, variables)),
        }
    }
    if !message.is_empty() {
        match message.str().trim() {
            "" => e.invalid(&message, "must be non-empty if specified"),
            text if text.contains(['\n', '\r']) => e.invalid(&message, "must not contain line breaks"),
            _ => {}
        }
    }
    e.set_one_of(&each.get("reason"), &["Forbidden", "Invalid", "RequestEntityTooLarge"]);
}

fn audit_annotation(e: &mut Errors, object: &At<'_, '_>, audit: &At<'_, '_>, known: &[&str]) {
    let (metadata, key) = (object.get("metadata"), audit.get("key"));
    match metadata.get("name").str() {
        "" => e.invalid(&key, "requires metadata.name be non-empty"),
        name => {
            let whole = Value::from(format!("{name}/{}", key.str()));
            e.complaints(&key.with(&whole), names::label_key(whole.as_str().unwrap_or_default()));
        }
    }
    let value = audit.get("valueExpression");
    match value.str().trim() {
        "" => e.required(&value, "valueExpression is not specified"),
        text if text.len() > LONGEST_AUDIT_EXPRESSION => {
            e.required(&value, format!("must not exceed {LONGEST_AUDIT_EXPRESSION} bytes in length"));
        }
        _ => compiles(e, &value, known),
    }
}

pub(super) fn mutating_policy(e: &mut Errors, object: &At<'_, '_>) {
    checked_mutating_policy(e, object, None);
}

pub(super) fn mutating_policy_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    checked_mutating_policy(e, object, Some(old));
}

fn checked_mutating_policy(e: &mut Errors, object: &At<'_, '_>, old: Option<&Value>) {
    let spec = object.get("spec");
    let params = policy(e, &spec, old);
    mutable_operations(e, &spec.get("matchConstraints"));
    let mutations = spec.get("mutations");
    if mutations.is_empty() {
        e.required(&mutations, "mutations must contain at least one item");
    }
    for each in mutations.items() {
        mutation(e, &each, &known(params, true, !spec.get("variables").is_empty()));
    }
    e.one_of(&spec.get("reinvocationPolicy"), &["IfNeeded", "Never"]);
}

fn mutation(e: &mut Errors, each: &At<'_, '_>, known: &[&str]) {
    let kind = each.get("patchType");
    let (wanted, other) = match kind.str() {
        "JSONPatch" => ("jsonPatch", "applyConfiguration"),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch"),
        _ => return e.one_of(&kind, &["ApplyConfiguration", "JSONPatch"]),
    };
    let (wanted, other_at) = (each.get(wanted), each.get(other));
    if wanted.is_set() {
        expression(e, &wanted.get("expression"), known, "");
    } else {
        e.required(&wanted, format!("must be specified when patchType is {}", kind.str()));
    }
    if other_at.is_set() {
        let detail = format!("must not be specified when patchType is {}", kind.str());
        e.invalid_value(&other_at, &Value::from(format!("{{{other}}}")), detail);
    }
}

fn binding(e: &mut Errors, spec: &At<'_, '_>) {
    e.name(&spec.get("policyName"), names::dns_subdomain);
    let reference = spec.get("paramRef");
    if reference.is_set() {
        param_ref(e, &reference);
    }
    let resources = spec.get("matchResources");
    if resources.is_set() {
        match_resources(e, &resources);
    }
}

fn param_ref(e: &mut Errors, reference: &At<'_, '_>) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let (name, selector) = (reference.get("name"), reference.get("selector"));
    let both = !name.is_empty() && selector.is_set();
    if !name.is_empty() {
        e.complaints(&name, names::path_segment(name.str()));
    }
    label_selector(e, &selector);
    if both {
        e.forbidden(&name, EXCLUSIVE);
        e.forbidden(&selector, EXCLUSIVE);
    }
    if name.is_empty() && !selector.is_set() {
        e.required(reference, "one of name or selector must be specified");
    }
    e.one_of(&reference.get("parameterNotFoundAction"), &["Deny", "Allow"]);
}

pub(super) fn validating_binding(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    binding(e, &spec);
    let actions = spec.get("validationActions");
    if actions.is_empty() {
        e.required(&actions, "at least one validation action is required");
    }
    let mut seen = HashSet::new();
    for action in actions.items() {
        e.set_one_of(&action, &["Audit", "Deny", "Warn"]);
        if !seen.insert(action.str()) {
            e.duplicate(&action);
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let detail = "must not contain both Deny and Warn (repeating the same validation failure information in the \
                      API response and headers serves no purpose)";
        e.invalid(&actions, detail);
    }
}

pub(super) fn mutating_binding(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    binding(e, &spec);
    mutable_operations(e, &spec.get("matchResources"));
}
