//! Containers of a pod.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors};
use super::parts::PROTOCOLS;
use super::resources;
use crate::names;

/// What a container can learn about its pod through its environment.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// The same through a volume.
pub(super) const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// What containers of one pod share.
pub(super) struct Context<'c, 'v> {
    pub volumes: &'c HashSet<&'v str>,
    pub grace: Option<i64>,
    pub restart_policy: &'v str,
    pub host_users: bool,
}

/// Names, image, ports, environment, mounts, resources, security: what all containers have.
pub(super) fn common(e: &mut Errors, container: &At<'_, '_>, context: &Context<'_, '_>) {
    e.name(&container.get("name"), names::dns_label);
    if container.get("image").is_empty() {
        e.required(&container.get("image"), "");
    }
    e.one_of(&container.get("terminationMessagePolicy"), &["File", "FallbackToLogsOnError"]);
    ports(e, &container.get("ports"));
    environment(e, container);
    mounts(e, container, context);
    e.one_of(&container.get("imagePullPolicy"), &["Always", "IfNotPresent", "Never"]);
    resources::requirements(e, &container.get("resources"));
    resize_policy(e, &container.get("resizePolicy"), context);
    security(e, &container.get("securityContext"), context.host_users);
}

/// Probes and lifecycle hooks: what containers that keep running have.
pub(super) fn running(e: &mut Errors, container: &At<'_, '_>, context: &Context<'_, '_>) {
    let lifecycle = container.get("lifecycle");
    for hook in ["postStart", "preStop"] {
        if lifecycle.get(hook).is_set() {
            handler(e, &lifecycle.get(hook), context.grace);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.get(name);
        if !probe.is_set() {
            continue;
        }
        handler(e, &probe, context.grace);
        for field in
            ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
        {
            e.non_negative(&probe.get(field));
        }
        let grace = probe.get("terminationGracePeriodSeconds");
        e.at_least(&grace, 1, "must be greater than 0");
        if name == "readinessProbe" {
            if grace.is_set() {
                e.invalid(&grace, "must not be set for readinessProbes");
            }
        } else if probe.get("successThreshold").int().is_some_and(|n| n != 1) {
            e.invalid(&probe.get("successThreshold"), "must be 1");
        }
    }
}

fn ports(e: &mut Errors, ports: &At<'_, '_>) {
    let mut names = HashSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if !name.is_empty() {
            let complaints = names::port_name(name.str());
            if !complaints.is_empty() {
                e.complaints(&name, complaints);
            } else if !names.insert(name.str()) {
                e.duplicate(&name);
            }
        }
        let number = port.get("containerPort");
        match number.int() {
            None | Some(0) => e.required(&number, ""),
            Some(_) => e.port(&number),
        }
        if port.get("hostPort").int().is_some_and(|n| n != 0) {
            e.port(&port.get("hostPort"));
        }
        e.one_of(&port.get("protocol"), &PROTOCOLS);
    }
}

/// Two containers cannot have the same port of the host.
pub(super) fn host_ports(e: &mut Errors, containers: &At<'_, '_>) {
    let mut taken = HashSet::new();
    for container in containers.items() {
        for port in container.get("ports").items() {
            let host = port.get("hostPort");
            let Some(number) = host.int().filter(|n| *n != 0) else { continue };
            let key = format!("{}/{}/{number}", port.get("protocol").str(), port.get("hostIP").str());
            if taken.contains(&key) {
                e.duplicate(&host.with(&Value::from(key)));
            } else {
                taken.insert(key);
            }
        }
    }
}

