//! What a pod gets on its way in: an account with its token, a priority, tolerations, a runtime class, limits.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Operation, limits};
use crate::auth::node::{self, MIRROR};
use crate::http::status::Result;
use crate::registry::resource::Resource;
use crate::registry::update::Part;
use crate::registry::write;
use crate::server::Call;

const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Upstream's lifetime for tokens in pods: an hour and a little, so that it can be recognized.
const TOKEN_SECONDS: i64 = 3607;

pub async fn admit(
    call: &mut Call,
    resource: &Resource,
    operation: Operation<'_>,
    pod: &mut Value,
    old: Option<&Value>,
) -> Result<()> {
    let name = shown_name(pod);
    if let Some(node) = node::node_name(&call.user).map(str::to_owned) {
        restrict_node(resource, operation, pod, old, &node, &name)?;
    }
    if operation == Operation::Update(Part::Main) {
        tolerations(pod);
        keep_priority(pod, old);
    }
    if operation != Operation::Create {
        return Ok(());
    }
    let mirror = pod.pointer("/metadata/annotations").is_some_and(|a| a.get(MIRROR).is_some());
    if !mirror {
        limits::admit(call, resource, pod).await?;
        account(call, resource, pod, &name).await?;
    }
    tolerations(pod);
    priority(call, resource, pod, &name).await?;
    runtime_class(call, resource, pod, &name).await
}

/// What was found out when the pod was made is not asked of who changes it.
fn keep_priority(pod: &mut Value, old: Option<&Value>) {
    let Some((spec, old)) = pod["spec"].as_object_mut().zip(old.and_then(|old| old["spec"].as_object()))
    else {
        return;
    };
    for field in ["priority", "preemptionPolicy"] {
        if let (None | Some(Value::Null), Some(value)) = (spec.get(field), old.get(field)) {
            spec.insert(field.to_owned(), value.clone());
        }
    }
}

fn shown_name(pod: &Value) -> String {
    match write::name_of(pod) {
        "" => write::text(pod, "/metadata/generateName").to_owned(),
        name => name.to_owned(),
    }
}

/// A node writes only its own pods, and creates only mirrors of what it runs anyway.
fn restrict_node(
    resource: &Resource,
    operation: Operation<'_>,
    pod: &Value,
    old: Option<&Value>,
    node: &str,
    name: &str,
) -> Result<()> {
    let labels = |pod: Option<&Value>| {
        let labels = pod.and_then(|pod| pod.pointer("/metadata/labels")).and_then(Value::as_object);
        labels.filter(|labels| !labels.is_empty()).cloned()
    };
    let own = write::text(pod, "/spec/nodeName") == node;
    match operation {
        Operation::Create => {
            let mirror = pod.pointer("/metadata/annotations").is_some_and(|a| a.get(MIRROR).is_some());
            if !mirror {
                return Err(resource.forbidden(name, format!("node \"{node}\" can only create mirror pods")));
            }
            if !own {
                let why = format!("node \"{node}\" can only create pods with spec.nodeName set to itself");
                return Err(resource.forbidden(name, why));
            }
            // What a pod refers to its node may read, so a node must not make that up.
            let uses = |plural: &&str| !node::references(pod, plural).is_empty();
            let used = ["secrets", "configmaps", "persistentvolumeclaims"].into_iter().find(uses);
            let account = !write::text(pod, "/spec/serviceAccountName").is_empty();
            if let Some(used) = used.or(account.then_some("a service account")) {
                let why = format!("node \"{node}\" can not create pods that reference {used}");
                return Err(resource.forbidden(name, why));
            }
        }
        Operation::Delete | Operation::Update(_) if !own => {
            let why = format!("node \"{node}\" can only touch pods with spec.nodeName set to itself");
            return Err(resource.forbidden(name, why));
        }
        // By its labels a pod belongs to Services and controllers.
        Operation::Update(Part::Status) if labels(Some(pod)) != labels(old) => {
            let why = format!("node \"{node}\" cannot update labels through pod status");
            return Err(resource.forbidden(name, why));
        }
        _ => {}
    }
    Ok(())
}

