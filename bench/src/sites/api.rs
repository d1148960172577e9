//! A site's API in memory: as much of Kubernetes as the agent asks for. A Deployment that is applied here runs at once.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tombolo_api::names;

type Answer = UnsyncBoxBody<Bytes, Infallible>;
/// Events a watcher has not read yet; it is a few objects' worth, and a watcher that is slower is cut off and lists anew.
const BACKLOG: usize = 1024;

/// Cheap to clone; one per site.
#[derive(Clone, Default)]
pub struct SiteApi {
    inner: Arc<Mutex<Inner>>,
}

/// By collection (`/apis/apps/v1/deployments`), then by `namespace/name`.
pub type Objects = HashMap<String, BTreeMap<String, Value>>;

const DEPLOYMENTS: &str = "/apis/apps/v1/deployments";

#[derive(Default)]
struct Inner {
    revision: u64,
    objects: Objects,
    /// The mark and the first variable's value of each Deployment: they are asked for many times a second.
    told: HashMap<String, (Value, Value)>,
    watchers: HashMap<String, Vec<mpsc::Sender<Bytes>>>,
}

/// The label by which a bench tells versions of a placement apart.
pub const MARK: &str = "bench.tombolo.dev/mark";

/// A path of the API: the collection, and the object in it if one is meant.
struct Place {
    collection: String,
    namespace: String,
    name: Option<String>,
}

impl Place {
    fn of(path: &str) -> Option<Self> {
        let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let prefix = if parts.first() == Some(&"api") { 2 } else { 3 };
        if parts.len() <= prefix {
            return None;
        }
        let rest = parts.split_off(prefix);
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => {
                ((*namespace).to_owned(), rest.to_vec())
            }
            _ => (String::new(), rest),
        };
        let collection = format!("/{}/{}", parts.join("/"), rest.first()?);
        Some(Self { collection, namespace, name: rest.get(1).map(|n| (*n).to_owned()) })
    }

    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name.as_deref().unwrap_or_default())
    }
}

