//! Disruption budgets, priority classes, leases, runtime classes, admission and certificates.

use serde_json::Value;

use super::at::{At, Errors, same};
use super::meta::{conditions, label_selector};
use super::{resources, scheduling};
use crate::{cel, names};

pub(super) fn disruption_budget(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let (least, most) = (spec.get("minAvailable"), spec.get("maxUnavailable"));
    if least.is_set() && most.is_set() {
        e.invalid(&spec, "minAvailable and maxUnavailable cannot be both set");
    }
    for at in [&least, &most] {
        if at.is_set() {
            e.int_or_percent(at);
            e.at_most_100_percent(at);
        }
    }
    label_selector(e, &spec.get("selector"));
    e.optional_one_of(&spec.get("unhealthyPodEvictionPolicy"), &["AlwaysAllow", "IfHealthyBudget"]);
}

pub(super) fn disruption_budget_status(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    let status = object.get("status");
    conditions(e, &status.get("conditions"));
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        e.non_negative(&status.get(field));
    }
}

pub(super) fn priority_class(e: &mut Errors, object: &At<'_, '_>) {
    const HIGHEST: i64 = 1_000_000_000;
    let metadata = object.get("metadata");
    let (name, value) = (metadata.get("name"), object.get("value"));
    if name.str().starts_with("system-") {
        let known = [("system-cluster-critical", 2 * HIGHEST), ("system-node-critical", 2 * HIGHEST + 1000)];
        let error = match known.iter().find(|(n, _)| *n == name.str()) {
            None => Some(format!("{} is not a known system priority class", name.str())),
            Some((n, v)) if value.int() != Some(*v) => {
                Some(format!("value of {n} PriorityClass must be {v}"))
            }
            Some(_) if object.get("globalDefault").bool() => {
                Some(format!("globalDefault of {} PriorityClass must be false", name.str()))
            }
            Some(_) => None,
        };
        if let Some(error) = error {
            let detail = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {error}"
            );
            e.forbidden(&name, detail);
        }
    } else if value.int().is_some_and(|v| v > HIGHEST) {
        e.forbidden(&value, format!("maximum allowed value of a user defined priority is {HIGHEST}"));
    }
    let preemption = object.get("preemptionPolicy");
    if preemption.is_set() {
        e.one_of(&preemption, &["PreemptLowerPriority", "Never"]);
    }
}

pub(super) fn priority_class_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    if !same(object.get("value").value, &old["value"]) {
        e.forbidden(&object.get("value"), "may not be changed in an update.");
    }
    e.immutable(&object.get("preemptionPolicy"), &old["preemptionPolicy"]);
}

pub(super) fn lease(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    e.at_least(&spec.get("leaseDurationSeconds"), 1, "must be greater than 0");
    e.at_least(&spec.get("leaseTransitions"), 0, "must be greater than or equal to 0");
}

pub(super) fn lease_update(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    lease(e, object);
}

pub(super) fn runtime_class(e: &mut Errors, object: &At<'_, '_>) {
    e.name(&object.get("handler"), names::dns_label);
    let overhead = object.get("overhead");
    for (name, value) in overhead.get("podFixed").entries() {
        resources::amount(e, name, &value);
    }
    let scheduling = object.get("scheduling");
    super::meta::labels(e, &scheduling.get("nodeSelector"));
    scheduling::tolerations(e, &scheduling.get("tolerations"));
}

pub(super) fn runtime_class_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    e.immutable(&object.get("handler"), &old["handler"]);
}