async fn account(call: &Call, resource: &Resource, pod: &mut Value, name: &str) -> Result<()> {
    let namespace = call.target.namespace.clone();
    if write::text(pod, "/spec/serviceAccountName").is_empty() {
        pod["spec"]["serviceAccountName"] = "default".into();
    }
    let account_name = write::text(pod, "/spec/serviceAccountName").to_owned();
    pod["spec"]["serviceAccount"] = account_name.as_str().into();
    let mut found = call.app.object("", "v1", "serviceaccounts", &namespace, &account_name).await?;
    // The account of a new namespace appears a moment after it.
    for _ in 0..20 {
        if found.is_some() || account_name != "default" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        found = call.app.object("", "v1", "serviceaccounts", &namespace, &account_name).await?;
    }
    let Some(account) = found else {
        let why = format!(
            "error looking up service account {namespace}/{account_name}: serviceaccount \"{account_name}\" not found"
        );
        return Err(resource.forbidden(name, why));
    };
    let wanted = |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_bool);
    let mount = wanted(pod, "/spec/automountServiceAccountToken")
        .or_else(|| wanted(&account, "/automountServiceAccountToken"))
        .unwrap_or(true);
    if mount {
        mount_token(call, pod);
    }
    let has_secrets = pod["spec"]["imagePullSecrets"].as_array().is_some_and(|s| !s.is_empty());
    if !has_secrets && let Some(secrets) = account.get("imagePullSecrets").filter(|s| !s.is_null()) {
        pod["spec"]["imagePullSecrets"] = secrets.clone();
    }
    Ok(())
}

fn mount_token(call: &Call, pod: &mut Value) {
    let volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    let existing =
        volumes.iter().filter_map(|v| v["name"].as_str()).find(|n| n.starts_with("kube-api-access-"));
    let volume = match existing {
        Some(name) => name.to_owned(),
        None => {
            let letters = b"bcdfghjklmnpqrstvwxz2456789";
            let mut bits = call.app.random();
            let mut name = String::from("kube-api-access-");
            for _ in 0..5 {
                name.push(letters[(bits % 27) as usize] as char);
                bits /= 27;
            }
            name
        }
    };
    let mut used = false;
    for list in ["initContainers", "containers"] {
        for container in write::list_mut(pod, "spec", list) {
            let taken = container["volumeMounts"]
                .as_array()
                .is_some_and(|mounts| mounts.iter().any(|m| m["mountPath"] == TOKEN_PATH));
            if taken {
                continue;
            }
            if !container["volumeMounts"].is_array() {
                container["volumeMounts"] = json!([]);
            }
            if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                mounts.push(json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH}));
                used = true;
            }
        }
    }
    if used && existing.is_none() {
        let field = json!({"apiVersion": "v1", "fieldPath": "metadata.namespace"});
        let sources = json!([
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
        ]);
        let mut volumes = volumes;
        volumes.push(json!({"name": volume, "projected": {"sources": sources, "defaultMode": 420}}));
        pod["spec"]["volumes"] = volumes.into();
    }
}

/// Pods stay five minutes on a node that is lost, unless they say otherwise.
fn tolerations(pod: &mut Value) {
    let list = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    let mut new = list.clone();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = list.iter().any(|t| {
            let (have, effect) =
                (t["key"].as_str().unwrap_or_default(), t["effect"].as_str().unwrap_or_default());
            (have == key || have.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !tolerated {
            new.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}),
            );
        }
    }
    if new != list {
        pod["spec"]["tolerations"] = new.into();
    }
}