impl SiteApi {
    /// With one node that has room for a lot.
    pub fn new() -> Self {
        let this = Self::default();
        let room = json!({"cpu": "64", "memory": "256Gi", "pods": "1000"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {},
            "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}});
        this.inner.lock().put("/api/v1/nodes", "/n1", node);
        this
    }

    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    /// Deployments whose pods have this mark.
    pub fn marked(&self, mark: &str) -> usize {
        self.inner.lock().told.values().filter(|(m, _)| m == mark).count()
    }

    /// Deployments whose first variable has this value.
    pub fn valued(&self, value: &str) -> usize {
        self.inner.lock().told.values().filter(|(_, v)| v == value).count()
    }

    pub fn has_any(&self, collection: &str) -> bool {
        self.inner.lock().objects.get(collection).is_some_and(|objects| !objects.is_empty())
    }

    /// Everything, for keeping it over a restart.
    pub fn dump(&self) -> Objects {
        self.inner.lock().objects.clone()
    }

    pub fn restore(&self, objects: Objects) {
        let mut inner = self.inner.lock();
        for (collection, objects) in objects {
            for (key, object) in objects {
                inner.put(&collection, &key, object);
            }
        }
    }

    fn answer(&self, method: &Method, path: &str, query: &str, body: &[u8]) -> Response<Answer> {
        if path == "/version" {
            return found(
                &json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0-bench", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            );
        }
        let Some(place) = Place::of(path) else { return missing() };
        let mut inner = self.inner.lock();
        let object = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap_or_default();
        match (method, &place.name) {
            (&Method::GET, None) if query.contains("watch=") => inner.watch(&place.collection),
            (&Method::GET, None) => found(&inner.list(&place.collection)),
            (&Method::GET, Some(_)) => match inner.get(&place) {
                Some(object) => found(object),
                None => missing(),
            },
            (&Method::POST, None) => {
                let object = object(body);
                let name = object["metadata"]["name"].as_str().map(str::to_owned);
                let place = Place { name, ..place };
                found(&inner.apply(&place, object))
            }
            (&Method::PATCH | &Method::PUT, Some(_)) => found(&inner.apply(&place, object(body))),
            (&Method::DELETE, Some(_)) => match inner.delete(&place) {
                Some(object) => found(&object),
                None => missing(),
            },
            _ => missing(),
        }
    }
}

impl Inner {
    fn get(&self, place: &Place) -> Option<&Value> {
        self.objects.get(&place.collection)?.get(&place.key())
    }

    fn list(&self, collection: &str) -> Value {
        let items: Vec<&Value> =
            self.objects.get(collection).into_iter().flat_map(BTreeMap::values).collect();
        json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": self.revision.to_string()}, "items": items})
    }

    /// Stores and tells the watchers.
    fn put(&mut self, collection: &str, key: &str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("{collection}-{key}-{}", self.revision));
            object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        if collection == DEPLOYMENTS {
            let template = &object["spec"]["template"];
            let mark = template["metadata"]["labels"][MARK].clone();
            let value = template["spec"]["containers"][0]["env"][0]["value"].clone();
            self.told.insert(key.to_owned(), (mark, value));
        }
        let old =
            self.objects.entry(collection.to_owned()).or_default().insert(key.to_owned(), object.clone());
        self.tell(collection, if old.is_some() { "MODIFIED" } else { "ADDED" }, &object);
        object
    }

    fn tell(&mut self, collection: &str, kind: &str, object: &Value) {
        let Some(watchers) = self.watchers.get_mut(collection) else { return };
        let mut line = serde_json::to_vec(&json!({"type": kind, "object": object})).unwrap_or_default();
        line.push(b'\n');
        let line = Bytes::from(line);
        watchers.retain(|watcher| watcher.try_send(line.clone()).is_ok());
    }

    fn watch(&mut self, collection: &str) -> Response<Answer> {
        let (sender, mut receiver) = mpsc::channel::<Bytes>(BACKLOG);
        self.watchers.entry(collection.to_owned()).or_default().push(sender);
        let frames = futures::stream::poll_fn(move |cx| {
            receiver.poll_recv(cx).map(|line| line.map(|line| Ok::<_, Infallible>(Frame::data(line))))
        });
        Response::new(StreamBody::new(frames).boxed_unsync())
    }

    fn apply(&mut self, place: &Place, mut object: Value) -> Value {
        let old = self.get(place).cloned();
        for field in ["uid", "creationTimestamp"] {
            if let Some(old) = &old {
                object["metadata"][field] = old["metadata"][field].clone();
            }
        }
        if !place.namespace.is_empty() {
            object["metadata"]["namespace"] = json!(place.namespace);
        }
        let generation = old.as_ref().map_or(0, |o| o["metadata"]["generation"].as_i64().unwrap_or(0));
        let changed = old.as_ref().is_none_or(|o| o["spec"] != object["spec"]);
        object["metadata"]["generation"] = json!(generation + i64::from(changed));
        if place.collection == DEPLOYMENTS {
            self.run(place, &mut object);
        }
        self.put(&place.collection, &place.key(), object)
    }

    /// All replicas are there and ready at once.
    fn run(&mut self, place: &Place, object: &mut Value) {
        let replicas = object["spec"]["replicas"].as_i64().unwrap_or(1);
        object["status"] = json!({"observedGeneration": object["metadata"]["generation"], "replicas": replicas,
            "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
            "conditions": [{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z"}]});
        let template = &object["spec"]["template"];
        for n in 0..replicas {
            let name = format!("{}-{n}", place.name.as_deref().unwrap_or_default());
            let key = format!("{}/{name}", place.namespace);
            let there = self.objects.get("/api/v1/pods").is_some_and(|pods| pods.contains_key(&key));
            if there || template["metadata"]["labels"].get(names::WORK_LABEL).is_none() {
                continue;
            }
            let mut pod = template.clone();
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
            pod["metadata"]["name"] = json!(name);
            pod["metadata"]["namespace"] = json!(place.namespace);
            pod["spec"]["nodeName"] = json!("n1");
            pod["status"] = json!({"phase": "Running", "podIP": "10.1.2.3", "hostIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "main", "ready": true, "restartCount": 0, "state": {"running": {}}, "image": "", "imageID": ""}]});
            self.put("/api/v1/pods", &key, pod);
        }
    }

    fn delete(&mut self, place: &Place) -> Option<Value> {
        let object = self.objects.get_mut(&place.collection)?.remove(&place.key())?;
        self.revision += 1;
        self.tell(&place.collection, "DELETED", &object);
        if place.collection == DEPLOYMENTS {
            self.told.remove(&place.key());
            let prefix = format!("{}-", place.key());
            let pods = self.objects.get_mut("/api/v1/pods");
            let gone: Vec<String> =
                pods.iter().flat_map(|p| p.keys()).filter(|k| k.starts_with(&prefix)).cloned().collect();
            for key in gone {
                if let Some(pod) = self.objects.get_mut("/api/v1/pods").and_then(|pods| pods.remove(&key)) {
                    self.tell("/api/v1/pods", "DELETED", &pod);
                }
            }
        }
        Some(object)
    }
}

fn found(object: &Value) -> Response<Answer> {
    let body = serde_json::to_vec(object).unwrap_or_default();
    Response::new(Full::new(Bytes::from(body)).boxed_unsync())
}

fn missing() -> Response<Answer> {
    let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not here"});
    let mut response = found(&status);
    *response.status_mut() = http::StatusCode::NOT_FOUND;
    response
}

impl tower_service::Service<Request<Body>> for SiteApi {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
            let query = parts.uri.query().unwrap_or_default();
            Ok(this.answer(&parts.method, parts.uri.path(), query, &body))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Node;
    use kube::api::{Api, DynamicObject, Patch, PatchParams};
    use kube::core::{ApiResource, GroupVersionKind};

    #[tokio::test]
    async fn a_deployment_that_is_applied_runs_and_keeps_its_identity() {
        let site = SiteApi::new();
        let client = site.client();
        assert_eq!(
            Api::<Node>::all(client.clone()).list(&Default::default()).await.expect("nodes").items.len(),
            1
        );
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment"));
        let api: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
        assert!(api.get_opt("web").await.expect("an answer").is_none());
        let web = |mark: &str| {
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": 1, "template": {"metadata": {"labels": {MARK: mark}}, "spec": {"containers": []}}}})
        };
        let params = PatchParams::apply("bench");
        let first = api.patch("web", &params, &Patch::Apply(web("a"))).await.expect("applied");
        let second = api.patch("web", &params, &Patch::Apply(web("b"))).await.expect("applied");
        assert_eq!(first.metadata.uid, second.metadata.uid);
        assert_eq!(second.metadata.generation, Some(2));
        assert_eq!(second.data["status"]["readyReplicas"], 1);
        assert_eq!((site.marked("a"), site.marked("b")), (0, 1));
    }
}
