//! Server-side apply: who owns what, and who may change it.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use crate::answers::{Case, Servers, differing, differing_in_turn};
use crate::damage::{apply, damages, walk};
use crate::patches::{JSON_PATCH, MERGE, Target};

pub const APPLY: &str = "application/apply-patch+yaml";

/// Applies every object for good; says how many answers differ.
pub async fn make(servers: &Servers, targets: &[Target]) -> Result<usize> {
    let case = |target: &Target| {
        let path = format!("{}?fieldManager=first&force=true", target.path);
        Case::new(&target.kind, "applied", Method::PATCH, path, &target.object).content(APPLY)
    };
    differing("objects", servers, &targets.iter().map(case).collect::<Vec<_>>()).await
}

/// What is left out. Upstream reads null in a map as the empty value, and makes other numbers of those that are too large; empty
/// maps of metadata only matter to who owns them. Tombolo does not see which variables an expression has, and takes more texts
/// for a duration in rules.
fn is_left_out(target: &Target, spot: &str, what: &str) -> bool {
    let kind = target.object["kind"].as_str().unwrap_or_default();
    let of_metadata = ["/metadata/labels", "/metadata/annotations"].iter().any(|map| spot.starts_with(map));
    match kind {
        _ if what == "null" || what == "huge" => true,
        _ if of_metadata => ["removed", "empty"].contains(&what),
        "ValidatingAdmissionPolicy" => spot.starts_with("/spec/variables/0") || spot.ends_with("/expression"),
        "Plan" => spot == "/spec/window",
        _ => false,
    }
}

/// At every place: given up by its owner, wanted otherwise by somebody else, and damaged.
pub fn add_everywhere(target: &Target, cases: &mut Vec<Case>) {
    let mut spots = Vec::new();
    walk(&target.object, String::new(), &mut spots);
    for spot in spots
        .iter()
        .filter(|spot| !["", "/apiVersion", "/kind", "/metadata/name", "/metadata"].contains(&spot.as_str()))
    {
        let mut add = |what: &str, query: &str, value: Option<Value>| {
            if is_left_out(target, spot, what) {
                return;
            }
            let mut body = target.object.clone();
            apply(&mut body, spot, value);
            cases.push(case(target, format!("apply {spot} {what}"), query, &body));
        };
        let value = target.object.pointer(spot).unwrap_or(&Value::Null);
        for (what, damage) in damages(value) {
            add(what, "&fieldManager=first", damage);
        }
        let other = match value {
            Value::String(text) => json!(format!("{text}x")),
            Value::Number(n) => json!(n.as_i64().unwrap_or_default() + 1),
            Value::Bool(flag) => json!(!flag),
            _ => continue,
        };
        add("wanted otherwise", "&fieldManager=second", Some(other.clone()));
        add("taken", "&fieldManager=second&force=true", Some(other));
    }
}

fn case(target: &Target, what: String, query: &str, body: &Value) -> Case {
    let path = format!("{}?dryRun=All{query}", target.path);
    Case::new(&target.kind, what, Method::PATCH, path, body).content(APPLY)
}

