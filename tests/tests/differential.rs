//! The same few thousand good, bad and mutated objects, sent to a real kube-apiserver and to `tombolo serve`, get the
//! same answers: status code, reason, and the object as it would be stored.
//!
//! Writes are dry runs, so no object stands in another one's way. Each base object of `corpus/` is sent as it is, and
//! then once for every small damage at every place in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;
use serde_json::{Value, json};
use tombolo_testkit::{Fixture, Tombolo, Upstream, UpstreamOptions, require};

const IN_FLIGHT: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tombolo_answers_as_upstream_does() -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::KubeApiserver, Fixture::Etcd]) {
        return Ok(());
    }
    let upstream = Upstream::start(&UpstreamOptions { lift_limits: true, ..Default::default() })?;
    let dir = tempfile::tempdir()?;
    let tombolo = Tombolo::serve(dir.path())?;
    let servers = [client(&upstream.kubeconfig).await?, client(&tombolo.kubeconfig).await?];
    for server in &servers {
        // Pods need it, and no controller makes it here.
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        send(server, Method::POST, "/api/v1/namespaces/default/serviceaccounts", &account).await?;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "to-be-bound"},
            "spec": {"containers": [{"name": "c", "image": "pause"}]}});
        send(server, Method::POST, "/api/v1/namespaces/default/pods", &pod).await?;
    }

    let places = places(&servers[0]).await?;
    let objects = corpus()?;
    for (version, kind) in places.keys() {
        let covered =
            objects.iter().any(|o| o["apiVersion"] == version.as_str() && o["kind"] == kind.as_str());
        assert!(covered, "no object of kind {kind} of {version} is in the corpus");
    }
    let mut cases = Vec::new();
    for object in &objects {
        add_creates(object, &places, &mut cases)?;
    }
    assert!(cases.len() > 5_000, "only {} cases", cases.len());
    all_agree("creates", &servers, &cases).await?;

    let mut cases = Vec::new();
    for object in objects.iter().filter(|o| !NOT_KEPT.contains(&o["kind"].as_str().unwrap_or_default())) {
        add_updates(&servers, object, &places, &mut cases).await?;
    }
    assert!(cases.len() > 3_000, "only {} cases", cases.len());
    all_agree("updates", &servers, &cases).await
}

/// Kinds that are answered and not stored, and those that would change the servers' answers to others.
const NOT_KEPT: &[&str] = &[
    "Binding",
    "LocalSubjectAccessReview",
    "SelfSubjectAccessReview",
    "SelfSubjectReview",
    "SelfSubjectRulesReview",
    "SubjectAccessReview",
    "TokenReview",
    "APIService",
    "LimitRange",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ResourceQuota",
    "ServiceCIDR",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

/// Sends every case to both servers and fails when any answer differs.
async fn all_agree(what: &str, servers: &[kube::Client; 2], cases: &[Case]) -> Result<()> {
    let mut by_kind: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let mut differences = Vec::new();
    let mut causes = (0, 0);
    for chunk in cases.chunks(IN_FLIGHT) {
        let answers = futures::future::join_all(chunk.iter().map(|case| compare(servers, case))).await;
        for (case, difference) in chunk.iter().zip(answers) {
            let count = by_kind.entry(case.kind.clone()).or_default();
            count.1 += 1;
            let Comparison { difference, same_causes } = difference?;
            causes.1 += usize::from(same_causes.is_some());
            match same_causes {
                Some(true) => causes.0 += 1,
                Some(false) => println!("CAUSES {} {}", case.kind, case.what),
                None => {}
            }
            match difference {
                None => count.0 += 1,
                Some(text) => differences.push(format!("{} {}: {text}", case.kind, case.what)),
            }
        }
    }
    let (total, agreed) = (cases.len(), cases.len() - differences.len());
    for difference in &differences {
        println!("DIFFERS {difference}");
    }
    for (kind, (agreed, total)) in by_kind {
        println!("{agreed:>5} of {total:<5} {kind}");
    }
    println!("{} of {} refusals name the same fields", causes.0, causes.1);
    println!("{what}: {agreed} of {total} answers agree");
    assert!(agreed == total, "{what}: only {agreed} of {total} answers agree; see the lines above");
    Ok(())
}

struct Case {
    kind: String,
    what: String,
    method: Method,
    path: String,
    /// What each server is sent: the same, but for what a server made up itself.
    bodies: [Value; 2],
}

async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

async fn send(client: &kube::Client, method: Method, path: &str, body: &Value) -> Result<(u16, Value)> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(serde_json::to_vec(body)?))?;
    let response = client.send(request).await?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok((code, serde_json::from_slice(&bytes).with_context(|| format!("{path}: not JSON: {bytes:?}"))?))
}