async fn priority(call: &Call, resource: &Resource, pod: &mut Value, name: &str) -> Result<()> {
    let app = &call.app;
    let policies = app.policies.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
    let class_name = write::text(pod, "/spec/priorityClassName").to_owned();
    let class = if class_name.is_empty() {
        let defaults = policies.all("priorityclasses").filter(|c| c["globalDefault"] == true);
        defaults.min_by_key(|c| c["value"].as_i64().unwrap_or(0)).cloned()
    } else {
        match policies.named("priorityclasses", &class_name) {
            Some(class) => Some(class.clone()),
            None => {
                return Err(
                    resource.forbidden(name, format!("no PriorityClass with name {class_name} was found"))
                );
            }
        }
    };
    drop(policies);
    let value = class.as_ref().and_then(|c| c["value"].as_i64()).unwrap_or(0);
    let policy =
        class.as_ref().and_then(|c| c["preemptionPolicy"].as_str()).unwrap_or("PreemptLowerPriority");
    if let Some(class) = class.as_ref().filter(|_| class_name.is_empty()) {
        pod["spec"]["priorityClassName"] = write::name_of(class).into();
    }
    if let Some(given) = pod.pointer("/spec/priority").and_then(Value::as_i64).filter(|given| *given != value)
    {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        );
        return Err(resource.forbidden(name, why));
    }
    if let Some(given) =
        pod.pointer("/spec/preemptionPolicy").and_then(Value::as_str).filter(|g| *g != policy)
    {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(resource.forbidden(name, why));
    }
    pod["spec"]["priority"] = value.into();
    pod["spec"]["preemptionPolicy"] = policy.into();
    Ok(())
}

async fn runtime_class(call: &Call, resource: &Resource, pod: &mut Value, name: &str) -> Result<()> {
    let class_name = write::text(pod, "/spec/runtimeClassName").to_owned();
    if class_name.is_empty() {
        if pod.pointer("/spec/overhead").and_then(Value::as_object).is_some_and(|o| !o.is_empty()) {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
            return Err(resource.forbidden(name, why));
        }
        return Ok(());
    }
    let app = &call.app;
    let class = {
        let policies = app.policies.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
        policies.named("runtimeclasses", &class_name).cloned()
    };
    let Some(class) = class else {
        return Err(
            resource.forbidden(name, format!("pod rejected: RuntimeClass \"{class_name}\" not found"))
        );
    };
    let fixed = class.pointer("/overhead/podFixed");
    match (pod.pointer("/spec/overhead"), fixed) {
        (None, Some(fixed)) => pod["spec"]["overhead"] = fixed.clone(),
        (Some(given), fixed) if Some(given) != fixed => {
            let why = format!(
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead: {given} != {}",
                fixed.cloned().unwrap_or_default()
            );
            return Err(resource.forbidden(name, why));
        }
        _ => {}
    }
    if let Some(selector) = class.pointer("/scheduling/nodeSelector").and_then(Value::as_object) {
        for (key, value) in selector {
            let have = &pod["spec"]["nodeSelector"][key];
            if !have.is_null() && have != value {
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {have}"
                );
                return Err(resource.forbidden(name, why));
            }
            if !pod["spec"]["nodeSelector"].is_object() {
                pod["spec"]["nodeSelector"] = json!({});
            }
            pod["spec"]["nodeSelector"][key] = value.clone();
        }
    }
    if let Some(added) = class.pointer("/scheduling/tolerations").and_then(Value::as_array) {
        let mut list = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
        list.extend(added.iter().filter(|t| !list.contains(t)).cloned().collect::<Vec<_>>());
        pod["spec"]["tolerations"] = list.into();
    }
    Ok(())
}

/// At most one class is the default for all.
pub async fn admit_class(
    call: &Call,
    resource: &Resource,
    operation: Operation<'_>,
    class: &Value,
) -> Result<()> {
    if operation == Operation::Delete || class["globalDefault"] != true {
        return Ok(());
    }
    let app = &call.app;
    let policies = app.policies.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
    let own = write::name_of(class);
    let other =
        policies.all("priorityclasses").find(|c| c["globalDefault"] == true && write::name_of(c) != own);
    match other {
        Some(other) => {
            let why = format!(
                "PriorityClass {} is already marked as globalDefault. Only one default can exist",
                write::name_of(other)
            );
            Err(resource.forbidden(own, why))
        }
        None => Ok(()),
    }
}
