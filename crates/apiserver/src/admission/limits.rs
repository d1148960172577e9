//! Limit ranges: defaults and bounds for what a pod asks for, and bounds for what a claim does.

use std::sync::Arc;

use serde_json::{Value, json};
use tombolo_k8s::quantity::Quantity;

use crate::http::status::Result;
use crate::registry::resource::Resource;
use crate::registry::write;
use crate::server::Call;

/// The type of limits that are for claims.
const CLAIM: &str = "PersistentVolumeClaim";

pub async fn admit(call: &Call, resource: &Resource, pod: &mut Value) -> Result<()> {
    let ranges = ranges(call).await?;
    let limits = || limits_of(&ranges);
    for limit in limits().filter(|l| l["type"] == "Container") {
        fill(pod, limit);
    }
    let mut errors = Vec::new();
    for limit in limits() {
        match limit["type"].as_str() {
            Some("Container") => {
                for list in ["containers", "initContainers"] {
                    for container in pod["spec"][list].as_array().into_iter().flatten() {
                        check(limit, "Container", &container["resources"], &mut errors);
                    }
                }
            }
            Some("Pod") => check(limit, "Pod", &totals(pod), &mut errors),
            _ => {}
        }
    }
    refuse(resource, pod, &errors)
}

/// A claim asks for as much as its namespace allows. Also when it is changed: it may grow.
pub async fn admit_claim(call: &Call, resource: &Resource, claim: &Value) -> Result<()> {
    // What is on its way out only loses its finalizers.
    if claim.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null()) {
        return Ok(());
    }
    // As upstream does, the first range that is broken answers.
    for range in ranges(call).await? {
        let mut errors = Vec::new();
        for limit in limits_of(std::slice::from_ref(&range)).filter(|l| l["type"] == CLAIM) {
            check_claim(limit, claim, &mut errors);
        }
        refuse(resource, claim, &errors)?;
    }
    Ok(())
}

async fn ranges(call: &Call) -> Result<Vec<Arc<Value>>> {
    let app = &call.app;
    let policies = app.policies.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
    Ok(policies.within("limitranges", &call.target.namespace).cloned().collect())
}

fn limits_of(ranges: &[Arc<Value>]) -> impl Iterator<Item = &Value> {
    ranges.iter().flat_map(|range| range["spec"]["limits"].as_array().into_iter().flatten())
}

fn refuse(resource: &Resource, object: &Value, errors: &[String]) -> Result<()> {
    match errors {
        [] => Ok(()),
        [one] => Err(resource.forbidden(write::name_of(object), one)),
        many => Err(resource.forbidden(write::name_of(object), format!("[{}]", many.join(", ")))),
    }
}

/// Only what a claim requests is bounded, not its limits.
fn check_claim(limit: &Value, claim: &Value, errors: &mut Vec<String>) {
    let requests = &claim["spec"]["resources"]["requests"];
    check(&json!({"min": limit["min"]}), CLAIM, &json!({"requests": requests}), errors);
    for (name, bound) in limit["max"].as_object().into_iter().flatten() {
        let Some(max) = quantity(bound) else { continue };
        let most = format!("maximum {name} usage per {CLAIM} is {}", shown(bound));
        match quantity(&requests[name]) {
            None => errors.push(format!("{most}.  No request is specified")),
            Some(given) if given > max => {
                errors.push(format!("{most}, but request is {}", shown(&requests[name])));
            }
            Some(_) => {}
        }
    }
}

/// Containers that say nothing get the range's defaults.
fn fill(pod: &mut Value, limit: &Value) {
    for list in ["containers", "initContainers"] {
        for container in write::list_mut(pod, "spec", list) {
            for (kind, defaults) in [("limits", "default"), ("requests", "defaultRequest")] {
                for (name, value) in limit[defaults].as_object().into_iter().flatten() {
                    if container["resources"][kind].get(name).is_none() {
                        if !container["resources"].is_object() {
                            container["resources"] = json!({});
                        }
                        if !container["resources"][kind].is_object() {
                            container["resources"][kind] = json!({});
                        }
                        container["resources"][kind][name] = value.clone();
                    }
                }
            }
        }
    }
}

