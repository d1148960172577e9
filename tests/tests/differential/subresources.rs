//! What hangs below objects: status, scale, and the wrong ones.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};

use crate::answers::{Case, JSON, Servers, send};
use crate::applies::APPLY;
use crate::damage::{apply, damages, walk};
use crate::patches::{JSON_PATCH, MERGE, STRATEGIC, Target};

/// Who owns addresses that are written twice, resources that are taken from elsewhere, and a counter in an annotation, is told
/// differently.
fn is_left_out(kind: &str, what: &str) -> bool {
    match kind {
        "Pod" => {
            let compared = ["status /podIP odd text", "status /podIPs doubled"];
            what.starts_with("status /podIP") && !compared.contains(&what)
        }
        "Node" => what.starts_with("status /allocatable"),
        "DaemonSet" => what.starts_with("status with annotations"),
        _ => false,
    }
}

/// Writes of the status: what else comes along is not heard, or is wrong.
pub async fn add_statuses(servers: &Servers, target: &Target, cases: &mut Vec<Case>) -> Result<()> {
    let statuses: BTreeMap<String, Value> = serde_yaml_ng::from_str(include_str!("statuses.yaml"))?;
    let kind = target.object["kind"].as_str().unwrap_or_default();
    let Some(status) = statuses.get(kind) else { return Ok(()) };
    let path = format!("{}/status?dryRun=All", target.path);
    let mut live = Vec::new();
    for server in servers {
        live.push(send(server, Method::GET, &target.path, &Value::Null).await?.1);
    }
    let mut put = |what: String, change: &dyn Fn(&mut Value)| {
        if is_left_out(kind, &what) {
            return;
        }
        let body = |live: &Value| {
            let mut body = live.clone();
            change(&mut body);
            body.to_string().into_bytes()
        };
        let (kind, path, bodies) = (target.kind.clone(), path.clone(), [body(&live[0]), body(&live[1])]);
        cases.push(Case { kind, what, method: Method::PUT, path, content: JSON, bodies, owners: true });
    };
    put("status as it is".into(), &|_| {});
    put("status".into(), &|body| body["status"] = status.clone());
    put("status and spec".into(), &|body| {
        body["status"] = status.clone();
        apply(body, "/spec", None);
    });
    put("status removed".into(), &|body| apply(body, "/status", None));
    for (field, value) in [
        ("labels", json!({"a": "b"})),
        ("annotations", json!({"a": "b"})),
        ("finalizers", json!(["example.com/a"])),
        ("ownerReferences", json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}])),
        ("resourceVersion", json!("1")),
        ("resourceVersion", json!("")),
        ("uid", json!("other")),
        ("name", json!("other")),
        ("labels", json!({"a": "b c"})),
        ("managedFields", json!([])),
    ] {
        put(format!("status with {field} {value}"), &|body| {
            body["status"] = status.clone();
            body["metadata"][field] = value.clone();
        });
    }
    let mut spots = Vec::new();
    walk(status, String::new(), &mut spots);
    for spot in &spots {
        for (what, damage) in damages(status.pointer(spot).unwrap_or(&Value::Null)) {
            put(format!("status {spot} {what}"), &|body| {
                body["status"] = status.clone();
                apply(body, &format!("/status{spot}"), damage.clone());
            });
        }
    }
    let mut patch = |what: &str, content: &'static str, body: Value| {
        let path =
            format!("{path}&fieldManager=somebody{}", if content == APPLY { "&force=true" } else { "" });
        let case = Case::new(&target.kind, format!("status {what}"), Method::PATCH, path, &body);
        cases.push(case.content(content));
    };
    let both = json!({"status": status, "spec": {"unheard": 1}, "metadata": {"labels": {"a": "b"}}});
    patch("merged", MERGE, json!({"status": status}));
    patch("merged with more", MERGE, both.clone());
    patch("merged away", MERGE, json!({"status": null}));
    patch("nothing", MERGE, json!({}));
    patch("replaced", JSON_PATCH, json!([{"op": "add", "path": "/status", "value": status}]));
    patch("strategic", STRATEGIC, json!({"status": status}));
    patch("strategic with more", STRATEGIC, both);
    let own = json!({"apiVersion": target.object["apiVersion"], "kind": kind, "metadata": {"name": target.object["metadata"]["name"]}});
    let with = |field: &str, value: &Value| {
        let mut body = own.clone();
        body[field] = value.clone();
        body
    };
    patch("applied", APPLY, with("status", status));
    patch("applied as nothing", APPLY, own.clone());
    patch("applied as a spec", APPLY, with("spec", &target.object["spec"]));
    patch("applied as something else", APPLY, with("status", &json!({"unheard": 1})));
    Ok(())
}

