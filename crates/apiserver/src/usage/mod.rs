//! `metrics.k8s.io`: what nodes and pods use, for `kubectl top` and for autoscalers.
//!
//! Nobody counts while nobody asks. A request makes the server ask the nodes, twice when their last answer is too old to
//! compare with; a request shortly after is answered from the same figures. A node that does not answer is left out, as
//! upstream's metrics server does.

mod gather;
mod sample;

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tombolo_k8s::discovery::Row;

pub use self::gather::Usage;
use self::sample::{Figures, Window};
use crate::http::body::Body;
use crate::http::status::{Failure, Result, json_response};
use crate::registry::list;
use crate::registry::options::ListOptions;
use crate::registry::resource::Shared;
use crate::registry::write;
use crate::server::Call;

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";

/// The rows of the group in discovery.
pub fn rows() -> [Row<'static>; 2] {
    let row = |kind, plural, namespaced| Row {
        group: GROUP,
        version: VERSION,
        kind,
        plural,
        singular: "",
        namespaced,
        short_names: Vec::new(),
        categories: Vec::new(),
        verbs: vec!["get", "list"],
        storage_hash: "",
        subresources: Vec::new(),
    };
    [row("NodeMetrics", "nodes", false), row("PodMetrics", "pods", true)]
}

/// Whether a request is for this group.
pub fn is_asked(call: &Call) -> bool {
    call.app.usage.is_some() && call.target.group == GROUP && call.target.version == VERSION
}

pub async fn handle(call: &Call) -> Result<Response<Body>> {
    let app = call.app.clone();
    let target = &call.target;
    let (Some(usage), "nodes" | "pods", "") = (&app.usage, target.resource.as_str(), &*target.subresource)
    else {
        return Err(Failure::no_such_path());
    };
    let built_in = |plural| app.registry.built_in.find("", "v1", plural).expect("a built-in kind");
    let of_pods = target.resource == "pods";
    let resource = built_in(&*target.resource);
    let objects = match target.verb {
        "get" => vec![one(call, resource).await?],
        "list" => many(call, resource).await?,
        verb => return Err(Failure::method_not_allowed(GROUP, &target.resource, verb)),
    };
    let nodes = match of_pods {
        false => objects.clone(),
        true => many(&Call::internal(&app, Default::default()), built_in("nodes")).await?,
    };
    let windows = usage.windows(&app, &nodes).await;
    let measured: Vec<Value> = objects
        .iter()
        .filter_map(|object| match of_pods {
            true => {
                let window = windows.get(write::text(object, "/spec/nodeName"))?;
                pod_metrics(object, window)
            }
            false => Some(node_metrics(object, windows.get(write::name_of(object))?)),
        })
        .collect();
    if target.verb == "get" {
        let gone = || Failure::not_found(GROUP, &target.resource, &target.name);
        return measured.first().map(|m| json_response(StatusCode::OK, m)).ok_or_else(gone);
    }
    let kind = if of_pods { "PodMetricsList" } else { "NodeMetricsList" };
    let document = json!({"kind": kind, "apiVersion": api_version(), "metadata": {}, "items": measured});
    Ok(json_response(StatusCode::OK, &document))
}

async fn one(call: &Call, resource: &Shared) -> Result<Value> {
    let (namespace, name) = (&call.target.namespace, &call.target.name);
    let found = call.app.object("", "v1", &resource.plural, namespace, name).await?;
    found.ok_or_else(|| Failure::not_found(GROUP, &resource.plural, name))
}

async fn many(call: &Call, resource: &Shared) -> Result<Vec<Value>> {
    let options = ListOptions::parse(resource, &call.query, false)?;
    let listed = list::fetch(call, resource, &options).await?;
    let decode = |record: &tombolo_store::Record| resource.decode(&record.value, record.revision);
    listed.records.iter().map(decode).collect::<Result<_, _>>().map_err(Failure::internal)
}

fn api_version() -> String {
    format!("{GROUP}/{VERSION}")
}

fn node_metrics(node: &Value, window: &Window) -> Value {
    let mut metrics = measured("NodeMetrics", node, window);
    metrics["usage"] = quantities(&window.node());
    metrics
}

/// Nothing for a pod that has no running container.
fn pod_metrics(pod: &Value, window: &Window) -> Option<Value> {
    let containers: Vec<Value> = window
        .pod(write::text(pod, "/metadata/uid"))
        .into_iter()
        .map(|(name, figures)| json!({"name": name, "usage": quantities(&figures)}))
        .collect();
    let mut metrics = measured("PodMetrics", pod, window);
    metrics["containers"] = json!(containers);
    (!containers.is_empty()).then_some(metrics)
}

fn measured(kind: &str, object: &Value, window: &Window) -> Value {
    let mut metadata = json!({"name": write::name_of(object), "creationTimestamp": window.end()});
    for field in ["namespace", "labels"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    let seconds = format!("{:.3}s", window.seconds());
    json!({"kind": kind, "apiVersion": api_version(), "metadata": metadata, "timestamp": window.end(), "window": seconds})
}

fn quantities(figures: &Figures) -> Value {
    json!({"cpu": format!("{}n", figures.nanocores), "memory": format!("{}Ki", figures.memory / 1024)})
}
