//! `scale`: the number of replicas of anything that has one.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tombolo_k8s::{decode, schema};

use crate::http::body::Body;
use crate::http::status::{Failure, Result, json_response};
use crate::registry::patch::{PatchType, failure};
use crate::registry::resource::Shared;
use crate::registry::schema::Schema;
use crate::registry::update::{self, Part, Proposal};
use crate::registry::write::{self, FieldValidation, WriteOptions};
use crate::registry::{codec, ownership};
use crate::server::Call;

/// Where a kind keeps its replicas, as JSON pointers.
struct Places {
    spec: String,
    status: String,
    /// A selector in the form of a string, or an object to be written as one.
    selector: Option<String>,
}

fn places(resource: &Shared) -> Option<Places> {
    match &resource.schema {
        Schema::BuiltIn(_) => Some(Places {
            spec: "/spec/replicas".into(),
            status: "/status/replicas".into(),
            selector: Some("/spec/selector".into()),
        }),
        Schema::Custom(custom) => {
            let (spec, status, selector) = custom.scale_paths()?;
            Some(Places { spec, status, selector })
        }
    }
}

pub async fn handle(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let places = places(resource).ok_or_else(Failure::no_such_path)?;
    let name = call.target.name.clone();
    let key = resource.key(&call.target.namespace, &name);
    if call.target.verb == "get" {
        let Some(record) = call.app.get(&key).await? else { return Err(resource.not_found(&name)) };
        let object = resource.decode(&record.value, record.revision).map_err(Failure::internal)?;
        return Ok(json_response(StatusCode::OK, &view(&places, &object)));
    }
    let type_ = schema::type_of("autoscaling", "v1", "Scale").expect("the tables hold Scale");
    let (options, change) = if call.target.verb == "update" {
        let options = WriteOptions::parse(&call.query, call.user_agent(), "UpdateOptions", false)?;
        let scale =
            codec::read_typed(call, body, type_, "autoscaling/v1", "Scale", options.validation).await?;
        (options, Change::Replace(scale))
    } else {
        let kind = PatchType::of(codec::content_type(call), resource.schema.is_custom())?;
        let options =
            WriteOptions::parse(&call.query, call.user_agent(), "PatchOptions", kind == PatchType::Apply)?;
        let bytes = codec::read_bytes(body).await?;
        let change = if kind == PatchType::Apply {
            Change::Apply(ownership::read_scale(&bytes, type_)?)
        } else {
            let patch = serde_json::from_slice(&bytes)
                .map_err(|e| Failure::bad_request(format!("error decoding patch: {e}")))?;
            Change::Patch(kind, patch)
        };
        (options, change)
    };
    let namespace = call.target.namespace.clone();
    let written = update::change(call, resource, Part::Other("scale"), &options, |current| {
        let before = view(&places, current);
        let scale = match &change {
            Change::Replace(scale) => scale.clone(),
            Change::Patch(kind, patch) => {
                let patched = match kind {
                    PatchType::Json => tombolo_k8s::patch::json(&before, patch),
                    PatchType::Strategic => tombolo_k8s::patch::strategic(&before, patch, type_),
                    _ => tombolo_k8s::patch::merge(&before, patch),
                };
                let decoded = decode::value(patched.map_err(failure)?, type_)
                    .map_err(|e| Failure::new(422, "Invalid", e.to_string()))?;
                if options.validation == FieldValidation::Strict && !decoded.warnings.is_empty() {
                    return Err(Failure::new(422, "Invalid", codec::strict_text(&decoded.warnings)));
                }
                decoded.value
            }
            Change::Apply(scale) => {
                check(resource, scale, current, (&namespace, &name))?;
                let mut applied = json!({"apiVersion": resource.api_version(), "kind": resource.kind,
                    "metadata": {"name": name}});
                if let Some(replicas) = scale.pointer("/spec/replicas") {
                    check_replicas(replicas, &name)?;
                    set(&mut applied, &places.spec, replicas.clone());
                }
                let part = Part::Other("scale");
                let object = ownership::apply(resource, Some(current), &applied, part, &options)?;
                return Ok(Proposal { object, owned: true });
            }
        };
        if write::name_of(&scale).is_empty() {
            return Err(misnamed("", &name));
        }
        check(resource, &scale, current, (&namespace, &name))?;
        let replicas = scale.pointer("/spec/replicas").cloned().unwrap_or_else(|| 0.into());
        check_replicas(&replicas, &name)?;
        let mut object = current.clone();
        set(&mut object, &places.spec, replicas);
        Ok(Proposal { object, owned: false })
    })
    .await?;
    let object = resource.decode(&written.value, written.revision).map_err(Failure::internal)?;
    Ok(json_response(StatusCode::OK, &view(&places, &object)))
}

enum Change {
    Replace(Value),
    Patch(PatchType, Value),
    Apply(Value),
}

/// A scale that says where it belongs, or which version of what it is made from, must be right.
fn check(resource: &Shared, scale: &Value, current: &Value, (namespace, name): (&str, &str)) -> Result<()> {
    let given = |field: &str| write::text(scale, field);
    if !["", name].contains(&given("/metadata/name")) {
        return Err(misnamed(given("/metadata/name"), name));
    }
    if !["", namespace].contains(&given("/metadata/namespace")) {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    for field in ["/metadata/resourceVersion", "/metadata/uid"] {
        if !["", write::text(current, field)].contains(&given(field)) {
            return Err(resource.modified(name));
        }
    }
    Ok(())
}

fn misnamed(given: &str, name: &str) -> Failure {
    Failure::bad_request(format!(
        "the name of the object ({given}) does not match the name on the URL ({name})"
    ))
}

fn check_replicas(replicas: &Value, name: &str) -> Result<()> {
    if replicas.as_i64().is_some_and(|n| (0..=i64::from(i32::MAX)).contains(&n)) {
        return Ok(());
    }
    let detail = "must be greater than or equal to 0";
    let error = tombolo_k8s::field::FieldError::invalid("spec.replicas", replicas, detail);
    Err(Failure::invalid("autoscaling", "Scale", name, &[error]))
}

fn view(places: &Places, object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut shown = json!({});
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = metadata.get(key) {
            shown[key] = value.clone();
        }
    }
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown,
        "spec": {"replicas": number(&places.spec)}, "status": {"replicas": number(&places.status)},
    });
    match places.selector.as_deref().and_then(|p| object.pointer(p)) {
        Some(Value::String(text)) => scale["status"]["selector"] = text.as_str().into(),
        Some(Value::Object(map)) => {
            let labels = map.get("matchLabels").map_or_else(
                || if map.contains_key("matchExpressions") { None } else { Some(map) },
                Value::as_object,
            );
            let selector = tombolo_k8s::selector::LabelSelector::from_object(Some(&match labels {
                Some(labels) if !map.contains_key("matchLabels") => json!({"matchLabels": labels}),
                _ => Value::Object(map.clone()),
            }));
            if let Ok(selector) = selector {
                scale["status"]["selector"] = selector.to_string().into();
            }
        }
        _ => {}
    }
    if scale["spec"]["replicas"] == 0 {
        scale["spec"] = json!({});
    }
    scale
}

fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    let steps: Vec<&str> = pointer.trim_start_matches('/').split('/').collect();
    let (last, parents) = steps.split_last().expect("split gives at least one part");
    for step in parents {
        if !at[*step].is_object() {
            at[*step] = json!({});
        }
        at = &mut at[*step];
    }
    at[*last] = value;
}