/// Options and bodies that do not depend on the object's content.
pub fn add_general(target: &Target, cases: &mut Vec<Case>) {
    let whole = &target.object;
    for query in [
        "",
        "&fieldManager=",
        "&fieldManager=first",
        "&fieldManager=second",
        "&fieldManager=second&force=false",
        "&fieldManager=second&force=true",
        "&fieldManager=first&fieldValidation=Strict",
        "&fieldManager=first&fieldValidation=Other",
        "&fieldManager=first&dryRun=Some",
    ] {
        cases.push(case(target, format!("apply with {query}"), query, whole));
    }
    let only = |metadata: Value| {
        let mut metadata = metadata;
        metadata["name"] = whole["metadata"]["name"].clone();
        json!({"apiVersion": whole["apiVersion"], "kind": whole["kind"], "metadata": metadata})
    };
    let with = |field: &str, value: Value| {
        let mut body = whole.clone();
        body[field] = value;
        body
    };
    let without = |field: &str| {
        let mut body = whole.clone();
        apply(&mut body, field, None);
        body
    };
    for (what, body) in [
        ("nothing", only(json!({}))),
        ("a label", only(json!({"labels": {"a": "b"}}))),
        ("a label of null", only(json!({"labels": {"a": null}}))),
        ("a label of a number", only(json!({"labels": {"a": 1}}))),
        ("a bad label", only(json!({"labels": {"a": "b c"}}))),
        ("a finalizer", only(json!({"finalizers": ["example.com/a"]}))),
        ("a finalizer twice", only(json!({"finalizers": ["example.com/a", "example.com/a"]}))),
        (
            "an owner",
            only(json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]})),
        ),
        (
            "an owner without an id",
            only(json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]})),
        ),
        ("owners of fields", only(json!({"managedFields": [{"manager": "x"}]}))),
        ("a version", only(json!({"resourceVersion": "1"}))),
        ("an id", only(json!({"uid": "other"}))),
        ("a time of creation", only(json!({"creationTimestamp": "2020-01-01T00:00:00Z"}))),
        ("null for the time of creation", only(json!({"creationTimestamp": null}))),
        ("a generation", only(json!({"generation": 5}))),
        ("unknown metadata", only(json!({"unheard": 1}))),
        ("another namespace", only(json!({"namespace": "other"}))),
        ("an unknown field", with("unheard", json!(1))),
        ("a status", with("status", json!({}))),
        ("no kind", without("/kind")),
        ("no version", without("/apiVersion")),
        ("no name", without("/metadata/name")),
        ("another kind", with("kind", json!("Other"))),
        ("another version", with("apiVersion", json!("other/v1"))),
        ("a list", json!([])),
        ("a text", json!("text")),
        ("null", json!(null)),
        ("metadata of text", with("metadata", json!("text"))),
    ] {
        for manager in ["first", "third"] {
            let query = format!("&fieldManager={manager}");
            cases.push(case(target, format!("{manager} applies {what}"), &query, &body));
        }
    }
    let path = format!("{}?dryRun=All&fieldManager=first", target.path);
    for (what, body) in [
        ("empty", ""),
        ("no YAML", "a: b: c"),
        ("a cut off object", "{\"a\":"),
        ("a key twice", "a: 1\na: 2"),
    ] {
        let case =
            Case::raw(&target.kind, format!("apply of {what}"), Method::PATCH, path.clone(), body.into());
        cases.push(case.content(APPLY));
    }
    let mut missing = whole.clone();
    missing["metadata"]["name"] = json!("missing");
    let parent = target.path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let path = format!("{parent}/missing?dryRun=All&fieldManager=first");
    cases.push(Case::new(&target.kind, "apply of a new one", Method::PATCH, path, &missing).content(APPLY));
}