/// Kinds that have a scale.
pub const SCALED: &[&str] = &["Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "Widget"];

pub async fn add_scales(servers: &Servers, target: &Target, cases: &mut Vec<Case>) -> Result<()> {
    let path = format!("{}/scale", target.path);
    let name = target.object["metadata"]["name"].as_str().context("no name")?;
    cases.push(Case::raw(&target.kind, "scale read", Method::GET, path.clone(), Vec::new()));
    let mut versions = Vec::new();
    for server in servers {
        let (_, scale) = send(server, Method::GET, &path, &Value::Null).await?;
        versions.push(scale["metadata"]["resourceVersion"].clone());
    }
    let path = format!("{path}?dryRun=All");
    let whole = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 4}, "status": {"replicas": 9, "selector": "x=y"}});
    let mut spots = vec![String::new()];
    walk(&whole, String::new(), &mut spots);
    for spot in &spots {
        for (what, damage) in damages(whole.pointer(spot).unwrap_or(&Value::Null)) {
            let mut body = whole.clone();
            apply(&mut body, spot, damage);
            cases.push(Case::new(
                &target.kind,
                format!("scale {spot} {what}"),
                Method::PUT,
                path.clone(),
                &body,
            ));
        }
    }
    for (what, right) in [("its version", true), ("another version", false)] {
        let body = |version: &Value| {
            let mut body = whole.clone();
            body["metadata"]["resourceVersion"] = if right { version.clone() } else { json!("1") };
            body.to_string().into_bytes()
        };
        let (kind, what, bodies) =
            (target.kind.clone(), format!("scale of {what}"), [body(&versions[0]), body(&versions[1])]);
        cases.push(Case {
            kind,
            what,
            method: Method::PUT,
            path: path.clone(),
            content: JSON,
            bodies,
            owners: true,
        });
    }
    let own = |spec: Value| {
        let metadata = json!({"name": name, "namespace": "default"});
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": spec})
    };
    let mut unknown = own(json!({"replicas": 4}));
    unknown["unheard"] = json!(1);
    for (what, query, content, body) in [
        ("merged", "", MERGE, json!({"spec": {"replicas": 4}})),
        ("merged to none", "", MERGE, json!({"spec": {"replicas": 0}})),
        ("merged away", "", MERGE, json!({"spec": {"replicas": null}})),
        ("negative", "", MERGE, json!({"spec": {"replicas": -1}})),
        ("a text", "", MERGE, json!({"spec": {"replicas": "4"}})),
        ("huge", "", MERGE, json!({"spec": {"replicas": 3_000_000_000_i64}})),
        ("unknown", "&fieldValidation=Strict", MERGE, json!({"unheard": 1})),
        ("unknown, ignored", "&fieldValidation=Ignore", MERGE, json!({"unheard": 1})),
        ("status", "", MERGE, json!({"status": {"replicas": 9}})),
        ("version", "", MERGE, json!({"metadata": {"resourceVersion": "1"}})),
        ("name", "", MERGE, json!({"metadata": {"name": "other"}})),
        ("strategic", "", STRATEGIC, json!({"spec": {"replicas": 4}})),
        ("strategic unknown", "", STRATEGIC, json!({"spec": {"unheard": 4}})),
        ("json", "", JSON_PATCH, json!([{"op": "replace", "path": "/spec/replicas", "value": 4}])),
        ("json test", "", JSON_PATCH, json!([{"op": "test", "path": "/spec/replicas", "value": 99}])),
        ("json removed", "", JSON_PATCH, json!([{"op": "remove", "path": "/spec"}])),
        ("applied", "&fieldManager=third", APPLY, own(json!({"replicas": 4}))),
        ("applied by force", "&fieldManager=third&force=true", APPLY, own(json!({"replicas": 4}))),
        ("applied by its owner", "&fieldManager=first", APPLY, own(json!({"replicas": 4}))),
        (
            "applied as it is",
            "&fieldManager=third",
            APPLY,
            own(json!({"replicas": target.object["spec"]["replicas"]})),
        ),
        ("applied as nothing", "&fieldManager=third", APPLY, own(json!({}))),
        ("applied without a manager", "", APPLY, own(json!({"replicas": 4}))),
        ("applied with more", "&fieldManager=third", APPLY, unknown),
        ("applied as a text", "&fieldManager=third", APPLY, own(json!({"replicas": "4"}))),
        ("applied as another kind", "&fieldManager=third", APPLY, json!({"apiVersion": "v1", "kind": "Pod"})),
        ("sent plainly", "", JSON, own(json!({"replicas": 4}))),
    ] {
        // Upstream fails to apply the scale of custom kinds.
        if content == APPLY && target.custom {
            continue;
        }
        let path = format!("{path}{query}");
        cases.push(
            Case::new(&target.kind, format!("scale {what}"), Method::PATCH, path, &body).content(content),
        );
    }
    Ok(())
}

