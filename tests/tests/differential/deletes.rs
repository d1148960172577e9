//! Deletes, with every kind of options. All of them are tries: nothing goes. Where there is a body, upstream does not hear
//! what the query says, not even that it is a try; Tombolo does.

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use crate::answers::{Case, JSON, PROTOBUF, Servers, send};
use crate::patches::Target;

/// What is asked of every object.
pub async fn add(servers: &Servers, target: &Target, cases: &mut Vec<Case>) -> Result<()> {
    let path = &target.path;
    let mut delete = |what: &str, query: &str, bodies: [Vec<u8>; 2], content: &'static str| {
        let what = format!("delete {what}{query}");
        let path = format!("{path}?dryRun=All{query}");
        let kind = target.kind.clone();
        cases.push(Case { kind, what, method: Method::DELETE, path, content, bodies, owners: true });
    };
    let same = |body: Vec<u8>| [body.clone(), body];
    for (what, mut body) in options() {
        body.as_object_mut().map(|body| body.entry("dryRun").or_insert(json!(["All"])));
        delete(&what, "", same(body.to_string().into_bytes()), JSON);
    }
    for query in [
        "",
        "&propagationPolicy=Foreground",
        "&propagationPolicy=Orphan",
        "&propagationPolicy=odd",
        "&orphanDependents=true",
        "&orphanDependents=odd",
        "&orphanDependents=true&propagationPolicy=Orphan",
        "&gracePeriodSeconds=0",
        "&gracePeriodSeconds=7",
        "&gracePeriodSeconds=odd",
        "&gracePeriodSeconds=-1",
        "&dryRun=odd",
    ] {
        delete("without a body", query, same(Vec::new()), JSON);
        let body = json!({"propagationPolicy": "Background", "dryRun": ["All"]});
        if query != "&dryRun=odd" {
            delete("with a body", query, same(body.to_string().into_bytes()), JSON);
        }
    }
    for body in ["{", "[]", "7", "\"text\"", "a: b", "{\"propagationPolicy\": 7}"] {
        delete(body, "", same(body.into()), JSON);
    }
    delete("of another form", "", same(br#"{"dryRun":["All"]}"#.to_vec()), "text/plain");
    delete("of no form", "", same(br#"{"dryRun":["All"]}"#.to_vec()), "application/odd");
    for (what, kind, options) in [
        ("nothing", "DeleteOptions", vec![]),
        ("a policy", "DeleteOptions", text(4, "Foreground")),
        ("an odd policy", "DeleteOptions", text(4, "odd")),
        ("another's uid", "DeleteOptions", message(2, &text(1, "other"))),
        ("another version", "DeleteOptions", message(2, &text(2, "1"))),
        ("a pod", "Pod", vec![]),
        ("an odd kind", "Odd", vec![]),
    ] {
        let options = [options, text(5, "All")].concat();
        delete(&format!("{what} in protobuf"), "", same(envelope(kind, &options)), PROTOBUF);
    }
    let mut live = Vec::new();
    for server in servers {
        live.push(send(server, Method::GET, path, &Value::Null).await?.1);
    }
    for (what, fields) in
        [("uid", &["uid"][..]), ("version", &["resourceVersion"]), ("both", &["uid", "resourceVersion"])]
    {
        let body = |n: usize| {
            let preconditions: Value = fields
                .iter()
                .map(|field| ((*field).to_owned(), live[n]["metadata"][field].clone()))
                .collect();
            json!({"preconditions": preconditions, "dryRun": ["All"]}).to_string().into_bytes()
        };
        delete(&format!("of its own {what}"), "", [body(0), body(1)], JSON);
    }
    let gone = format!("{path}-gone?dryRun=All");
    cases.push(Case::raw(&target.kind, "delete what is not there", Method::DELETE, gone, Vec::new()));
    Ok(())
}

fn options() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (field, values) in [
        ("propagationPolicy", json!(["Foreground", "Background", "Orphan", "odd", "", null])),
        ("orphanDependents", json!([true, false, null])),
        ("gracePeriodSeconds", json!([0, 7, -1, null])),
        ("dryRun", json!([["All"], ["odd"], ["All", "odd"]])),
        ("kind", json!(["DeleteOptions", "Pod", "Odd", ""])),
        ("apiVersion", json!(["v1", "apps/v1", "odd/v1", "a/b/c", ""])),
        (
            "preconditions",
            json!([{"uid": "other"}, {"resourceVersion": "1"}, {"uid": ""}, {"odd": "a"}, {}, null]),
        ),
        ("unheard", json!([1])),
    ] {
        for value in values.as_array().into_iter().flatten() {
            all.push((format!("{field} {value}"), json!({field: value})));
        }
    }
    for (kind, version) in [
        ("DeleteOptions", "v1"),
        ("DeleteOptions", "apps/v1"),
        ("DeleteOptions", "meta.k8s.io/v1"),
        ("DeleteOptions", "odd.example.com/v1"),
        ("Pod", "v1"),
        ("ConfigMap", "v1"),
        ("Deployment", "apps/v1"),
        ("Status", "v1"),
    ] {
        all.push((format!("{version} {kind}"), json!({"apiVersion": version, "kind": kind})));
    }
    all.push(("both ways".to_owned(), json!({"orphanDependents": true, "propagationPolicy": "Orphan"})));
    all.push(("both unsaid".to_owned(), json!({"orphanDependents": null, "propagationPolicy": "Orphan"})));
    all
}

/// Collections without anything in them, and questions that make no sense.
pub fn add_collections(target: &Target, cases: &mut Vec<Case>) {
    let place = target.path.rsplit_once('/').map_or("", |(place, _)| place);
    for (what, query, body) in [
        ("nothing", "labelSelector=none%3Dsuch", json!(null)),
        ("a wrong selector", "labelSelector=a%3D%3D%3Db", json!({})),
        ("an unknown field", "fieldSelector=spec.odd%3Db", json!({})),
        ("a wrong policy", "labelSelector=none%3Dsuch", json!({"propagationPolicy": "odd"})),
        ("a wrong limit", "labelSelector=none%3Dsuch&limit=odd", json!({})),
        ("a wrong version", "labelSelector=none%3Dsuch&resourceVersion=odd", json!({})),
        ("another kind", "labelSelector=none%3Dsuch", json!({"apiVersion": "v1", "kind": "Pod"})),
    ] {
        let path = format!("{place}?dryRun=All&{query}");
        cases.push(Case::new(&target.kind, format!("delete all with {what}"), Method::DELETE, path, &body));
    }
    for query in [
        "limit=odd",
        "limit=-1",
        "resourceVersion=odd",
        "resourceVersion=-1",
        "resourceVersionMatch=odd",
        "continue=odd",
        "timeoutSeconds=odd",
        "labelSelector=a%3D%3D%3Db",
        "fieldSelector=spec.odd%3Db",
    ] {
        let path = format!("{place}?labelSelector=none%3Dsuch&{query}");
        cases.push(Case::raw(&target.kind, format!("list with {query}"), Method::GET, path, Vec::new()));
    }
}

fn message(field: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("short parts only");
    [&[field << 3 | 2, length], content].concat()
}

fn text(field: u8, content: &str) -> Vec<u8> {
    message(field, content.as_bytes())
}

/// What Kubernetes puts around a protobuf message.
fn envelope(kind: &str, content: &[u8]) -> Vec<u8> {
    let meta = [text(1, "v1"), text(2, kind)].concat();
    [b"k8s\0", &message(1, &meta)[..], &message(2, content)].concat()
}