fn environment(e: &mut Errors, container: &At<'_, '_>) {
    for variable in container.get("env").items() {
        e.name(&variable.get("name"), names::env_var);
        let from = variable.get("valueFrom");
        if from.is_set() {
            value_from(e, &from, !variable.get("value").is_empty());
        }
    }
    let list = container.get("envFrom");
    for source in list.items() {
        let prefix = source.get("prefix");
        if !prefix.is_empty() {
            e.complaints(&prefix, names::env_var(prefix.str()));
        }
        let mut found = 0;
        for name in ["configMapRef", "secretRef"] {
            if source.get(name).is_set() {
                found += 1;
                let at = source.get(name);
                if at.get("name").is_empty() {
                    e.required(&at.get("name"), "");
                } else {
                    e.complaints(
                        &at.get("name"),
                        names::as_prefix(names::dns_subdomain, at.get("name").str()),
                    );
                }
            }
        }
        let blank = Value::from("");
        if found == 0 {
            e.invalid_value(&list, &blank, "must specify one of: `configMapRef` or `secretRef`");
        } else if found > 1 {
            e.invalid_value(&list, &blank, "may not have more than one field specified at a time");
        }
    }
}

fn value_from(e: &mut Errors, from: &At<'_, '_>, has_value: bool) {
    let mut found = 0;
    if from.get("fieldRef").is_set() {
        found += 1;
        field_selector(e, &from.get("fieldRef"), &ENV_FIELDS);
    }
    if from.get("resourceFieldRef").is_set() {
        found += 1;
        resource_selector(e, &from.get("resourceFieldRef"), false);
    }
    for name in ["configMapKeyRef", "secretKeyRef"] {
        let reference = from.get(name);
        if reference.is_set() {
            found += 1;
            e.complaints(&reference.get("name"), names::dns_subdomain(reference.get("name").str()));
            e.name(&reference.get("key"), names::config_key);
        }
    }
    if from.get("fileKeyRef").is_set() {
        found += 1;
    }
    let blank = Value::from("");
    if found == 0 {
        let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        e.invalid_value(from, &blank, detail);
    } else if has_value {
        e.invalid_value(from, &blank, "may not be specified when `value` is not empty");
    } else if found > 1 {
        e.invalid_value(from, &blank, "may not have more than one field specified at a time");
    }
}

pub(super) fn field_selector(e: &mut Errors, reference: &At<'_, '_>, allowed: &[&str]) {
    let (version, path) = (reference.get("apiVersion"), reference.get("fieldPath"));
    if version.is_empty() {
        e.required(&version, "");
        return;
    }
    if path.is_empty() {
        e.required(&path, "");
        return;
    }
    let text = path.str();
    if let Some((field, key)) = text.strip_suffix("']").and_then(|t| t.split_once("['")) {
        match field {
            "metadata.annotations" => e.complaints(
                &reference.with(&Value::from(key.to_lowercase())),
                names::label_key(&key.to_lowercase()),
            ),
            "metadata.labels" => e.complaints(&reference.with(&Value::from(key)), names::label_key(key)),
            _ => e.invalid_value(
                &path,
                path.value,
                format!("error converting fieldPath: field label not supported: {text}"),
            ),
        }
        return;
    }
    let known = ENV_FIELDS.contains(&text) || VOLUME_FIELDS.contains(&text);
    let convertible =
        known || matches!(text, "spec.restartPolicy" | "spec.schedulerName" | "status.phase" | "spec.host");
    if !convertible {
        e.invalid(&path, format!("error converting fieldPath: field label not supported: {text}"));
    } else if !allowed.contains(&text) {
        e.not_supported(&path, allowed);
    }
}

pub(super) fn resource_selector(e: &mut Errors, reference: &At<'_, '_>, volume: bool) {
    let (container, resource) = (reference.get("containerName"), reference.get("resource"));
    let huge = ["limits.hugepages-", "requests.hugepages-"];
    if volume && container.is_empty() {
        e.required(&container, "");
    } else if resource.is_empty() {
        e.required(&resource, "");
    } else if !RESOURCE_FIELDS.contains(&resource.str())
        && !huge.iter().any(|h| resource.str().starts_with(h))
    {
        e.not_supported(&resource, &RESOURCE_FIELDS);
    }
}