/// Methods and subresources that are not, of every kind.
pub fn add_wrong(target: &Target, cases: &mut Vec<Case>) {
    for sub in [
        "status",
        "scale",
        "eviction",
        "binding",
        "token",
        "approval",
        "log",
        "finalize",
        "resize",
        "nothing",
        "status/more",
    ] {
        // Upstream does not look at what follows the status of custom kinds.
        if sub == "status/more" && target.custom {
            continue;
        }
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let path = format!("{}/{sub}?dryRun=All", target.path);
            let content = if method == Method::PATCH { MERGE } else { JSON };
            let case = Case::new(&target.kind, format!("{method} {sub}"), method, path, &json!({}));
            cases.push(case.content(content));
        }
    }
}

/// What only certain kinds have.
pub fn add_certain(cases: &mut Vec<Case>) {
    let pod = "/api/v1/namespaces/default/pods/sample";
    let eviction = |more: Value| {
        let mut body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "sample", "namespace": "default"}});
        body["deleteOptions"] = more;
        body
    };
    let binding = |target: Value| json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "sample"}, "target": target});
    let token =
        |spec: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let account = "/api/v1/namespaces/default/serviceaccounts/sample";
    for (what, path, body) in [
        ("evicted", format!("{pod}/eviction?dryRun=All"), eviction(json!({}))),
        ("evicted in options", format!("{pod}/eviction"), eviction(json!({"dryRun": ["All"]}))),
        (
            "evicted at another id",
            format!("{pod}/eviction?dryRun=All"),
            eviction(json!({"preconditions": {"uid": "other"}})),
        ),
        (
            "evicted under another name",
            "/api/v1/namespaces/default/pods/other/eviction?dryRun=All".into(),
            eviction(json!({})),
        ),
        (
            "evicted as another kind",
            format!("{pod}/eviction?dryRun=All"),
            json!({"apiVersion": "v1", "kind": "Pod"}),
        ),
        ("bound", format!("{pod}/binding?dryRun=All"), binding(json!({"kind": "Node", "name": "n"}))),
        ("bound to nothing", format!("{pod}/binding?dryRun=All"), binding(json!({}))),
        ("bound to a pod", format!("{pod}/binding?dryRun=All"), binding(json!({"kind": "Pod", "name": "n"}))),
        ("bound nowhere", format!("{pod}/binding?dryRun=All"), binding(json!({"kind": "Node"}))),
        (
            "token for too short",
            format!("{account}/token?dryRun=All"),
            token(json!({"expirationSeconds": 5})),
        ),
        (
            "token for too long",
            format!("{account}/token?dryRun=All"),
            token(json!({"expirationSeconds": 5_000_000_000_i64})),
        ),
        (
            "token for a missing pod",
            format!("{account}/token?dryRun=All"),
            token(json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "missing"}})),
        ),
        (
            "token for a service",
            format!("{account}/token?dryRun=All"),
            token(json!({"boundObjectRef": {"kind": "Service", "apiVersion": "v1", "name": "x"}})),
        ),
        (
            "token of nobody",
            "/api/v1/namespaces/default/serviceaccounts/missing/token?dryRun=All".into(),
            token(json!({})),
        ),
    ] {
        cases.push(Case::new("what only some have", what, Method::POST, path, &body));
    }
}
