//! One request to both servers, and what counts as the same answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use crate::patches::STRATEGIC;

/// Requests at once to each server.
const IN_FLIGHT: usize = 16;

pub const JSON: &str = "application/json";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Upstream, and Tombolo.
pub type Servers = [kube::Client; 2];

pub struct Case {
    pub kind: String,
    pub what: String,
    pub method: Method,
    pub path: String,
    pub content: &'static str,
    /// What each server is sent: the same, but for what a server made up itself.
    pub bodies: [Vec<u8>; 2],
    /// Whether it matters who owns which field.
    pub owners: bool,
}

impl Case {
    pub fn new(kind: &str, what: impl Into<String>, method: Method, path: String, body: &Value) -> Self {
        Self::raw(kind, what, method, path, body.to_string().into_bytes())
    }

    pub fn raw(kind: &str, what: impl Into<String>, method: Method, path: String, body: Vec<u8>) -> Self {
        let (kind, bodies) = (kind.to_owned(), [body.clone(), body]);
        Self { kind, what: what.into(), method, path, content: JSON, bodies, owners: true }
    }

    pub fn content(self, content: &'static str) -> Self {
        Self { content, ..self }
    }
}

pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

pub async fn send(client: &kube::Client, method: Method, path: &str, body: &Value) -> Result<(u16, Value)> {
    exchange(client, method, path, JSON, serde_json::to_vec(body)?).await
}

/// The answer; one that is no JSON is a text.
async fn exchange(
    client: &kube::Client,
    method: Method,
    path: &str,
    content: &str,
    body: Vec<u8>,
) -> Result<(u16, Value)> {
    let request =
        Request::builder().method(method).uri(path).header("content-type", content).body(Body::from(body))?;
    let response = client.send(request).await?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await?.to_bytes();
    let answer = serde_json::from_slice(&bytes);
    Ok((code, answer.unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into())))
}

/// What a server answers to the creation of an object, in the form that its own clients use.
pub async fn as_protobuf(client: &kube::Client, path: &str, object: &Value) -> Result<Vec<u8>> {
    let request = Request::post(path).header("content-type", JSON).header("accept", PROTOBUF);
    let response = client.send(request.body(Body::from(serde_json::to_vec(object)?))?).await?;
    anyhow::ensure!(response.status().is_success(), "{path}: {}", response.status());
    Ok(response.into_body().collect().await?.to_bytes().to_vec())
}

/// Sends every case to both servers, and says how many answers differ.
pub async fn differing(what: &str, servers: &Servers, cases: &[Case]) -> Result<usize> {
    tally(what, servers, cases, IN_FLIGHT).await
}

/// The same for cases that build on each other.
pub async fn differing_in_turn(what: &str, servers: &Servers, cases: &[Case]) -> Result<usize> {
    tally(what, servers, cases, 1).await
}

async fn tally(what: &str, servers: &Servers, cases: &[Case], in_flight: usize) -> Result<usize> {
    let start = Instant::now();
    let mut by_kind: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let (mut causes, mut differing) = ((0, 0), 0);
    let mut answers = stream::iter(cases.iter().map(|case| compare(servers, case))).buffered(in_flight);
    for case in cases {
        let answer = answers.next().await.context("every case is answered")?;
        let Comparison { difference, same_causes } =
            answer.with_context(|| format!("{} {}", case.kind, case.what))?;
        let count = by_kind.entry(&case.kind).or_default();
        count.1 += 1;
        causes.1 += usize::from(same_causes.is_some());
        match same_causes {
            Some(true) => causes.0 += 1,
            Some(false) => println!("CAUSES {} {}", case.kind, case.what),
            None => {}
        }
        match difference {
            None => count.0 += 1,
            Some(text) => {
                differing += 1;
                println!("DIFFERS {what} {} {}: {text}", case.kind, case.what);
            }
        }
    }
    for (kind, (agreed, total)) in by_kind {
        println!("{agreed:>5} of {total:<5} {kind}");
    }
    println!("{} of {} refusals name the same fields", causes.0, causes.1);
    let (agreed, total) = (cases.len() - differing, cases.len());
    println!("{what}: {agreed} of {total} answers agree, after {:.0?}", start.elapsed());
    Ok(differing)
}

struct Comparison {
    /// What differs between the two answers, if anything.
    difference: Option<String>,
    /// Of two refusals for what is in the object: whether they complain about the same fields. For information.
    same_causes: Option<bool>,
}

async fn compare(servers: &Servers, case: &Case) -> Result<Comparison> {
    let answer = |n: usize| {
        exchange(&servers[n], case.method.clone(), &case.path, case.content, case.bodies[n].clone())
    };
    let (a, b) = futures::future::join(answer(0), answer(1)).await;
    // There are patches that upstream does not survive: it breaks off the connection.
    if a.is_err() && case.content == STRATEGIC {
        return Ok(Comparison { difference: None, same_causes: None });
    }
    let ((code_a, a), (code_b, b)) = (a?, b?);
    let short = |v: &Value| {
        let text = v["message"].as_str().or(v.as_str()).unwrap_or_default();
        text.chars().take(240).collect::<String>()
    };
    let same_causes = (code_a == 422 && code_b == 422).then(|| causes(&a) == causes(&b));
    let difference = if code_a != code_b {
        Some(format!("upstream {code_a} ({}), tombolo {code_b} ({})", short(&a), short(&b)))
    } else if a.is_string() {
        // Only a path that nothing knows is answered without a status.
        None
    } else if code_a >= 400 {
        let told = |v: &Value| {
            let mut causes = v["details"]["causes"].as_array().cloned().unwrap_or_default();
            // Several managers come in no order.
            causes.sort_by_key(Value::to_string);
            (v["reason"].clone(), (code_a == 409).then_some(causes))
        };
        (told(&a) != told(&b)).then(|| format!("told: upstream {:?}, tombolo {:?}", told(&a), told(&b)))
    } else {
        let stored = |answer: Value| {
            let mut object = stored(answer);
            if let Some(metadata) = object["metadata"].as_object_mut().filter(|_| !case.owners) {
                metadata.remove("managedFields");
            }
            object
        };
        first_difference(&stored(a), &stored(b), String::new())
    };
    Ok(Comparison { difference, same_causes })
}