fn mounts(e: &mut Errors, container: &At<'_, '_>, context: &Context<'_, '_>) {
    let (list, devices) = (container.get("volumeMounts"), container.get("volumeDevices"));
    let privileged = container.get("securityContext").get("privileged").bool();
    let of_devices = |field: &str| -> HashSet<&str> {
        devices
            .value
            .as_array()
            .into_iter()
            .flatten()
            .map(|d| d[field].as_str().unwrap_or_default())
            .collect()
    };
    let (device_names, device_paths) = (of_devices("name"), of_devices("devicePath"));
    let mut paths = HashSet::new();
    for mount in list.items() {
        let (name, path) = (mount.get("name"), mount.get("mountPath"));
        if name.is_empty() {
            e.required(&name, "");
        }
        if !context.volumes.contains(name.str()) {
            e.not_found(&name.with(&Value::from(name.str())));
        }
        if path.is_empty() {
            e.required(&path, "");
        }
        if !paths.insert(path.str()) {
            e.invalid(&path, "must be unique");
        }
        if device_names.contains(name.str()) {
            e.invalid(&name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(path.str()) {
            e.invalid(&path, "must not already exist as a path in volumeDevices");
        }
        // Upstream reports these at the list.
        let field = |name: &'static str| list.get(name).with(mount.value.get(name).unwrap_or(&Value::Null));
        if field("subPath").is_set() {
            e.descending_path(&field("subPath"));
        }
        if !mount.get("subPathExpr").is_empty() {
            if !mount.get("subPath").is_empty() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                e.invalid(&mount.get("subPathExpr"), detail);
            }
            e.descending_path(&field("subPathExpr"));
        }
        let propagation = field("mountPropagation");
        e.optional_one_of(&propagation, &["Bidirectional", "HostToContainer", "None"]);
        if propagation.str() == "Bidirectional" && !privileged {
            let detail = "Bidirectional mount propagation is available only to privileged containers";
            e.forbidden(&propagation, detail);
        }
        let recursive = field("recursiveReadOnly");
        e.optional_one_of(&recursive, &["Disabled", "Enabled", "IfPossible"]);
        if matches!(recursive.str(), "Enabled" | "IfPossible") && !mount.get("readOnly").bool() {
            e.forbidden(&recursive, "may only be specified when readOnly is true");
        }
    }
    for device in devices.items() {
        for field in ["name", "devicePath"] {
            if device.get(field).is_empty() {
                e.required(&device.get(field), "");
            }
        }
        let name = device.get("name");
        if !name.is_empty() && !context.volumes.contains(name.str()) {
            e.not_found(&name);
        }
    }
}

fn resize_policy(e: &mut Errors, policies: &At<'_, '_>, context: &Context<'_, '_>) {
    let mut seen = HashSet::new();
    for policy in policies.items() {
        let resource = policy.get("resourceName");
        if !seen.insert(resource.str()) {
            e.duplicate(&policy.with(resource.value));
        }
        e.one_of(&policies.with(resource.value), &["cpu", "memory"]);
        let restart = policy.get("restartPolicy");
        e.one_of(&policies.with(restart.value), &["NotRequired", "RestartContainer"]);
        if context.restart_policy == "Never" && restart.str() != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            e.invalid_value(policies, restart.value, detail);
        }
    }
}

