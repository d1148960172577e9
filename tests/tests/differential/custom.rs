//! Custom resources: creates and updates of each kind of `definitions.yaml`.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answers::{Case, JSON, Servers, differing, send};
use crate::corpus::{Places, kind_and_place};
use crate::damage::{apply, damaged, walk};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml_ng::Deserializer::from_str(text);
    documents.map(|document| Value::deserialize(document).context("a document is not YAML")).collect()
}

pub fn objects() -> Result<Vec<Value>> {
    documents(include_str!("custom.yaml"))
}

/// Makes the definitions, and waits until both servers serve them.
pub async fn define(servers: &Servers) -> Result<()> {
    for server in servers {
        for definition in documents(include_str!("definitions.yaml"))? {
            let (code, made) = send(server, Method::POST, DEFINITIONS, &definition).await?;
            anyhow::ensure!(code == 201, "a definition cannot be made: {made}");
            for version in definition["spec"]["versions"].as_array().into_iter().flatten() {
                let plural = definition["spec"]["names"]["plural"].as_str().unwrap_or_default();
                let version = version["name"].as_str().unwrap_or_default();
                let path = format!("/apis/shop.example.com/{version}/{plural}");
                while send(server, Method::GET, &path, &Value::Null).await?.0 != 200 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
    Ok(())
}

/// How many answers to creates and updates of custom resources differ. Leaves an object of each kind behind.
pub async fn compare(servers: &Servers, places: &Places) -> Result<usize> {
    let objects = objects()?;
    let mut cases = Vec::new();
    for object in &objects {
        let (kind, place) = kind_and_place(object, places)?;
        for (what, body) in variants(object) {
            for validation in ["Warn", "Strict"] {
                let path = format!("{place}?dryRun=All&fieldValidation={validation}");
                if validation == "Warn" || what.contains("unknown") {
                    cases.push(Case::new(&kind, format!("{what} {validation}"), Method::POST, path, &body));
                }
            }
        }
    }
    assert!(cases.len() > 800, "only {} cases", cases.len());
    let mut differ = differing("custom creates", servers, &cases).await?;

    for object in &objects {
        let (kind, place) = kind_and_place(object, places)?;
        for server in servers {
            let (code, made) = send(server, Method::POST, place, object).await?;
            anyhow::ensure!(code == 201, "{kind} cannot be made: {made}");
        }
    }
    let mut cases = Vec::new();
    for object in &objects {
        add_updates(servers, object, places, &mut cases).await?;
    }
    differ += differing("custom updates", servers, &cases).await?;

    tighten(servers).await?;
    let mut cases = Vec::new();
    for object in objects.iter().filter(|o| o["kind"] == "Loose") {
        add_updates(servers, object, places, &mut cases).await?;
    }
    differ += differing("custom updates under a stricter schema", servers, &cases).await?;
    Ok(differ)
}

/// A status that does not fit the schema, sent where none is taken, costs upstream the owners of all fields.
const LEFT_OUT: &[&str] = &["/status"];

/// The object, every damage of it, and what only a schema of one's own can mind.
fn variants(object: &Value) -> Vec<(String, Value)> {
    let mut variants = vec![("as it is".to_owned(), object.clone())];
    variants.extend(damaged(object));
    let mut spots = Vec::new();
    walk(object, String::new(), &mut spots);
    for spot in &spots {
        let mut add = |what: &str, value: Value| {
            let mut changed = object.clone();
            apply(&mut changed, spot, Some(value));
            variants.push((format!("{spot} {what}"), changed));
        };
        match object.pointer(spot) {
            Some(Value::Object(map)) => {
                let mut map = map.clone();
                map.insert("unknownField".into(), json!({"a": 1}));
                add("unknown field", map.into());
            }
            Some(Value::Array(items)) => {
                let with = |item: Value| items.iter().cloned().chain([item]).collect::<Value>();
                add("null item", with(Value::Null));
                add("text item", with(json!("text")));
                add("object item", with(json!({"name": "more"})));
            }
            Some(Value::Number(_)) => {
                add("fraction", json!(1.5));
                add("zero", json!(0));
            }
            Some(Value::Bool(_)) => add("number for flag", json!(1)),
            _ => {}
        }
    }
    for (field, values) in TEXTS.iter().filter(|_| object.pointer("/spec/when").is_some()) {
        for value in *values {
            let mut changed = object.clone();
            changed["spec"][*field] = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
            variants.push((format!("{field} {value}"), changed));
        }
    }
    variants.retain(|(what, _)| !LEFT_OUT.iter().any(|left_out| what.starts_with(left_out)));
    variants
}

/// Values at the borders of what formats and bounds allow; what is JSON is sent as such.
const TEXTS: &[(&str, &[&str])] = &[
    ("when", &["2026-01-02", "2026-01-02T03:04:05.5+02:00", "2026-13-02T03:04:05Z", "2026-01-02t03:04:05z"]),
    ("day", &["2026-02-30", "2026-1-2", "26-01-02"]),
    ("span", &["1h30m", "5", "1d", "-3s", "1.5h", "2 weeks"]),
    ("v4", &["1.2.3", "1.2.3.4.5", "01.2.3.4", "::1", "1.2.3.256", "001.02.3.4", "0001.2.3.4"]),
    ("v6", &["1.2.3.4", "::ffff:1.2.3.4", "fe80::1%eth0", "g::"]),
    ("range", &["10.0.0.1/8", "10.0.0.0/33", "::/0", "10.0.0.0"]),
    (
        "mac",
        &[
            "0123.4567.89ab",
            "01-23-45-67-89-ab",
            "01:23",
            "01:23-45:67:89:ab",
            "01:23:45:67:89:ab:cd:ef",
            "01:23:45:67:89:ab:cd",
            "0123.4567.89ab.cdef",
        ],
    ),
    ("site", &["/a/b", "a b", "mailto:me@example.com", "http://", "//x", "example.com"]),
    (
        "mail",
        &[
            "me",
            "Me <me@example.com>",
            "me@localhost",
            "\"a b\"@example.com",
            "a b@example.com",
            "a@b@c",
            "<a@b.c>",
            "a.@b.c",
            "ä@b.c",
            "a@[1.2.3.4]",
        ],
    ),
    (
        "host",
        &[
            "Example.COM",
            "a_b",
            "-a",
            "a.b.",
            "1.2.3.4",
            "my-host",
            "a-b",
            "my-host.example.com",
            "a.b",
            "a.co",
            "a.c1",
            "1a",
            "a--b.com",
            "xn--a.com",
            "a.b-c.com",
            "ä.de",
        ],
    ),
    ("id", &["123E4567-E89B-12D3-A456-426614174000", "123e4567e89b12d3a456426614174000", "x"]),
    ("id4", &["123e4567-e89b-12d3-a456-426614174000"]),
    ("data", &["aGVsbG8", "a-_b", "aGVs\nbG8=", "aGVsbG8=aGVs", "====", "YQ=="]),
    ("label", &["a.b", "Abc", "a-"]),
    ("size", &["1", "10", "11", "0", "1e0", "9223372036854775808"]),
    ("weight", &["0", "0.5", "0.3", "3", "-0.5"]),
    ("ratio", &["1", "0.999", "1.0"]),
    ("large", &["9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e3"]),
    ("limit", &["2147483648", "-2147483649", "2147483647"]),
    ("code", &["a", "ab", "abcd", "abcde", "ABC", "äö"]),
    ("port", &["1.5", "true", "null", "\"\"", "\"80\"", "99999999999"]),
    ("bounded", &["10", "9", "x", "5%"]),
    ("tags", &["[\"a\",\"a\"]", "[\"a\",\"b\",\"c\",\"d\"]", "[\"\"]"]),
    ("numbers", &["[1,2,1]"]),
    (
        "ports",
        &[
            "[{\"port\":1},{\"port\":1,\"protocol\":\"TCP\"}]",
            "[{\"protocol\":\"TCP\"}]",
            "[{\"port\":null}]",
        ],
    ),
    ("limits", &["{\"a\":1,\"b\":2,\"c\":3,\"d\":4}", "{\"a\":1.5}", "{\"a\":null}"]),
    ("choice", &["{}", "{\"left\":\"x\",\"right\":\"y\"}"]),
    ("either", &["{}", "{\"left\":\"x\",\"right\":\"y\"}"]),
    (
        "template",
        &[
            "{\"apiVersion\":\"v1\"}",
            "{\"kind\":\"x\",\"apiVersion\":\"a/b/c\"}",
            "{\"kind\":\"x\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"A_\",\"odd\":1}}",
            "{\"kind\":\"x\",\"apiVersion\":\"v1\",\"metadata\":{\"labels\":{\"a\":1}}}",
        ],
    ),
];

/// The cases are what is put in the place of an object that is there.
async fn add_updates(
    servers: &Servers,
    object: &Value,
    places: &Places,
    cases: &mut Vec<Case>,
) -> Result<()> {
    let (kind, place) = kind_and_place(object, places)?;
    let path = format!("{place}/{}", object["metadata"]["name"].as_str().context("no name")?);
    let mut versions = Vec::new();
    for server in servers {
        let (_, object) = send(server, Method::GET, &path, &Value::Null).await?;
        versions.push(object["metadata"]["resourceVersion"].clone());
    }
    let path = format!("{path}?dryRun=All");
    for (what, body) in variants(object) {
        let unversioned = what.starts_with("/metadata ") || !body["metadata"].is_object();
        let body = |version: &Value| {
            let mut body = body.clone();
            if !unversioned {
                body["metadata"]["resourceVersion"] = version.clone();
            }
            body.to_string().into_bytes()
        };
        let bodies = [body(&versions[0]), body(&versions[1])];
        let (kind, path) = (kind.clone(), path.clone());
        cases.push(Case { kind, what, method: Method::PUT, path, content: JSON, bodies, owners: true });
    }
    Ok(())
}

/// Gives `Loose` a schema that its object no longer fits, and waits until it counts.
async fn tighten(servers: &Servers) -> Result<()> {
    let path = format!("{DEFINITIONS}/loose.shop.example.com");
    let stricter: Value = serde_yaml_ng::from_str(include_str!("stricter.yaml"))?;
    let probe = json!({"apiVersion": "shop.example.com/v1", "kind": "Loose", "metadata": {"name": "probe"}});
    for server in servers {
        let (_, mut definition) = send(server, Method::GET, &path, &Value::Null).await?;
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = stricter.clone();
        let (code, answer) = send(server, Method::PUT, &path, &definition).await?;
        anyhow::ensure!(code == 200, "the definition cannot be changed: {answer}");
        let create = "/apis/shop.example.com/v1/namespaces/default/loose?dryRun=All";
        while send(server, Method::POST, create, &probe).await?.0 != 422 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}