struct Comparison {
    /// What differs between the two answers, if anything.
    difference: Option<String>,
    /// Of two refusals for what is in the object: whether they complain about the same fields. For information.
    same_causes: Option<bool>,
}

async fn compare(servers: &[kube::Client; 2], case: &Case) -> Result<Comparison> {
    let (a, b) = futures::future::join(
        send(&servers[0], case.method.clone(), &case.path, &case.bodies[0]),
        send(&servers[1], case.method.clone(), &case.path, &case.bodies[1]),
    )
    .await;
    let ((code_a, a), (code_b, b)) = (a?, b?);
    let short = |v: &Value| v["message"].as_str().unwrap_or_default().chars().take(160).collect::<String>();
    let same_causes = (code_a == 422 && code_b == 422).then(|| causes(&a) == causes(&b));
    let difference = if code_a != code_b {
        Some(format!("upstream {code_a} ({}), tombolo {code_b} ({})", short(&a), short(&b)))
    } else if code_a >= 400 {
        let same = a["reason"] == b["reason"];
        (!same).then(|| format!("reason: upstream {}, tombolo {}", a["reason"], b["reason"]))
    } else {
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
        for made_up in ["uid", "creationTimestamp", "resourceVersion", "managedFields", "selfLink"] {
            metadata.remove(made_up);
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
    // Upstream's controllers look at these within the server.
    if object["kind"] == "FlowSchema" || object["kind"] == "PriorityLevelConfiguration" {
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
        (Value::String(_), Value::String(_)) if path.ends_with("ime") || path.ends_with(".timeAdded") => None,
        _ if a == b => None,
        _ => Some(format!("{path}: upstream {a}, tombolo {b}")),
    }
}

/// Where each kind is created, by version and kind.
type Places = BTreeMap<(String, String), String>;

/// Every stable kind that the server lets clients create, subresources apart.
async fn places(server: &kube::Client) -> Result<Places> {
    let mut places = Places::new();
    let mut groups = vec![("v1".to_owned(), "/api/v1".to_owned())];
    for group in server.list_api_groups().await?.groups {
        let stable = group
            .versions
            .into_iter()
            .filter(|v| !v.version.contains("alpha") && !v.version.contains("beta"));
        groups.extend(stable.map(|v| (v.group_version.clone(), format!("/apis/{}", v.group_version))));
    }
    for (version, root) in groups {
        let list: Value = server.request(Request::get(&root).body(Vec::new())?).await?;
        for resource in list["resources"].as_array().into_iter().flatten() {
            let plural = resource["name"].as_str().unwrap_or_default();
            let creates = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("create")));
            if plural.contains('/') || !creates {
                continue;
            }
            let namespace = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
            let kind = resource["kind"].as_str().unwrap_or_default().to_owned();
            places.insert((version.clone(), kind), format!("{root}{namespace}/{plural}"));
        }
    }
    Ok(places)
}

fn corpus() -> Result<Vec<Value>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut files: Vec<_> =
        std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            objects.push(Value::deserialize(document).with_context(|| format!("in {}", file.display()))?);
        }
    }
    Ok(objects)
}

fn kind_and_place<'p>(object: &Value, places: &'p Places) -> Result<(String, &'p str)> {
    let kind = object["kind"].as_str().context("a corpus object has no kind")?;
    let version = object["apiVersion"].as_str().context("a corpus object has no apiVersion")?;
    let place = places.get(&(version.to_owned(), kind.to_owned()));
    Ok((format!("{version} {kind}"), place.with_context(|| format!("upstream has no {kind}"))?))
}