pub(super) fn webhooks(e: &mut Errors, object: &At<'_, '_>) {
    let mut seen = super::parts::Seen::new();
    for hook in object.get("webhooks").items() {
        let name = hook.get("name");
        if name.is_empty() {
            e.required(&name, "");
        } else {
            let complaints = names::dns_subdomain(name.str());
            if !complaints.is_empty() {
                e.invalid(&name, complaints.join(","));
            } else if name.str().split('.').count() < 3 {
                e.invalid(&name, "should be a domain with at least three segments separated by dots");
            }
        }
        if !seen.insert(name.str()) {
            e.duplicate(&name);
        }
        for rule in hook.get("rules").items() {
            for field in ["apiGroups", "apiVersions", "resources", "operations"] {
                if rule.get(field).is_empty() {
                    e.required(&rule.get(field), "");
                }
            }
            let operations = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
            rule.get("operations").items().for_each(|o| e.optional_one_of(&o, &operations));
            e.optional_one_of(&rule.get("scope"), &["*", "Cluster", "Namespaced"]);
        }
        e.optional_one_of(&hook.get("failurePolicy"), &["Fail", "Ignore"]);
        e.optional_one_of(&hook.get("matchPolicy"), &["Equivalent", "Exact"]);
        let effects = hook.get("sideEffects");
        if effects.is_empty() {
            e.required(&effects, "must specify one of None, NoneOnDryRun");
        } else {
            e.optional_one_of(&effects, &["None", "NoneOnDryRun"]);
        }
        let timeout = hook.get("timeoutSeconds");
        if timeout.int().is_some_and(|t| !(1..=30).contains(&t)) {
            e.invalid(&timeout, "the timeout value must be between 1 and 30 seconds");
        }
        if hook.get("admissionReviewVersions").is_empty() {
            let detail = "must specify one of v1, v1beta1";
            e.required(&hook.get("admissionReviewVersions"), detail);
        }
        label_selector(e, &hook.get("namespaceSelector"));
        label_selector(e, &hook.get("objectSelector"));
        match_conditions(e, &hook.get("matchConditions"));
        let config = hook.get("clientConfig");
        if config.get("url").is_set() == config.get("service").is_set() {
            e.required(&config, "exactly one of url or service is required");
        }
        e.optional_one_of(&hook.get("reinvocationPolicy"), &["IfNeeded", "Never"]);
    }
}

fn match_conditions(e: &mut Errors, list: &At<'_, '_>) {
    if list.len() > 64 {
        e.too_many(list, list.len(), 64);
    }
    let mut seen = super::parts::Seen::new();
    for condition in list.items() {
        let (name, expression) = (condition.get("name"), condition.get("expression"));
        if name.is_empty() {
            e.required(&name, "");
        } else {
            e.complaints(&name, names::label_key(name.str()));
            if !seen.insert(name.str()) {
                e.duplicate(&name);
            }
        }
        expression_compiles(e, &expression);
    }
}

fn expression_compiles(e: &mut Errors, expression: &At<'_, '_>) {
    if expression.str().trim().is_empty() {
        e.required(expression, "");
    } else if let Err(error) = cel::check(expression.str()) {
        e.invalid(expression, error.to_string());
    }
}

pub(super) fn admission_policy(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    e.optional_one_of(&spec.get("failurePolicy"), &["Fail", "Ignore"]);
    let constraints = spec.get("matchConstraints");
    if !constraints.is_set() {
        e.required(&constraints, "");
    } else if constraints.get("resourceRules").is_empty() {
        e.required(&constraints.get("resourceRules"), "");
    }
    match_conditions(e, &spec.get("matchConditions"));
    for variable in spec.get("variables").items() {
        if variable.get("name").is_empty() {
            e.required(&variable.get("name"), "name is not specified");
        }
        expression_compiles(e, &variable.get("expression"));
    }
    if object.get("kind").str() == "MutatingAdmissionPolicy" {
        return;
    }
    let (validations, audits) = (spec.get("validations"), spec.get("auditAnnotations"));
    if validations.is_empty() && audits.is_empty() {
        e.required(&validations, "validations or auditAnnotations must contain at least one item");
        e.required(&audits, "validations or auditAnnotations must contain at least one item");
    }
    for validation in validations.items() {
        let expression = validation.get("expression");
        if expression.str().trim().is_empty() {
            e.required(&expression, "expression is not specified");
        } else {
            expression_compiles(e, &expression);
        }
        if !validation.get("messageExpression").is_empty() {
            expression_compiles(e, &validation.get("messageExpression"));
        }
    }
}

pub(super) fn admission_binding(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    e.name(&spec.get("policyName"), names::dns_subdomain);
    if object.get("kind").str() == "MutatingAdmissionPolicyBinding" {
        return;
    }
    let actions = spec.get("validationActions");
    if actions.is_empty() {
        e.required(&actions, "at least one validation action is required");
    }
    let mut seen = super::parts::Seen::new();
    for action in actions.items() {
        e.optional_one_of(&action, &["Audit", "Deny", "Warn"]);
        if !seen.insert(action.str()) {
            e.duplicate(&action);
        }
    }
}

pub(super) fn signing_request(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    if spec.get("usages").is_empty() {
        e.required(&spec.get("usages"), "");
    }
    let signer = spec.get("signerName");
    if signer.is_empty() {
        e.required(&signer, "");
    } else if !signer.str().contains('/') {
        e.invalid(&signer, "must be a fully qualified domain and path of the form 'example.com/signer-name'");
    }
    e.at_least(
        &spec.get("expirationSeconds"),
        600,
        "may not specify a duration less than 600 seconds (10 minutes)",
    );
}
