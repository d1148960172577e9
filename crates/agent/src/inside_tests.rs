use super::*;
use std::sync::Arc;

use http::{Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tombolo_api::{Tombstone, WorkSpec};

use crate::owners::Owner;
use crate::remove::Removed;

const HUB: &str = "h";

/// API version, kind, plural, and whether it is in namespaces.
const KINDS: [(&str, &str, &str, bool); 11] = [
    ("v1", "Namespace", "namespaces", false),
    ("v1", "Node", "nodes", false),
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "ServiceAccount", "serviceaccounts", true),
    ("v1", "Pod", "pods", true),
    ("v1", "Event", "events", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("apps/v1", "ReplicaSet", "replicasets", true),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false),
    ("sea.example.com/v1", "Ship", "ships", true),
    // Its group prefers another version, in which it is not.
    ("sea.example.com/v1alpha1", "Raft", "rafts", true),
];

/// A site that has these objects.
#[derive(Clone)]
pub struct Pretend {
    objects: Vec<Value>,
    /// What is changed or deleted.
    done: Arc<Mutex<Vec<String>>>,
    /// Plurals, and the answer to whoever lists them.
    fails: Vec<(&'static str, u16)>,
}

impl Pretend {
    pub fn new(objects: &[Value]) -> Self {
        Self { objects: objects.to_vec(), done: Arc::default(), fails: Vec::new() }
    }

    fn failing(&self, plural: &'static str, code: u16) -> Self {
        Self { fails: vec![(plural, code)], ..self.clone() }
    }

    fn client(&self) -> Client {
        let site = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (code, answer) = site.answer(request.method().as_str(), request.uri().path());
            async move { Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())) }
        });
        Client::new(service, "d")
    }

    pub fn applier(&self) -> Applier {
        Applier::new(self.client(), self.client(), HUB)
    }

    pub fn done(&self) -> Vec<String> {
        self.done.lock().clone()
    }

    fn answer(&self, method: &str, path: &str) -> (u16, Value) {
        let said = |version: &str| json!({"groupVersion": version, "version": version.rsplit('/').next()});
        if path == "/apis" {
            let group = |name: &str, versions: &[&str]| {
                let versions: Vec<Value> = versions.iter().map(|version| said(version)).collect();
                json!({"name": name, "preferredVersion": versions[0], "versions": versions})
            };
            let groups = [
                group("apps", &["apps/v1"]),
                group("apiextensions.k8s.io", &["apiextensions.k8s.io/v1"]),
                group("sea.example.com", &["sea.example.com/v1", "sea.example.com/v1alpha1"]),
            ];
            return (200, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}));
        }
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ((*version).to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => panic!("{path}"),
        };
        if rest.is_empty() {
            let resource = |(_, kind, plural, namespaced): &(_, &str, &str, bool)| {
                json!({"name": plural, "singularName": "", "kind": kind, "namespaced": namespaced,
                    "verbs": ["get", "list", "delete", "patch"]})
            };
            let resources: Vec<Value> = KINDS.iter().filter(|k| k.0 == version).map(resource).collect();
            return (
                200,
                json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources}),
            );
        }
        let (namespace, plural, name) = match rest {
            ["namespaces", namespace, plural, name @ ..] => (Some(*namespace), *plural, name.first()),
            [plural, name @ ..] => (None, *plural, name.first()),
            [] => panic!("{path}"),
        };
        let failure = |code: u16| {
            (
                code,
                json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": ""}),
            )
        };
        if let Some((_, code)) = self.fails.iter().find(|(fails, _)| *fails == plural) {
            return failure(*code);
        }
        let Some((_, kind, ..)) = KINDS.iter().find(|k| k.0 == version && k.2 == plural) else {
            return failure(404);
        };
        let there = |object: &&Value| {
            object["apiVersion"] == json!(version)
                && object["kind"] == json!(kind)
                && namespace.is_none_or(|n| object["metadata"]["namespace"] == json!(n))
                && name.is_none_or(|n| object["metadata"]["name"] == json!(n))
        };
        let found: Vec<Value> = self.objects.iter().filter(there).cloned().collect();
        match (method, name) {
            ("GET", None) => (200, json!({"kind": "List", "metadata": {}, "items": found})),
            (_, None) => panic!("{method} {path}"),
            _ if found.is_empty() => failure(404),
            ("GET", Some(_)) => (200, found[0].clone()),
            (change, Some(name)) => {
                self.done.lock().push(format!("{change} {kind}/{name}"));
                let deleted = json!({"kind": "Status", "status": "Success"});
                (200, if change == "DELETE" { deleted } else { found[0].clone() })
            }
        }
    }
}

