//! `binding`: a scheduler's decision. `eviction`: a deletion that respects disruption budgets.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tombolo_k8s::field::FieldError;
use tombolo_k8s::schema;
use tombolo_k8s::selector::LabelSelector;

use crate::http::body::Body;
use crate::http::status::{Failure, Result, json_response};
use crate::registry::delete::{self, DeleteOptions};
use crate::registry::options::Filter;
use crate::registry::resource::Shared;
use crate::registry::update::{self, Part, Proposal};
use crate::registry::write::{self, WriteOptions, metadata};
use crate::registry::{codec, list};
use crate::server::Call;

pub async fn bind(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let options = WriteOptions::parse(&call.query, call.user_agent(), "CreateOptions", false)?;
    let type_ = schema::type_of("", "v1", "Binding").expect("the tables hold Binding");
    let binding = codec::read_typed(call, body, type_, "v1", "Binding", options.validation).await?;
    if call.target.resource == "bindings" {
        // The old place of bindings: the pod's name is in the body.
        call.target.name = write::name_of(&binding).to_owned();
    } else if write::name_of(&binding) != call.target.name {
        return Err(Failure::bad_request("name in URL does not match name in Binding object"));
    }
    let node = write::text(&binding, "/target/name").to_owned();
    let name = call.target.name.clone();
    let kind = write::text(&binding, "/target/kind");
    if name.is_empty() {
        return Err(Failure::bad_request("Name parameter required."));
    }
    let mut errors = Vec::new();
    if !matches!(kind, "" | "Node") {
        errors.push(FieldError::not_supported("target.kind", &kind.into(), &["Node", "<empty>"]).to_string());
    }
    if node.is_empty() {
        errors.push(FieldError::required("target.name", "").to_string());
    }
    match errors.as_slice() {
        [] => {}
        // Upstream's answer is a server error too.
        [one] => return Err(Failure::new(500, "", one)),
        several => return Err(Failure::new(500, "", format!("[{}]", several.join(", ")))),
    }
    let uid = write::text(&binding, "/metadata/uid").to_owned();
    let pods = call.app.registry.built_in.find("", "v1", "pods").cloned().expect("the tables hold pods");
    let _ = resource;
    update::change(call, &pods, Part::Other("binding"), &options, |pod| {
        let conflict = |why: String| Err(Failure::conflict("", "pods/binding", &name, why));
        if !uid.is_empty() && uid != write::text(pod, "/metadata/uid") {
            return conflict(format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", write::text(pod, "/metadata/uid")));
        }
        if write::is_deleting(pod) {
            return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
        }
        let bound = write::text(pod, "/spec/nodeName");
        if !bound.is_empty() {
            return conflict(format!("pod {name} is already assigned to node \"{bound}\""));
        }
        if pod.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
            return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
        }
        let mut pod = pod.clone();
        pod["spec"]["nodeName"] = node.as_str().into();
        if let Some(added) = binding.pointer("/metadata/annotations").and_then(Value::as_object) {
            let annotations = metadata(&mut pod).entry("annotations").or_insert_with(|| json!({}));
            for (key, value) in added {
                annotations[key] = value.clone();
            }
        }
        set_condition(&mut pod, json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": write::now(),
        }));
        Ok(Proposal { object: pod, owned: false })
    })
    .await?;
    Ok(json_response(
        StatusCode::CREATED,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}

fn set_condition(pod: &mut Value, condition: Value) {
    if !pod["status"].is_object() {
        pod["status"] = json!({});
    }
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let conditions = pod["status"]["conditions"].as_array_mut().expect("set to a list just above");
    match conditions.iter_mut().find(|c| c["type"] == condition["type"]) {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}

/// A pod goes if no budget forbids it; the budget pays for it.
pub async fn evict(call: &mut Call, pods: &Shared, body: Body) -> Result<Response<Body>> {
    let options = WriteOptions::parse(&call.query, call.user_agent(), "CreateOptions", false)?;
    let type_ = schema::type_of("policy", "v1", "Eviction").expect("the tables hold Eviction");
    let eviction = codec::read_typed(call, body, type_, "policy/v1", "Eviction", options.validation).await?;
    let mut delete_options = DeleteOptions::parse(&eviction["deleteOptions"], &call.query)?;
    delete_options.dry_run |= options.dry_run;
    let (namespace, name) = (call.target.namespace.clone(), call.target.name.clone());
    if write::name_of(&eviction) != name {
        return Err(Failure::bad_request("name in URL does not match name in Eviction object"));
    }
    let key = pods.key(&namespace, &name);
    let Some(record) = call.app.get(&key).await? else { return Err(pods.not_found(&name)) };
    let pod = pods.decode(&record.value, record.revision).map_err(Failure::internal)?;
    let spendable = !matches!(write::text(&pod, "/status/phase"), "Succeeded" | "Failed" | "Pending")
        && !write::is_deleting(&pod);
    if spendable {
        spend(call, &namespace, &pod, delete_options.dry_run).await?;
    }
    if !delete_options.dry_run && !write::is_deleting(&pod) {
        delete::check_preconditions(pods, &name, &pod, record.revision, &delete_options)?;
        delete_options.version = None;
        // Whoever counts failures (Jobs do) must be able to tell this end from one of the pod's own making.
        let internal = WriteOptions::internal("eviction", false);
        update::change(call, pods, Part::Status, &internal, |pod| {
            let mut pod = pod.clone();
            set_condition(&mut pod, json!({
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": write::now(),
            }));
            Ok(Proposal { object: pod, owned: false })
        })
        .await?;
    }
    delete_options.uid.get_or_insert_with(|| write::text(&pod, "/metadata/uid").to_owned());
    delete::delete(call, pods, &namespace, &name, &delete_options).await?;
    Ok(json_response(
        StatusCode::CREATED,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    ))
}

/// Takes one disruption from the budget that covers the pod.
async fn spend(call: &mut Call, namespace: &str, pod: &Value, dry_run: bool) -> Result<()> {
    let app = call.app.clone();
    let budgets = app
        .registry
        .built_in
        .find("policy", "v1", "poddisruptionbudgets")
        .cloned()
        .expect("the tables hold budgets");
    let labels = pod.pointer("/metadata/labels").and_then(Value::as_object);
    let mut covering = Vec::new();
    for record in list::all(call, &budgets, namespace, &Filter::everything()).await? {
        let budget = budgets.decode(&record.value, record.revision).map_err(Failure::internal)?;
        let selector = LabelSelector::from_object(budget.pointer("/spec/selector"));
        if selector.is_ok_and(|s| s.matches(labels)) {
            covering.push(budget);
        }
    }
    let budget = match covering.as_slice() {
        [] => return Ok(()),
        [one] => one,
        _ => {
            return Err(Failure::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
    };
    let name = write::name_of(budget).to_owned();
    let pod_name = write::name_of(pod).to_owned();
    let target = call.target.clone();
    call.target.name = name.clone();
    let internal = WriteOptions::internal("eviction", dry_run);
    let result = update::change(call, &budgets, Part::Status, &internal, |budget| {
        let refuse = |text: String| {
            Err(Failure::too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                10,
            )
            .cause("DisruptionBudget", text, ""))
        };
        let number = |pointer: &str| budget.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        if number("/status/observedGeneration") < number("/metadata/generation") {
            return refuse(format!("The disruption budget {name} is still being processed by the server."));
        }
        let allowed = number("/status/disruptionsAllowed");
        if allowed <= 0 {
            return refuse(format!(
                "The disruption budget {name} needs {} healthy pods and has {} currently",
                number("/status/desiredHealthy"),
                number("/status/currentHealthy")
            ));
        }
        let mut budget = budget.clone();
        budget["status"]["disruptionsAllowed"] = (allowed - 1).into();
        if !budget["status"]["disruptedPods"].is_object() {
            budget["status"]["disruptedPods"] = json!({});
        }
        budget["status"]["disruptedPods"][&pod_name] = write::now().into();
        Ok(Proposal { object: budget, owned: false })
    })
    .await;
    call.target = target;
    result.map(|_| ())
}
