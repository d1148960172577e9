//! Resource quotas: a namespace takes no more than it was given.
//!
//! What an object uses is added to the quota's status in the same compare-and-set way as any write, so two requests
//! can never both take the last piece. A controller recounts now and then and gives back what was deleted.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tombolo_k8s::quantity::Quantity;

use crate::http::status::Result;
use crate::registry::resource::Resource;
use crate::registry::update::{self, Part, Proposal};
use crate::registry::write::{self, WriteOptions};
use crate::server::Call;

type Usage = BTreeMap<String, Quantity>;

pub async fn admit(call: &mut Call, resource: &Resource, object: &Value, dry_run: bool) -> Result<()> {
    let app = call.app.clone();
    let quotas: Vec<_> = {
        let policies = app.policies.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
        policies.within("resourcequotas", &call.target.namespace).cloned().collect()
    };
    if quotas.is_empty() {
        return Ok(());
    }
    let usage = usage(resource, object);
    let shown = match write::name_of(object) {
        "" => write::text(object, "/metadata/generateName"),
        name => name,
    };
    for quota in quotas.iter().filter(|q| in_scope(q, resource, object)) {
        let hard = hard(quota);
        let wanted: Usage =
            usage.iter().filter(|(name, _)| hard.contains_key(*name)).map(|(k, v)| (k.clone(), *v)).collect();
        let name = write::name_of(quota);
        if resource.is("", "pods") {
            let missing: Vec<&str> =
                hard.keys().filter(|k| is_compute(k) && !states_it(object, k)).map(String::as_str).collect();
            if !missing.is_empty() {
                let why =
                    format!("failed quota: {name}: must specify {}", describe_missing(object, &missing));
                return Err(resource.forbidden(shown, why));
            }
        }
        if !wanted.is_empty() {
            Box::pin(charge(call, resource, shown, name, &wanted, dry_run)).await?;
        }
    }
    Ok(())
}

/// Adds to what the quota says is used, or refuses.
async fn charge(
    call: &mut Call,
    resource: &Resource,
    shown: &str,
    quota: &str,
    wanted: &Usage,
    dry_run: bool,
) -> Result<()> {
    let app = call.app.clone();
    let quotas =
        app.registry.built_in.find("", "v1", "resourcequotas").cloned().expect("the tables hold quotas");
    let target = call.target.clone();
    call.target.name = quota.to_owned();
    call.target.resource = "resourcequotas".into();
    let options = WriteOptions::internal("quota", dry_run);
    let result = update::change_quietly(call, &quotas, Part::Status, &options, |current| {
        let hard = hard(current);
        let used = amounts(&current["status"]["used"]);
        let mut over: Vec<&String> = Vec::new();
        let mut new = current.clone();
        for (name, amount) in wanted {
            let Some(limit) = hard.get(name) else { continue };
            let sum = used.get(name).copied().unwrap_or(Quantity::ZERO).plus(*amount);
            if sum > *limit {
                over.push(name);
            }
            if !new["status"]["used"].is_object() {
                new["status"]["used"] = json!({});
            }
            new["status"]["used"][name] = sum.to_string().into();
        }
        if !over.is_empty() {
            let list = |amounts: &Usage| -> String {
                let zero = Quantity::ZERO;
                let parts = over.iter().map(|n| format!("{n}={}", amounts.get(*n).unwrap_or(&zero)));
                parts.collect::<Vec<_>>().join(",")
            };
            let why = format!(
                "exceeded quota: {quota}, requested: {}, used: {}, limited: {}",
                list(wanted),
                list(&used),
                list(&hard)
            );
            return Err(resource.forbidden(shown, why));
        }
        Ok(Proposal { object: new, owned: false })
    })
    .await;
    call.target = target;
    match result {
        Ok(_) => Ok(()),
        // The quota was deleted meanwhile: it limits nothing any more.
        Err(failure) if failure.code() == 404 => Ok(()),
        Err(failure) => Err(failure),
    }
}

fn amounts(map: &Value) -> Usage {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(k, v)| Some((k.clone(), Quantity::from_value(v).ok()?))).collect()
}

/// Limits count once the quota's controller has seen them.
fn hard(quota: &Value) -> Usage {
    amounts(&quota["status"]["hard"])
}

fn is_compute(name: &str) -> bool {
    matches!(
        name,
        "cpu"
            | "memory"
            | "requests.cpu"
            | "requests.memory"
            | "limits.cpu"
            | "limits.memory"
            | "ephemeral-storage"
            | "requests.ephemeral-storage"
            | "limits.ephemeral-storage"
    )
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    pod["spec"]["containers"].as_array().into_iter().flatten()
}

fn kind_and_name(name: &str) -> (&str, &str) {
    match name.split_once('.') {
        Some(("limits", resource)) => ("limits", resource),
        Some(("requests", resource)) => ("requests", resource),
        _ => ("requests", name),
    }
}

fn states_it(pod: &Value, name: &str) -> bool {
    let (kind, resource) = kind_and_name(name);
    containers(pod).all(|c| c["resources"][kind].get(resource).is_some())
}

fn describe_missing(pod: &Value, missing: &[&str]) -> String {
    let parts = missing.iter().map(|name| {
        let (kind, resource) = kind_and_name(name);
        let without = containers(pod).filter(|c| c["resources"][kind].get(resource).is_none());
        let names: Vec<&str> = without.filter_map(|c| c["name"].as_str()).collect();
        format!("{name} for: {}", names.join(","))
    });
    parts.collect::<Vec<_>>().join("; ")
}