fn owner(hub: &str, work: &str) -> Owner {
    Owner { hub: hub.into(), work: work.into(), uid: "1".into() }
}

pub fn object(kind: &str, name: &str) -> Value {
    let (version, _, _, namespaced) = KINDS.iter().find(|k| k.1 == kind).expect("a kind");
    let mut object = json!({"apiVersion": version, "kind": kind,
        "metadata": {"name": name, "uid": format!("{kind}-{name}"), "resourceVersion": "2"}});
    if *namespaced {
        object["metadata"]["namespace"] = json!("shop");
    }
    object
}

fn made_by(hub: &str, mut object: Value) -> Value {
    let owner = owner(hub, "a");
    object["metadata"]["annotations"] = json!({owner.key(): owner.value()});
    object["metadata"]["labels"] = json!({names::HUB_LABEL: names::hub_label(hub)});
    object
}

fn adopted(object: Value) -> Value {
    let mut object = made_by(HUB, object);
    object["metadata"]["annotations"][names::ADOPTED_ANNOTATION] = json!("true");
    object
}

fn owned(by: &Value, mut object: Value) -> Value {
    let reference = json!({"apiVersion": by["apiVersion"], "kind": by["kind"],
        "name": by["metadata"]["name"], "uid": by["metadata"]["uid"]});
    object["metadata"]["ownerReferences"] = json!([reference]);
    object
}

pub fn space() -> Value {
    made_by(HUB, object("Namespace", "shop"))
}

pub fn definition(kind: &str, served: bool) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let mut definition =
        made_by(HUB, object("CustomResourceDefinition", &format!("{plural}.sea.example.com")));
    definition["spec"] = json!({"group": "sea.example.com", "scope": "Namespaced",
        "names": {"kind": kind, "plural": plural}, "versions": [{"name": "v1", "served": served, "storage": true}]});
    definition
}

/// What a tombstone for `root` does at a site that has it and these objects, and has seen it as it is.
async fn buried_at(site: &Pretend, root: &Value) -> Result<Removed, Refusal> {
    let spec = WorkSpec { object: root.clone(), ..Default::default() };
    let tombstone = Tombstone { hub: HUB.into(), epoch: 1, ..Default::default() };
    let applier = site.applier();
    let metadata = serde_json::from_value(root["metadata"].clone()).expect("metadata");
    let seen = applier.sight(&metadata);
    applier.remove(&owner(HUB, "a"), &spec, &tombstone, 1, &|_| Some(seen.clone())).await
}

async fn buried(root: &Value, others: &[Value]) -> (Removed, Vec<String>) {
    let site = Pretend::new(&[std::slice::from_ref(root), others].concat());
    let removed = buried_at(&site, root).await.expect("no refusal");
    (removed, site.done())
}

async fn stays(root: &Value, inside: &[Value], other: &str) {
    let (removed, done) = buried(root, inside).await;
    let key = Key::of(root).expect("a key");
    assert_eq!(removed, Removed::Kept(format!("{key} stays: {other} in it is not this hub's")));
    assert_eq!(done, [format!("PATCH {key}")], "only our name is taken off");
}

async fn goes(root: &Value, inside: &[Value]) {
    let (removed, done) = buried(root, inside).await;
    let key = Key::of(root).expect("a key");
    assert_eq!((removed, done), (Removed::Gone, vec![format!("DELETE {key}")]), "{inside:?}");
}

#[tokio::test]
async fn a_namespace_in_which_others_have_something_is_let_go() {
    stays(&space(), &[object("ConfigMap", "theirs")], "ConfigMap/theirs").await;
    stays(&space(), &[object("Raft", "theirs")], "Raft/theirs").await;
    stays(&space(), &[made_by("other", object("ConfigMap", "theirs"))], "ConfigMap/theirs").await;
    stays(&space(), &[adopted(object("ConfigMap", "before"))], "ConfigMap/before").await;
    let theirs = object("Deployment", "theirs");
    let replicas = owned(&theirs, object("ReplicaSet", "theirs-1"));
    let inside = [owned(&replicas, object("Pod", "theirs-1-2")), replicas, theirs];
    stays(&space(), &inside, "Deployment/theirs").await;
    let node = object("Node", "n1");
    stays(&space(), &[owned(&node, object("Pod", "static")), node], "Node/n1").await;
}

