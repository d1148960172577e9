//! `scale`: the number of replicas of anything that has one.

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tombolo_k8s::schema;

use crate::http::body::Body;
use crate::http::status::{Failure, Result, json_response};
use crate::registry::patch::{PatchType, failure};
use crate::registry::resource::Shared;
use crate::registry::schema::Schema;
use crate::registry::update::{self, Part, Proposal};
use crate::registry::write::{self, WriteOptions};
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
        let kind = PatchType::of(codec::content_type(call), false)?;
        let options =
            WriteOptions::parse(&call.query, call.user_agent(), "PatchOptions", kind == PatchType::Apply)?;
        let bytes = codec::read_bytes(body).await?;
        let patch: Value = if kind == PatchType::Apply {
            ownership::read_scale(&bytes)?
        } else {
            serde_json::from_slice(&bytes)
                .map_err(|e| Failure::bad_request(format!("error decoding patch: {e}")))?
        };
        (options, Change::Patch(kind, patch))
    };
    let written = update::change(call, resource, Part::Other("scale"), &options, |current| {
        let before = view(&places, current);
        let scale = match &change {
            Change::Replace(scale) => scale.clone(),
            Change::Patch(PatchType::Json, patch) => {
                tombolo_k8s::patch::json(&before, patch).map_err(failure)?
            }
            Change::Patch(_, patch) => tombolo_k8s::patch::merge(&before, patch).map_err(failure)?,
        };
        let version = write::text(&scale, "/metadata/resourceVersion");
        if !version.is_empty() && version != write::text(current, "/metadata/resourceVersion") {
            return Err(resource.modified(&name));
        }
        let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
        if !(0..=i64::from(i32::MAX)).contains(&replicas) {
            let error = tombolo_k8s::field::FieldError::invalid(
                "spec.replicas",
                &replicas.into(),
                "must be greater than or equal to 0",
            );
            return Err(Failure::invalid("autoscaling", "Scale", &name, &[error]));
        }
        let mut object = current.clone();
        set(&mut object, &places.spec, replicas.into());
        Ok(Proposal { object, owned: false })
    })
    .await?;
    let object = resource.decode(&written.value, written.revision).map_err(Failure::internal)?;
    Ok(json_response(StatusCode::OK, &view(&places, &object)))
}

enum Change {
    Replace(Value),
    Patch(PatchType, Value),
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