/// Several managers of one object, one after the other and for good.
pub async fn share(servers: &Servers) -> Result<usize> {
    let mut differ = 0;
    for (kind, path, version, steps) in stories() {
        let name = path.rsplit('/').next().unwrap_or_default();
        let step = |(n, (content, rest, body)): (usize, (&'static str, &str, Value))| {
            let mut body = body;
            if content == APPLY || content == "PUT" {
                body["apiVersion"] = json!(version);
                body["kind"] = json!(kind);
                body["metadata"]["name"] = json!(name);
            }
            if rest.starts_with("/scale") && content == "PUT" {
                body["apiVersion"] = json!("autoscaling/v1");
                body["kind"] = json!("Scale");
            }
            let (sub, query) = rest.split_once('?').unwrap_or((rest, ""));
            let path = format!("{path}{sub}?{query}");
            let what = format!("step {n}: {rest}");
            match content {
                "PUT" => Case::new(kind, what, Method::PUT, path, &body),
                content => Case::new(kind, what, Method::PATCH, path, &body).content(content),
            }
        };
        let cases: Vec<Case> = steps.into_iter().enumerate().map(step).collect();
        differ += differing_in_turn(&format!("the story of a {kind}"), servers, &cases).await?;
    }
    Ok(differ)
}

type Story = (&'static str, &'static str, &'static str, Vec<(&'static str, &'static str, Value)>);

fn stories() -> Vec<Story> {
    let pod =
        |containers: Value| json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": containers}});
    let selector = json!({"matchLabels": {"app": "x"}});
    vec![
        (
            "ConfigMap",
            "/api/v1/namespaces/default/configmaps/shared",
            "v1",
            vec![
                (APPLY, "?fieldManager=a", json!({"data": {"x": "1", "y": "1"}})),
                (APPLY, "?fieldManager=b", json!({"data": {"x": "1", "z": "1"}})),
                (APPLY, "?fieldManager=a", json!({"data": {"y": "1"}})),
                (APPLY, "?fieldManager=b", json!({"data": {"z": "1"}})),
                (APPLY, "?fieldManager=b", json!({"data": {"y": "2", "z": "1"}})),
                (APPLY, "?fieldManager=b&force=true", json!({"data": {"y": "2", "z": "1"}})),
                (APPLY, "?fieldManager=a", json!({"data": {"y": "1"}})),
                ("PUT", "?fieldManager=c", json!({"data": {"y": "3", "q": "1"}})),
                (APPLY, "?fieldManager=a", json!({"data": {"y": "4"}})),
                (APPLY, "?fieldManager=a", json!({"data": {"y": "3"}})),
                (APPLY, "?fieldManager=a", json!({"metadata": {"labels": {"a": "b"}}})),
                (MERGE, "?fieldManager=d", json!({"data": {"y": null, "w": "1"}})),
                (MERGE, "?fieldManager=a", json!({"data": {"w": "2"}})),
                (APPLY, "?fieldManager=a", json!({"data": {"w": "3"}})),
                (
                    JSON_PATCH,
                    "?fieldManager=d",
                    json!([{"op": "add", "path": "/metadata/managedFields", "value": [{}]}]),
                ),
                (APPLY, "?fieldManager=a", json!({"data": {"w": "5"}})),
                (APPLY, "?fieldManager=a&force=true", json!({"data": {"w": "5"}})),
                (MERGE, "?fieldManager=e", json!({"data": null})),
                (APPLY, "?fieldManager=a", json!({"data": {}})),
                (APPLY, "?fieldManager=a", json!({})),
            ],
        ),
        (
            "Deployment",
            "/apis/apps/v1/namespaces/default/deployments/shared",
            "apps/v1",
            vec![
                (
                    APPLY,
                    "?fieldManager=a",
                    json!({"spec": {"replicas": 2, "selector": selector, "template": pod(json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"}]}]))}}),
                ),
                (
                    APPLY,
                    "?fieldManager=b",
                    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "env": [{"name": "B", "value": "1"}]}]}}}}),
                ),
                (
                    APPLY,
                    "?fieldManager=b",
                    json!({"spec": {"template": {"spec": {"containers": [{"name": "d", "image": "j"}, {"name": "c", "image": "k"}]}}}}),
                ),
                (
                    APPLY,
                    "?fieldManager=b",
                    json!({"spec": {"template": {"spec": {"containers": [{"name": "d", "image": "j"}]}}}}),
                ),
                (
                    "PUT",
                    "/scale?fieldManager=s",
                    json!({"metadata": {"namespace": "default"}, "spec": {"replicas": 5}}),
                ),
                (
                    APPLY,
                    "?fieldManager=a",
                    json!({"spec": {"replicas": 2, "selector": selector, "template": pod(json!([{"name": "c", "image": "i"}]))}}),
                ),
                (
                    APPLY,
                    "?fieldManager=a",
                    json!({"spec": {"selector": selector, "template": pod(json!([{"name": "c", "image": "i"}]))}}),
                ),
                (
                    APPLY,
                    "?fieldManager=a&force=true",
                    json!({"spec": {"replicas": 1, "selector": selector, "template": pod(json!([{"name": "c", "image": "i"}]))}}),
                ),
                (MERGE, "/scale?fieldManager=s", json!({"spec": {"replicas": 7}})),
                (
                    APPLY,
                    "/status?fieldManager=t",
                    json!({"status": {"replicas": 3, "conditions": [{"type": "Available", "status": "True"}]}, "spec": {"replicas": 9}}),
                ),
                (APPLY, "/status?fieldManager=u", json!({"status": {"replicas": 4}})),
                (APPLY, "/status?fieldManager=u&force=true", json!({"status": {"replicas": 4}})),
                (APPLY, "/status?fieldManager=t", json!({"status": {}})),
                (
                    MERGE,
                    "/status?fieldManager=a",
                    json!({"status": {"readyReplicas": 1}, "metadata": {"labels": {"x": "y"}}}),
                ),
                (APPLY, "?fieldManager=b", json!({})),
                (APPLY, "?fieldManager=a", json!({})),
            ],
        ),
        (
            "Service",
            "/api/v1/namespaces/default/services/shared",
            "v1",
            vec![
                (
                    APPLY,
                    "?fieldManager=a",
                    json!({"spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 80, "protocol": "TCP", "name": "one"}]}}),
                ),
                (
                    APPLY,
                    "?fieldManager=b",
                    json!({"spec": {"ports": [{"port": 80, "protocol": "UDP", "name": "two"}, {"port": 81, "name": "three"}]}}),
                ),
                (
                    APPLY,
                    "?fieldManager=b",
                    json!({"spec": {"ports": [{"port": 80, "protocol": "UDP", "name": "four"}]}}),
                ),
                (APPLY, "?fieldManager=b", json!({"spec": {"selector": {"a": "c"}}})),
                (APPLY, "?fieldManager=b", json!({"spec": {"selector": {"d": "e"}}})),
                (MERGE, "?fieldManager=c", json!({"spec": {"selector": null}})),
                (
                    APPLY,
                    "?fieldManager=a",
                    json!({"spec": {"ports": [{"port": 80, "protocol": "TCP", "name": "five"}]}}),
                ),
            ],
        ),
        (
            "Widget",
            "/apis/shop.example.com/v1/namespaces/default/widgets/shared",
            "shop.example.com/v1",
            vec![
                (
                    APPLY,
                    "?fieldManager=a",
                    json!({"spec": {"size": 1, "color": "red", "ports": [{"port": 1}], "tags": ["a"], "pair": {"a": "x"}, "settings": {"free": {"a": 1}}, "groups": {"g": {}}}}),
                ),
                (
                    APPLY,
                    "?fieldManager=b",
                    json!({"spec": {"ports": [{"port": 1, "name": "n"}, {"port": 1, "protocol": "UDP"}], "tags": ["b"], "groups": {"g": {"kept": "x"}, "h": {"count": 1}}}}),
                ),
                (APPLY, "?fieldManager=b", json!({"spec": {"pair": {"b": "y"}}})),
                (
                    APPLY,
                    "?fieldManager=b&force=true",
                    json!({"spec": {"pair": {"b": "y"}, "settings": {"free": {"b": 2}}}}),
                ),
                (APPLY, "?fieldManager=a", json!({"spec": {"size": 2, "color": "red", "tags": ["a"]}})),
                (APPLY, "?fieldManager=a", json!({"spec": {"size": 2, "color": "red", "replicas": 5}})),
                (
                    APPLY,
                    "/status?fieldManager=t",
                    json!({"status": {"phase": "Ready", "conditions": [{"type": "A", "status": "True"}]}}),
                ),
                (
                    APPLY,
                    "/status?fieldManager=u",
                    json!({"status": {"conditions": [{"type": "A", "status": "False"}, {"type": "B", "status": "True"}]}}),
                ),
                (
                    APPLY,
                    "?fieldManager=a",
                    json!({"status": {"phase": "New"}, "spec": {"size": 2, "color": "blue"}}),
                ),
                (MERGE, "?fieldManager=c", json!({"spec": {"tags": null}})),
                (APPLY, "?fieldManager=b", json!({"spec": {}})),
            ],
        ),
    ]
}
