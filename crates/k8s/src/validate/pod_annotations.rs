//! Annotations of pods that Kubernetes itself reads.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors};
use super::pod::CONTAINERS;

const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const MIRROR: &str = "kubernetes.io/config.mirror";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";

/// What they say must mean something.
pub(super) fn of_pod(e: &mut Errors, annotations: &At<'_, '_>, spec: &At<'_, '_>) {
    let containers = CONTAINERS.iter().flat_map(|list| spec.value[*list].as_array()).flatten();
    let containers: HashSet<&str> = containers.filter_map(|container| container["name"].as_str()).collect();
    for (key, at) in annotations.entries() {
        match key {
            MIRROR if spec.get("nodeName").is_empty() => {
                e.invalid(&at, "must set spec.nodeName if mirror pod annotation is set");
            }
            DELETION_COST if !is_cost(at.str()) => e.invalid(&at, "must be a 32bit integer"),
            SECCOMP_OF_POD => seccomp(e, &annotations.get(key)),
            _ if key.starts_with(SECCOMP) => seccomp(e, &annotations.get(key)),
            _ => {
                if let Some(container) = key.strip_prefix(APP_ARMOR) {
                    app_armor(e, &at, container, &containers);
                }
            }
        }
    }
}

/// A number as it is written, without a plus or zeros before it.
fn is_cost(text: &str) -> bool {
    text.parse::<i32>().is_ok() && !text.starts_with('+') && (text == "0" || !text.starts_with('0'))
}

fn seccomp(e: &mut Errors, at: &At<'_, '_>) {
    match at.str() {
        "runtime/default" | "docker/default" | "unconfined" => {}
        text => match text.strip_prefix("localhost/") {
            Some(path) => e.descending_path(&at.with(&Value::from(path))),
            None => e.invalid(at, "must be a valid seccomp profile"),
        },
    }
}

fn app_armor(e: &mut Errors, at: &At<'_, '_>, container: &str, containers: &HashSet<&str>) {
    if !containers.contains(container) {
        e.invalid_value(at, &Value::from(container), "container not found");
    }
    let profile = at.str();
    if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with("localhost/") {
        e.invalid(at, format!("invalid AppArmor profile name: {profile:?}"));
    }
}

/// A new pod's annotations do not contradict its fields.
pub(super) fn match_fields(e: &mut Errors, annotations: &At<'_, '_>, spec: &At<'_, '_>) {
    let said = |key: &str| annotations.value.get(key).and_then(Value::as_str);
    let context = spec.get("securityContext");
    if let Some(text) = said(SECCOMP_OF_POD) {
        let field = context.get("seccompProfile");
        profiles_match(e, text, field.value, &field, "seccomp");
    }
    for list in CONTAINERS {
        for container in spec.get(list).items() {
            let (own, name) = (container.get("securityContext"), container.get("name"));
            if let Some(text) = said(&format!("{SECCOMP}{}", name.str())) {
                let field = own.get("seccompProfile");
                profiles_match(e, text, field.value, &field, "seccomp");
            }
            let windows = spec.get("os").get("name").str() == "windows";
            if let Some(text) = said(&format!("{APP_ARMOR}{}", name.str())).filter(|_| !windows) {
                let field = own.get("appArmorProfile");
                let of_pod = context.get("appArmorProfile");
                let profile = if field.is_set() { field.value } else { of_pod.value };
                profiles_match(e, text, profile, &field, "apparmor");
            }
        }
    }
}

fn profiles_match(e: &mut Errors, text: &str, profile: &Value, at: &At<'_, '_>, what: &str) {
    let matches = match profile["type"].as_str() {
        Some("Unconfined") => text == "unconfined",
        Some("RuntimeDefault") => {
            text == "runtime/default" || (what == "seccomp" && text == "docker/default")
        }
        Some("Localhost") => text.starts_with("localhost/"),
        _ => return,
    };
    if !matches {
        e.forbidden(&at.get("type"), format!("{what} type in annotation and field must match"));
    } else if let Some(path) = text.strip_prefix("localhost/")
        && profile["localhostProfile"] != path
    {
        let detail = format!("{what} profile in annotation and field must match");
        e.forbidden(&at.get("localhostProfile"), detail);
    }
}

/// What they say of a pod that is there stays.
pub(super) fn update(e: &mut Errors, annotations: &At<'_, '_>, old: &Value, spec: &At<'_, '_>) {
    let stays = |key: &str| match key {
        MIRROR => Some("mirror pod annotation"),
        _ => key.starts_with(APP_ARMOR).then_some("AppArmor annotations"),
    };
    for (key, before) in old.as_object().into_iter().flatten() {
        if let Some(what) = stays(key)
            && annotations.value.get(key) != Some(before)
        {
            e.forbidden(&annotations.key(key), format!("may not remove or update {what}"));
        }
    }
    for (key, at) in annotations.entries() {
        if let Some(what) = stays(key)
            && old.get(key).is_none()
        {
            e.forbidden(&at, format!("may not add {what}"));
        }
    }
    of_pod(e, annotations, spec);
}