#[tokio::test]
async fn a_namespace_goes_with_what_the_hub_made_in_it_and_what_came_of_that() {
    goes(&space(), &[]).await;
    let ours = made_by(HUB, object("Deployment", "web"));
    let replicas = owned(&ours, object("ReplicaSet", "web-1"));
    let mut leaving = object("ConfigMap", "leaving");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut mirror = object("Pod", "web-1-2.below");
    mirror["metadata"]["labels"] = json!({names::MIRROR_LABEL: "deployment-web-1"});
    let inside = [
        owned(&replicas, object("Pod", "web-1-2")),
        replicas,
        ours,
        object("ServiceAccount", "default"),
        object("Event", "started"),
        leaving,
        mirror,
        owned(&object("Deployment", "gone"), object("ReplicaSet", "gone-1")),
    ];
    goes(&space(), &inside).await;
}

#[tokio::test]
async fn a_definition_goes_with_the_resources_of_the_hub_and_stays_with_those_of_others() {
    let ships = definition("Ship", true);
    goes(&ships, &[]).await;
    let ours = made_by(HUB, object("Ship", "ours"));
    let deployment = made_by(HUB, object("Deployment", "yard"));
    goes(&ships, &[owned(&ours, object("Ship", "boat")), ours, object("ConfigMap", "theirs")]).await;
    goes(&ships, &[owned(&deployment, object("Ship", "built")), deployment]).await;
    stays(&ships, &[object("Ship", "theirs")], "Ship/theirs").await;
    stays(&ships, &[adopted(object("Ship", "before"))], "Ship/before").await;
    let theirs = object("Deployment", "theirs");
    stays(&ships, &[owned(&theirs, object("Ship", "theirs-1")), theirs], "Deployment/theirs").await;
    stays(&definition("Ship", false), &[], "ships that cannot be seen").await;
}

#[tokio::test]
async fn what_is_being_deleted_already_is_not_looked_into() {
    let mut space = space();
    space["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    goes(&space, &[object("ConfigMap", "theirs")]).await;
}

#[tokio::test]
async fn what_the_agent_may_not_see_is_looked_at_as_the_hub_and_else_may_be_somebody_s() {
    let site = Pretend::new(&[space()]);
    let blind = site.failing("configmaps", 403);
    let removed = buried_at(&blind, &space()).await.expect("no refusal");
    assert!(matches!(&removed, Removed::Kept(why) if why.contains("configmaps that cannot be seen")));
    let applier = Applier::new(blind.client(), site.client(), HUB);
    let key = Key::of(&space()).expect("a key");
    assert_eq!(others_in(&applier, &key).await.expect("no refusal"), None);
    // A site that does not answer is asked again later.
    let broken = Pretend::new(&[space()]).failing("configmaps", 500);
    assert!(buried_at(&broken, &space()).await.is_err());
    assert!(broken.done().is_empty());
}

fn content_of(kind: &str, metadata: Value) -> Content {
    let metadata: ObjectMeta = serde_json::from_value(metadata).expect("metadata");
    let key = Key {
        api_version: "v1".into(),
        kind: kind.into(),
        namespace: "shop".into(),
        name: metadata.name.clone().unwrap_or_default(),
    };
    counts_as(&key, &metadata)
}

#[test]
fn a_namespace_is_empty_when_nothing_of_anybody_s_own_is_in_it() {
    assert_eq!(content_of("ServiceAccount", json!({"name": "default"})), Content::Nothing);
    assert_eq!(content_of("ConfigMap", json!({"name": "kube-root-ca.crt"})), Content::Nothing);
    assert_eq!(content_of("ConfigMap", json!({"name": "mine"})), Content::Others);
    let leaving = json!({"name": "web-1", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert_eq!(content_of("Pod", leaving), Content::Nothing);
    let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "1"});
    assert_eq!(
        content_of("ReplicaSet", json!({"name": "web-1", "ownerReferences": [owner]})),
        Content::Remains
    );
}