/// One of `exec`, `httpGet`, `tcpSocket`, `grpc`, `sleep`.
fn handler(e: &mut Errors, handler: &At<'_, '_>, grace: Option<i64>) {
    let mut found = 0;
    for name in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let action = handler.get(name);
        if !action.is_set() {
            continue;
        }
        found += 1;
        if found > 1 {
            e.forbidden(&action, "may not specify more than 1 handler type");
            continue;
        }
        match name {
            "exec" => {
                if action.get("command").is_empty() {
                    e.required(&action.get("command"), "");
                }
            }
            "httpGet" => {
                if action.get("path").is_empty() {
                    e.required(&action.get("path"), "");
                }
                e.port_or_name(&action.get("port"));
                if !matches!(action.get("scheme").str(), "HTTP" | "HTTPS") {
                    e.not_supported(&action.get("scheme"), &["HTTP", "HTTPS"]);
                }
                let headers = action.get("httpHeaders");
                for header in headers.items() {
                    let name = header.get("name");
                    e.complaints(&headers.with(name.value), names::http_header(name.str()));
                }
            }
            "sleep" => {
                let seconds = action.get("seconds");
                let most = grace.unwrap_or_default();
                if seconds.int().is_none_or(|s| s < 0 || s > most) {
                    let detail =
                        format!("must be non-negative and less than terminationGracePeriodSeconds ({most})");
                    e.invalid_value(&action, &Value::from(seconds.int().unwrap_or_default()), detail);
                }
            }
            _ => e.port_or_name(&action.get("port")),
        }
    }
    if found == 0 {
        e.required(handler, "must specify a handler type");
    }
}

pub(super) fn security(e: &mut Errors, context: &At<'_, '_>, host_users: bool) {
    if !context.is_set() {
        return;
    }
    e.user_id(&context.get("runAsUser"));
    e.user_id(&context.get("runAsGroup"));
    let proc_mount = context.get("procMount");
    e.optional_one_of(&proc_mount, &["Default", "Unmasked"]);
    if host_users && proc_mount.str() == "Unmasked" {
        e.invalid(&proc_mount, "`hostUsers` must be false to use `Unmasked`");
    }
    seccomp(e, &context.get("seccompProfile"));
    app_armor(e, &context.get("appArmorProfile"));
    if context.get("allowPrivilegeEscalation").value == &Value::Bool(false) {
        if context.get("privileged").bool() {
            e.invalid(context, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true");
        }
        let capabilities = context.get("capabilities");
        if capabilities.get("add").items().any(|c| c.str() == "CAP_SYS_ADMIN") {
            let detail =
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            e.invalid(context, detail);
        }
    }
}

pub(super) fn seccomp(e: &mut Errors, profile: &At<'_, '_>) {
    if !profile.is_set() {
        return;
    }
    let (kind, local) = (profile.get("type"), profile.get("localhostProfile"));
    if kind.is_empty() {
        e.required(&kind, "type is required when seccompProfile is set");
    } else {
        e.optional_one_of(&kind, &["Localhost", "RuntimeDefault", "Unconfined"]);
    }
    if kind.str() == "Localhost" {
        if local.is_set() {
            e.descending_path(&local);
        } else {
            e.required(&local, "must be set when seccomp type is Localhost");
        }
    } else if local.is_set() {
        e.invalid_value(&local, profile.value, "can only be set when seccomp type is Localhost");
    }
}

/// As long as a path can be.
const LONGEST_PROFILE: usize = 4095;

pub(super) fn app_armor(e: &mut Errors, profile: &At<'_, '_>) {
    if !profile.is_set() {
        return;
    }
    let (kind, local) = (profile.get("type"), profile.get("localhostProfile"));
    if kind.is_empty() {
        e.required(&kind, "type is required when appArmorProfile is set");
    } else {
        e.optional_one_of(&kind, &["Localhost", "RuntimeDefault", "Unconfined"]);
    }
    match kind.str() {
        "Localhost" => {
            if local.is_empty() {
                e.required(&local, "must be set when AppArmor type is Localhost");
            } else if local.str().trim() != local.str() {
                e.invalid(&local, "must not be padded with whitespace");
            }
            if local.str().len() > LONGEST_PROFILE {
                e.too_long(&local, LONGEST_PROFILE);
            }
        }
        "RuntimeDefault" | "Unconfined" if local.is_set() => {
            e.invalid(&local, "can only be set when AppArmor type is Localhost");
        }
        _ => {}
    }
}