/// What creating an object takes, under all the names a quota may use for it.
fn usage(resource: &Resource, object: &Value) -> Usage {
    let one = Quantity::new(1);
    let mut usage = Usage::new();
    let plural = resource.plural.as_str();
    let counted =
        if resource.group.is_empty() { plural.to_owned() } else { format!("{plural}.{}", resource.group) };
    usage.insert(format!("count/{counted}"), one);
    if !resource.group.is_empty() {
        return usage;
    }
    match plural {
        "pods" if !matches!(write::text(object, "/status/phase"), "Succeeded" | "Failed") => {
            usage.insert("pods".into(), one);
            pod_usage(object, &mut usage);
        }
        "services" => {
            usage.insert("services".into(), one);
            let kind = write::text(object, "/spec/type");
            if matches!(kind, "NodePort" | "LoadBalancer") {
                let ports = object.pointer("/spec/ports").and_then(Value::as_array).map_or(0, Vec::len);
                usage.insert("services.nodeports".into(), Quantity::new(ports as i64));
            }
            if kind == "LoadBalancer" {
                usage.insert("services.loadbalancers".into(), one);
            }
        }
        "persistentvolumeclaims" => {
            usage.insert(plural.into(), one);
            let class = write::text(object, "/spec/storageClassName");
            if !class.is_empty() {
                usage.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one);
            }
            let asked = object.pointer("/spec/resources/requests/storage").map(Quantity::from_value);
            if let Some(Ok(size)) = asked {
                usage.insert("requests.storage".into(), size);
                if !class.is_empty() {
                    usage.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), size);
                }
            }
        }
        "secrets" | "configmaps" | "replicationcontrollers" | "resourcequotas" => {
            usage.insert(plural.into(), one);
        }
        _ => {}
    }
    usage
}

fn pod_usage(pod: &Value, usage: &mut Usage) {
    for kind in ["requests", "limits"] {
        let mut sums = Usage::new();
        for container in containers(pod) {
            for (name, amount) in amounts(&container["resources"][kind]) {
                let sum = sums.entry(name).or_insert(Quantity::ZERO);
                *sum = sum.plus(amount);
            }
        }
        // Init containers run one after another, before the others.
        for container in pod["spec"]["initContainers"].as_array().into_iter().flatten() {
            for (name, amount) in amounts(&container["resources"][kind]) {
                let sum = sums.entry(name).or_insert(Quantity::ZERO);
                *sum = if amount > *sum { amount } else { *sum };
            }
        }
        if kind == "requests" {
            for (name, amount) in amounts(&pod["spec"]["overhead"]) {
                let sum = sums.entry(name).or_insert(Quantity::ZERO);
                *sum = sum.plus(amount);
            }
        }
        for (name, sum) in sums {
            if kind == "requests" && matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
                usage.insert(name.clone(), sum);
            }
            usage.insert(format!("{kind}.{name}"), sum);
        }
    }
}

/// Whether a quota's scopes include the object.
fn in_scope(quota: &Value, resource: &Resource, object: &Value) -> bool {
    let scopes = quota.pointer("/spec/scopes").and_then(Value::as_array);
    let mut scopes = scopes.into_iter().flatten().filter_map(Value::as_str);
    let selected = quota.pointer("/spec/scopeSelector/matchExpressions").and_then(Value::as_array);
    let scoped = scopes.clone().next().is_some() || selected.is_some_and(|s| !s.is_empty());
    if !scoped {
        return true;
    }
    if !resource.is("", "pods") {
        return false;
    }
    let holds = |scope: &str| match scope {
        "Terminating" => object.pointer("/spec/activeDeadlineSeconds").is_some_and(Value::is_number),
        "NotTerminating" => !object.pointer("/spec/activeDeadlineSeconds").is_some_and(Value::is_number),
        "BestEffort" => crate::kinds::pods::quality_of_service(object) == "BestEffort",
        "NotBestEffort" => crate::kinds::pods::quality_of_service(object) != "BestEffort",
        "PriorityClass" => !write::text(object, "/spec/priorityClassName").is_empty(),
        _ => false,
    };
    scopes.all(holds)
        && selected.into_iter().flatten().all(|expression| {
            let scope = expression["scopeName"].as_str().unwrap_or_default();
            let class = write::text(object, "/spec/priorityClassName");
            let listed = expression["values"].as_array().is_some_and(|v| v.iter().any(|x| *x == class));
            match (scope, expression["operator"].as_str().unwrap_or_default()) {
                ("PriorityClass", "In") => listed,
                ("PriorityClass", "NotIn") => !listed,
                ("PriorityClass", "DoesNotExist") => class.is_empty(),
                (scope, _) => holds(scope),
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_uses_the_sum_of_its_containers_and_the_most_of_its_first_ones() {
        let mut usage = Usage::new();
        let pod = json!({"spec": {
            "containers": [{"resources": {"requests": {"cpu": "1"}}}, {"resources": {"requests": {"cpu": "500m"}}}],
            "initContainers": [{"resources": {"requests": {"cpu": "2"}}}],
        }});
        pod_usage(&pod, &mut usage);
        assert_eq!(usage["requests.cpu"].millis(), 2000);
        assert_eq!(usage["cpu"].millis(), 2000);
    }
}