/// The fields that a refusal complains about.
fn causes(status: &Value) -> BTreeSet<&str> {
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    causes.filter_map(|cause| cause["field"].as_str()).collect()
}

/// The object without what every server makes up for itself.
fn stored(mut object: Value) -> Value {
    // Jobs repeat their uid in labels, and a limit range without a name is called by an id of its own.
    replace(&mut object, &is_id, "an id");
    // The name of the volume with a pod's token is random.
    replace(&mut object, &|text| text.starts_with("kube-api-access-"), "the token");
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for made_up in ["uid", "creationTimestamp", "resourceVersion", "selfLink"] {
            metadata.remove(made_up);
        }
        for owner in metadata.get_mut("managedFields").and_then(Value::as_array_mut).into_iter().flatten() {
            owner.as_object_mut().map(|owner| owner.remove("time"));
        }
        // They come in the order of their times.
        if let Some(owners) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
            owners
                .sort_by_key(|owner| ["manager", "operation", "subresource"].map(|by| owner[by].to_string()));
        }
    }
    // One server knows the client by a token, the other by a certificate.
    let client = match object["kind"].as_str() {
        Some("CertificateSigningRequest") => object.pointer_mut("/spec"),
        Some("SelfSubjectReview") => object.pointer_mut("/status/userInfo"),
        _ => None,
    };
    if let Some(client) = client.and_then(Value::as_object_mut) {
        client.retain(|field, _| !["username", "uid", "extra"].contains(&field.as_str()));
    }
    // Each server makes tokens for an audience of its own.
    if object["kind"] == "TokenRequest" {
        object["spec"]["audiences"] = Value::Null;
        object["status"] = Value::Null;
    }
    // The rules of a user come in no order.
    for rules in ["/status/resourceRules", "/status/nonResourceRules"] {
        if let Some(rules) = object.pointer_mut(rules).and_then(Value::as_array_mut) {
            rules.sort_by_key(Value::to_string);
        }
    }
    // At a site nothing would take it away again.
    if object["kind"] == "VolumeAttributesClass"
        && let Some(finalizers) = object.pointer_mut("/metadata/finalizers").and_then(Value::as_array_mut)
    {
        finalizers.retain(|finalizer| finalizer != "kubernetes.io/vac-protection");
        if finalizers.is_empty() {
            object["metadata"].as_object_mut().map(|metadata| metadata.remove("finalizers"));
        }
    }
    if object["kind"] == "Service"
        && let Some(spec) = object["spec"].as_object_mut()
    {
        for allocated in ["clusterIP", "clusterIPs"] {
            let given = spec.get(allocated).is_some_and(|v| v == "None" || v == &json!(["None"]));
            if !given {
                spec.remove(allocated);
            }
        }
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    // Upstream's controllers look at these within the server.
    let watched = ["FlowSchema", "PriorityLevelConfiguration"].contains(&kind);
    // Nobody can own the fields of what is not kept.
    if watched || kind == "CustomResourceDefinition" || kind.ends_with("Review") || kind == "TokenRequest" {
        object["metadata"].as_object_mut().map(|metadata| metadata.remove("managedFields"));
    }
    if watched {
        object["status"] = json!({});
    }
    if object["kind"] == "CustomResourceDefinition"
        && let Some(status) = object["status"].as_object_mut()
    {
        // Upstream's controller accepts the names of a stored definition a moment later; ours are accepted at once.
        status.retain(|field, _| field == "storedVersions");
    }
    object
}

/// Eight, four, four, four and twelve hexadecimal digits.
fn is_id(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Puts `by` for every text that matches.
fn replace(value: &mut Value, matches: &dyn Fn(&str) -> bool, by: &str) {
    match value {
        Value::String(text) if matches(text) => *text = by.to_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, matches, by)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace(field, matches, by)),
        _ => {}
    }
}

fn first_difference(a: &Value, b: &Value, path: String) -> Option<String> {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let keys: BTreeSet<_> = x.keys().chain(y.keys()).collect();
            keys.into_iter().find_map(|key| {
                let (left, right) = (x.get(key).unwrap_or(&Value::Null), y.get(key).unwrap_or(&Value::Null));
                first_difference(left, right, format!("{path}.{key}"))
            })
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            x.iter().zip(y).enumerate().find_map(|(n, (l, r))| first_difference(l, r, format!("{path}[{n}]")))
        }
        // When something was written down; both clocks are right.
        (Value::String(_), Value::String(_))
            if ["ime", ".timeAdded", ".deletionTimestamp"].iter().any(|end| path.ends_with(end)) =>
        {
            None
        }
        _ if a == b => None,
        _ => Some(format!("{path}: upstream {a}, tombolo {b}")),
    }
}
