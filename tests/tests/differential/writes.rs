//! Creates and updates.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use serde_json::{Value, json};

use crate::answers::{Case, JSON, PROTOBUF, Servers, as_protobuf, send};
use crate::corpus::{Places, kind_and_place};
use crate::damage::damaged;

/// Here only who owns the field is told differently, and nobody minds: a port that is there twice, raw data that is empty,
/// and lists that are always written, where an empty one is as good as none.
const OTHERWISE_OWNED: &[(&str, &[&str])] = &[
    ("Deployment", &["/spec/template/spec/containers/0/ports doubled"]),
    ("ControllerRevision", &["/data empty", "/data/spec removed"]),
    ("Role", &["/rules empty", "/rules/0 removed"]),
    ("ClusterRole", &["/rules empty", "/rules/0 removed"]),
    ("EndpointSlice", &["/endpoints empty", "/endpoints/0 removed", "/ports empty", "/ports/0 removed"]),
    ("LimitRange", &["/spec/limits empty", "/spec/limits/0 removed"]),
    (
        "ResourceClaimTemplate",
        &["/spec/spec/devices/requests empty", "/spec/spec/devices/requests/0 removed"],
    ),
    ("CSINode", &["/spec/drivers empty", "/spec/drivers/0 removed"]),
];

fn owners_matter(object: &Value, what: &str) -> bool {
    !OTHERWISE_OWNED.iter().any(|(kind, left_out)| object["kind"] == *kind && left_out.contains(&what))
}

pub fn add_creates(object: &Value, places: &Places, cases: &mut Vec<Case>) -> Result<()> {
    let (kind, place) = kind_and_place(object, places)?;
    let case = |what: String, body: &Value, query: &str| {
        Case::new(&kind, what, Method::POST, format!("{place}?dryRun=All{query}"), body)
    };
    cases.push(case("as it is".into(), object, ""));
    for (what, changed) in damaged(object) {
        let owners = owners_matter(object, &what);
        cases.push(Case { owners, ..case(what, &changed, "") });
    }
    let mut unknown = object.clone();
    unknown["unknownField"] = json!(1);
    cases.push(case("unknown field, strict".into(), &unknown, "&fieldValidation=Strict"));
    cases.push(case("unknown field, ignored".into(), &unknown, "&fieldValidation=Ignore"));
    Ok(())
}

/// Every object as upstream itself writes it in protobuf.
pub async fn add_protobuf(
    servers: &Servers,
    object: &Value,
    places: &Places,
    cases: &mut Vec<Case>,
) -> Result<()> {
    let (kind, place) = kind_and_place(object, places)?;
    let path = format!("{place}?dryRun=All");
    let bytes = as_protobuf(&servers[0], &path, object).await?;
    cases.push(Case::raw(&kind, "as protobuf", Method::POST, path, bytes).content(PROTOBUF));
    Ok(())
}

/// The version of an object once the server's own controllers have let go of it.
async fn settled(server: &kube::Client, path: &str, mut object: Value) -> Result<Value> {
    let watched = ["CustomResourceDefinition", "FlowSchema", "PriorityLevelConfiguration"];
    while watched.contains(&object["kind"].as_str().unwrap_or_default()) {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = object["metadata"]["resourceVersion"].clone();
        object = send(server, Method::GET, path, &Value::Null).await?.1;
        if object["metadata"]["resourceVersion"] == before {
            break;
        }
    }
    Ok(object["metadata"]["resourceVersion"].clone())
}

/// Makes the object on both servers; the cases are what then is put in its place.
pub async fn add_updates(
    servers: &Servers,
    object: &Value,
    places: &Places,
    cases: &mut Vec<Case>,
) -> Result<()> {
    let (kind, place) = kind_and_place(object, places)?;
    let name = object["metadata"]["name"].as_str().with_context(|| format!("{kind} without a name"))?;
    let mut versions = Vec::new();
    for server in servers {
        let (code, made) = send(server, Method::POST, place, object).await?;
        anyhow::ensure!(code == 201, "{kind} cannot be made: {made}");
        versions.push(settled(server, &format!("{place}/{name}"), made).await?);
    }
    let mut bodies = damaged(object);
    // Names and the like are checked before anything else, and for creates.
    bodies.retain(|(what, _)| !what.starts_with("/metadata"));
    for (what, body) in bodies {
        let body = |version: &Value| {
            let mut body = body.clone();
            body["metadata"]["resourceVersion"] = version.clone();
            body.to_string().into_bytes()
        };
        let owners = owners_matter(object, &what);
        cases.push(Case {
            kind: kind.clone(),
            what,
            method: Method::PUT,
            path: format!("{place}/{name}?dryRun=All"),
            content: JSON,
            owners,
            bodies: [body(&versions[0]), body(&versions[1])],
        });
    }
    Ok(())
}