fn quantity(value: &Value) -> Option<Quantity> {
    (!value.is_null()).then(|| Quantity::from_value(value).ok()).flatten()
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn check(limit: &Value, what: &str, resources: &Value, errors: &mut Vec<String>) {
    for (name, bound) in limit["min"].as_object().into_iter().flatten() {
        let Some(min) = quantity(bound) else { continue };
        let (request, limit) = (&resources["requests"][name], &resources["limits"][name]);
        match (quantity(request), quantity(limit)) {
            (None, _) => errors.push(format!(
                "minimum {name} usage per {what} is {}.  No request is specified",
                shown(bound)
            )),
            (Some(given), _) if given < min => {
                errors.push(format!(
                    "minimum {name} usage per {what} is {}, but request is {}",
                    shown(bound),
                    shown(request)
                ));
            }
            (_, Some(given)) if given < min => {
                errors.push(format!(
                    "minimum {name} usage per {what} is {}, but limit is {}",
                    shown(bound),
                    shown(limit)
                ));
            }
            _ => {}
        }
    }
    for (name, bound) in limit["max"].as_object().into_iter().flatten() {
        let Some(max) = quantity(bound) else { continue };
        let (request, limit) = (&resources["requests"][name], &resources["limits"][name]);
        match (quantity(request), quantity(limit)) {
            (_, None) => errors
                .push(format!("maximum {name} usage per {what} is {}.  No limit is specified", shown(bound))),
            (_, Some(given)) if given > max => {
                errors.push(format!(
                    "maximum {name} usage per {what} is {}, but limit is {}",
                    shown(bound),
                    shown(limit)
                ));
            }
            (Some(given), _) if given > max => {
                errors.push(format!(
                    "maximum {name} usage per {what} is {}, but request is {}",
                    shown(bound),
                    shown(request)
                ));
            }
            _ => {}
        }
    }
    for (name, bound) in limit["maxLimitRequestRatio"].as_object().into_iter().flatten() {
        let Some(ratio) = quantity(bound) else { continue };
        let given = |kind: &str| quantity(&resources[kind][name]).filter(|q| !q.is_zero());
        match (given("requests"), given("limits")) {
            (Some(request), Some(limit)) => {
                let actual = limit.millis() as f64 / request.millis().max(1) as f64;
                if actual > ratio.millis() as f64 / 1000.0 {
                    errors.push(format!(
                        "{name} max limit to request ratio per {what} is {}, but provided ratio is {actual:.6}",
                        shown(bound)
                    ));
                }
            }
            _ => errors.push(format!(
                "{name} max limit to request ratio per {what} is {}, but no request is specified or request is 0",
                shown(bound)
            )),
        }
    }
}

/// What all containers of a pod ask for together.
fn totals(pod: &Value) -> Value {
    let mut out = json!({"requests": {}, "limits": {}});
    for kind in ["requests", "limits"] {
        let mut sums: std::collections::BTreeMap<String, Quantity> = Default::default();
        let containers = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        for container in containers {
            for (name, value) in container["resources"][kind].as_object().into_iter().flatten() {
                if let Some(given) = quantity(value) {
                    let sum = sums.entry(name.clone()).or_insert(Quantity::ZERO);
                    *sum = sum.plus(given);
                }
            }
        }
        for (name, sum) in sums {
            let all = containers.iter().all(|c| c["resources"][kind].get(&name).is_some());
            if kind == "requests" || all {
                out[kind][name] = sum.to_string().into();
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_reported_in_upstream_s_words() {
        let limit = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "500m"}});
        let mut errors = Vec::new();
        check(&limit, "Container", &json!({"requests": {"cpu": "50m"}, "limits": {"cpu": "1"}}), &mut errors);
        assert_eq!(errors[0], "minimum cpu usage per Container is 100m, but request is 50m");
        assert_eq!(errors[1], "maximum cpu usage per Container is 500m, but limit is 1");
    }

    #[test]
    fn a_claim_is_bounded_by_what_it_requests() {
        let limit = json!({"type": CLAIM, "min": {"storage": "2Gi"}, "max": {"storage": "4Gi"}});
        let said = |resources: Value| {
            let mut errors = Vec::new();
            check_claim(&limit, &json!({"spec": {"resources": resources}}), &mut errors);
            errors.join("; ")
        };
        let least = "minimum storage usage per PersistentVolumeClaim is 2Gi";
        let most = "maximum storage usage per PersistentVolumeClaim is 4Gi";
        assert_eq!(said(json!({"requests": {"storage": "1Gi"}})), format!("{least}, but request is 1Gi"));
        assert_eq!(said(json!({"requests": {"storage": "5Gi"}})), format!("{most}, but request is 5Gi"));
        assert_eq!(said(json!({"requests": {"storage": "3Gi"}, "limits": {"storage": "9Gi"}})), "");
        assert_eq!(
            said(json!({})),
            format!("{least}.  No request is specified; {most}.  No request is specified")
        );
    }

    #[test]
    fn defaults_fill_only_what_is_missing() {
        let mut pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}});
        fill(&mut pod, &json!({"defaultRequest": {"cpu": "2", "memory": "1Gi"}, "default": {"cpu": "3"}}));
        let resources = &pod["spec"]["containers"][0]["resources"];
        assert_eq!(*resources, json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "3"}}));
    }
}
