//! What a pod may ask for depends on the system that it is for, and on whether its users are those of the node.

use serde_json::Value;

use super::at::{At, Errors};
use super::pod::CONTAINERS;

/// What means nothing on Windows in the security context of a pod.
const NOT_IN_PODS_ON_WINDOWS: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
    "sysctls",
];
/// What means nothing on Windows in the security context of a container.
const NOT_IN_CONTAINERS_ON_WINDOWS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

pub(super) fn of_pod(e: &mut Errors, spec: &At<'_, '_>) {
    own_users(e, spec);
    let os = spec.get("os");
    match os.get("name").str() {
        "linux" => on_linux(e, spec),
        "windows" => on_windows(e, spec),
        _ if os.is_set() => e.one_of(&os.with(os.get("name").value), &["linux", "windows"]),
        _ => {}
    }
}

/// Users of its own and parts of the node do not go together.
fn own_users(e: &mut Errors, spec: &At<'_, '_>) {
    if spec.get("hostUsers").value != &Value::Bool(false) {
        return;
    }
    // Upstream names two of them in its own way.
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec.get(field).bool() {
            e.forbidden(&spec.get(shown), "when `hostUsers` is false");
        }
    }
    for list in CONTAINERS {
        for container in spec.get(list).items() {
            if !container.get("volumeDevices").is_empty() {
                e.forbidden(&container.get("volumeDevices"), "when `hostUsers` is false");
            }
        }
    }
}

fn on_linux(e: &mut Errors, spec: &At<'_, '_>) {
    each_context(spec, |context, _| {
        let options = context.get("windowsOptions");
        if options.is_set() {
            e.forbidden(&options, "windows options cannot be set for a linux pod");
        }
    });
}

fn on_windows(e: &mut Errors, spec: &At<'_, '_>) {
    let detail = "cannot be set for a windows pod";
    for field in ["hostUsers", "shareProcessNamespace"] {
        if spec.get(field).is_set() {
            e.forbidden(&spec.get(field), detail);
        }
    }
    for field in ["hostPID", "hostIPC"] {
        if spec.get(field).bool() {
            e.forbidden(&spec.get(field), detail);
        }
    }
    each_context(spec, |context, is_pod| {
        let fields = if is_pod { &NOT_IN_PODS_ON_WINDOWS[..] } else { &NOT_IN_CONTAINERS_ON_WINDOWS[..] };
        for field in fields {
            let at = context.get(field);
            // No sysctls are as good as none said.
            if at.is_set() && (*field != "sysctls" || !at.is_empty()) {
                e.forbidden(&at, detail);
            }
        }
    });
    if spec.get("resources").is_set() {
        e.forbidden(&spec.get("resources"), "may not be set for a windows pod");
    }
}

/// Calls for the security context of the pod, and for those of its containers.
fn each_context(spec: &At<'_, '_>, mut look: impl FnMut(&At<'_, '_>, bool)) {
    look(&spec.get("securityContext"), true);
    for list in CONTAINERS {
        spec.get(list).items().for_each(|container| look(&container.get("securityContext"), false));
    }
}
