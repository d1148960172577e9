//! Resource quotas: a namespace takes no more than it was given.
//!
//! What an object uses is added to the quota's status in the same compare-and-set way as any write, so two requests
//! can never both take the last piece. A controller recounts now and then and gives back what was deleted, and what was charged
//! for a write that was lost after all.

use serde_json::{Value, json};
use tombolo_k8s::quantity::Quantity;
use tombolo_k8s::quota::{Usage, amounts, containers, covers, usage};

use crate::http::status::Result;
use crate::registry::resource::Resource;
use crate::registry::update::{self, Part, Proposal};
use crate::registry::write::{self, WriteOptions};
use crate::server::Call;

/// For an object that is about to be created and that nothing else is wrong with.
pub async fn charge(call: &mut Call, resource: &Resource, object: &Value, dry_run: bool) -> Result<()> {
    // Access reviews are questions, not content.
    if !resource.namespaced || !resource.verbs.contains(&"get") {
        return Ok(());
    }
    let app = call.app.clone();
    let quotas: Vec<_> = {
        let policies = app.policies.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
        policies.within("resourcequotas", &call.target.namespace).cloned().collect()
    };
    if quotas.is_empty() {
        return Ok(());
    }
    if app.get(&resource.key(&call.target.namespace, write::name_of(object))).await?.is_some() {
        return Err(resource.already_exists(write::name_of(object)));
    }
    let usage = usage(&resource.group, &resource.plural, object);
    let shown = match write::name_of(object) {
        "" => write::text(object, "/metadata/generateName"),
        name => name,
    };
    for quota in quotas.iter().filter(|q| covers(q, &resource.group, &resource.plural, object)) {
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
            // The write of the quota is another one: what the object has claimed is not its to keep or to give back.
            let claims = std::mem::take(&mut call.claims);
            let added = Box::pin(add(call, resource, shown, name, &wanted, dry_run)).await;
            call.claims = claims;
            added?;
        }
    }
    Ok(())
}

/// Adds to what the quota says is used, or refuses.
async fn add(
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