/// Every small damage at every place in an object.
fn damaged(object: &Value) -> Vec<(String, Value)> {
    let mut out = Vec::new();
    let mut spots = Vec::new();
    walk(object, String::new(), &mut spots);
    for spot in spots.iter().filter(|p| !["", "/apiVersion", "/kind"].contains(&p.as_str())) {
        for (what, damage) in damages(object.pointer(spot).unwrap_or(&Value::Null)) {
            let mut changed = object.clone();
            apply(&mut changed, spot, damage);
            out.push((format!("{spot} {what}"), changed));
        }
    }
    out
}

fn add_creates(object: &Value, places: &Places, cases: &mut Vec<Case>) -> Result<()> {
    let (kind, place) = kind_and_place(object, places)?;
    let case = |what: String, body: Value, query: &str| Case {
        kind: kind.clone(),
        what,
        method: Method::POST,
        path: format!("{place}?dryRun=All{query}"),
        bodies: [body.clone(), body],
    };
    cases.push(case("as it is".into(), object.clone(), ""));
    cases.extend(damaged(object).into_iter().map(|(what, changed)| case(what, changed, "")));
    let mut unknown = object.clone();
    unknown["unknownField"] = json!(1);
    cases.push(case("unknown field, strict".into(), unknown.clone(), "&fieldValidation=Strict"));
    cases.push(case("unknown field, ignored".into(), unknown, "&fieldValidation=Ignore"));
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
async fn add_updates(
    servers: &[kube::Client; 2],
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
            body
        };
        cases.push(Case {
            kind: kind.clone(),
            what,
            method: Method::PUT,
            path: format!("{place}/{name}?dryRun=All"),
            bodies: [body(&versions[0]), body(&versions[1])],
        });
    }
    Ok(())
}

fn walk(value: &Value, path: String, places: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, child) in map {
                walk(child, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), places);
            }
        }
        Value::Array(items) => {
            for (n, child) in items.iter().enumerate() {
                walk(child, format!("{path}/{n}"), places);
            }
        }
        _ => {}
    }
    places.push(path);
}

/// Small damages that fit a value's type; `None` removes it.
fn damages(value: &Value) -> Vec<(&'static str, Option<Value>)> {
    let mut out = vec![("removed", None), ("null", Some(Value::Null))];
    match value {
        Value::String(_) => out.extend([
            ("empty", Some(json!(""))),
            ("odd text", Some(json!("Not_Valid!"))),
            ("number for text", Some(json!(7))),
        ]),
        Value::Number(_) => out.extend([
            ("negative", Some(json!(-1))),
            ("huge", Some(json!(3_000_000_000_i64))),
            ("text for number", Some(json!("many"))),
        ]),
        Value::Bool(flag) => {
            out.extend([("flipped", Some(json!(!flag))), ("text for flag", Some(json!("yes")))])
        }
        Value::Array(items) => {
            out.push(("empty", Some(json!([]))));
            out.push(("object for list", Some(json!({"a": 1}))));
            if let Some(first) = items.first() {
                out.push(("doubled", Some(json!([first, first]))));
            }
        }
        Value::Object(_) => out.extend([("empty", Some(json!({}))), ("text for object", Some(json!("x")))]),
        Value::Null => {}
    }
    out
}

fn apply(object: &mut Value, place: &str, damage: Option<Value>) {
    match damage {
        Some(value) => {
            if let Some(target) = object.pointer_mut(place) {
                *target = value;
            }
        }
        None => {
            let Some((parent, key)) = place.rsplit_once('/') else { return };
            let key = key.replace("~1", "/").replace("~0", "~");
            match object.pointer_mut(parent) {
                Some(Value::Object(map)) => {
                    map.remove(&key);
                }
                Some(Value::Array(items)) => {
                    if let Ok(n) = key.parse::<usize>() {
                        items.remove(n);
                    }
                }
                _ => {}
            }
        }
    }
}
