//! Roles and bindings.

use serde_json::Value;

use super::at::{At, Errors, same};
use super::meta::label_selector;
use crate::names;

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn role(e: &mut Errors, object: &At<'_, '_>) {
    object.get("rules").items().for_each(|rule| policy_rule(e, &rule, true));
}

pub(super) fn cluster_role(e: &mut Errors, object: &At<'_, '_>) {
    object.get("rules").items().for_each(|rule| policy_rule(e, &rule, false));
    let aggregation = object.get("aggregationRule");
    if aggregation.is_set() {
        let selectors = aggregation.get("clusterRoleSelectors");
        if selectors.is_empty() {
            e.required(&selectors, "at least one clusterRoleSelector required if aggregationRule is non-nil");
        }
        selectors.items().for_each(|selector| label_selector(e, &selector));
    }
}

fn policy_rule(e: &mut Errors, rule: &At<'_, '_>, namespaced: bool) {
    if rule.get("verbs").is_empty() {
        e.required(&rule.get("verbs"), "verbs must contain at least one value");
    }
    let urls = rule.get("nonResourceURLs");
    if !urls.is_empty() {
        if namespaced {
            e.invalid(&urls, "namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|f| !rule.get(f).is_empty()) {
            e.invalid(&urls, "rules cannot apply to both regular resources and non-resource URLs");
        }
        return;
    }
    if rule.get("apiGroups").is_empty() {
        e.required(&rule.get("apiGroups"), "resource rules must supply at least one api group");
    }
    if rule.get("resources").is_empty() {
        e.required(&rule.get("resources"), "resource rules must supply at least one resource");
    }
}

pub(super) fn role_binding(e: &mut Errors, object: &At<'_, '_>) {
    binding(e, object, true);
}

pub(super) fn cluster_role_binding(e: &mut Errors, object: &At<'_, '_>) {
    binding(e, object, false);
}

fn binding(e: &mut Errors, object: &At<'_, '_>, namespaced: bool) {
    let reference = object.get("roleRef");
    if reference.get("apiGroup").str() != GROUP {
        e.not_supported(&reference.get("apiGroup"), &[GROUP]);
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    if !kinds.contains(&reference.get("kind").str()) {
        e.not_supported(&reference.get("kind"), kinds);
    }
    e.name(&reference.get("name"), names::path_segment);
    for subject in object.get("subjects").items() {
        let (name, group, kind) = (subject.get("name"), subject.get("apiGroup"), subject.get("kind"));
        if name.is_empty() {
            e.required(&name, "");
        }
        match kind.str() {
            "ServiceAccount" => {
                if !name.is_empty() {
                    e.complaints(&name, names::dns_subdomain(name.str()));
                }
                if !group.is_empty() {
                    e.not_supported(&group, &[""]);
                }
                if !namespaced && subject.get("namespace").is_empty() {
                    e.required(&subject.get("namespace"), "");
                }
            }
            "User" | "Group" => {
                if group.str() != GROUP {
                    e.not_supported(&group, &[GROUP]);
                }
            }
            _ => e.not_supported(&kind, &["ServiceAccount", "User", "Group"]),
        }
    }
}

pub(super) fn role_ref_immutable(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    binding(e, object, object.get("kind").str() == "RoleBinding");
    if !same(object.get("roleRef").value, &old["roleRef"]) {
        e.invalid(&object.get("roleRef"), "cannot change roleRef");
    }
}
