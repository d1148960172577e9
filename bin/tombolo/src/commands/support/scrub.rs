//! What may leave the machine: names, states and numbers; never values that somebody might have meant to keep.

use serde_json::{Map, Value};

const GONE: &str = "(left out)";
/// Longer runs of base64 or hex are keys, certificates or digests; nobody reads them.
const LONG: usize = 48;

/// An object without the values in it that may be secret.
pub fn object(mut value: Value) -> Value {
    if value["kind"] == "Work" {
        // It carries whole objects, Secrets among them.
        for part in ["object", "with"] {
            if let Some(carried) = value.pointer_mut(&format!("/spec/{part}")) {
                *carried = outline(carried);
            }
        }
        // What a kind that we do not know tells of itself may be anything.
        let of_kubernetes = value.pointer("/spec/root/apiVersion").and_then(Value::as_str);
        if !of_kubernetes.is_some_and(|version| !version.contains('.') || version.contains(".k8s.io/"))
            && let Some(told) = value.pointer_mut("/status/object")
        {
            *told = GONE.into();
        }
    }
    walk(&mut value);
    value
}

/// Of carried objects only what they are.
fn outline(value: &Value) -> Value {
    match value {
        Value::Array(all) => all.iter().map(outline).collect(),
        one => serde_json::json!({"kind": one["kind"], "name": one.pointer("/metadata/name")}),
    }
}

fn walk(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(walk),
        Value::Object(fields) => fields_of(fields),
        _ => {}
    }
}

fn fields_of(fields: &mut Map<String, Value>) {
    fields.remove("managedFields");
    for (name, value) in fields.iter_mut() {
        match name.as_str() {
            // Of a request for a certificate, of a Secret-like kind, of a container.
            "data" | "stringData" | "binaryData" | "request" | "certificate" | "args" | "command"
            | "value" => {
                *value = GONE.into();
            }
            // What people attach may be anything; our own names are ours.
            "annotations" => {
                for (key, value) in value.as_object_mut().into_iter().flatten() {
                    if !key.contains("tombolo.dev/") {
                        *value = GONE.into();
                    }
                }
            }
            // Changes that a Placement makes to manifests may set variables in many ways.
            "merge" | "jsonPatch" => *value = GONE.into(),
            // The last words of a container, which may be of its log.
            "terminated" => {
                if let Some(message) = value.get_mut("message") {
                    *message = GONE.into();
                }
            }
            _ => walk(value),
        }
    }
}

/// Text without tokens, keys and certificates.
pub fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_pem = false;
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN ") {
            in_pem = true;
            out.push_str(GONE);
            out.push('\n');
        }
        if !in_pem {
            scrub_line(line, &mut out);
        }
        if line.contains("-----END ") {
            in_pem = false;
        }
    }
    out
}

fn scrub_line(line: &str, out: &mut String) {
    let mut previous = "";
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+' | '/');
    let mut rest = line;
    while !rest.is_empty() {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        let hidden = is_bootstrap_token(word)
            || is_web_token(word)
            || is_long_blob(word)
            || (!word.is_empty() && previous.eq_ignore_ascii_case("bearer"));
        out.push_str(if hidden { GONE } else { word });
        if !word.is_empty() {
            previous = word;
        }
        let mut rest_chars = after.chars();
        out.extend(rest_chars.next());
        rest = rest_chars.as_str();
    }
}

/// `abcdef.0123456789abcdef`
fn is_bootstrap_token(word: &str) -> bool {
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    word.split_once('.')
        .is_some_and(|(id, secret)| id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret))
}

fn is_web_token(word: &str) -> bool {
    word.starts_with("eyJ") && word.matches('.').count() == 2
}

/// A path has slashes at short distances; a blob does not.
fn is_long_blob(word: &str) -> bool {
    word.split(['/', '.', '-', '_']).any(|part| part.len() >= LONG)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_keys_and_certificates_are_left_out_and_the_rest_stays() {
        let line = "joined site=\"harbour\" token=abcdef.0123456789abcdef hub=https://198.19.77.10:6443\n";
        assert_eq!(text(line), "joined site=\"harbour\" token=(left out) hub=https://198.19.77.10:6443\n");
        assert_eq!(text("Authorization: Bearer s3cret-x\n"), "Authorization: Bearer (left out)\n");
        let pem = "a\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----\nb\n";
        assert_eq!(text(pem), "a\n(left out)\nb\n");
        assert!(!text("x eyJhbGciOiJ.eyJzdWIi.c2ln y").contains("c2ln"));
        let path = "/var/lib/tombolo/up/edge-1/node/pods/0f4c/hello-85bbd7d6c5-wpvc2/log\n";
        assert_eq!(text(path), path);
    }

    #[test]
    fn objects_lose_values_and_keep_their_shape() {
        let pod = json!({"kind": "Pod", "metadata": {"name": "web", "managedFields": [1],
            "annotations": {"note": "hush", "tombolo.dev/site": "edge-1"}},
            "spec": {"containers": [{"name": "c", "args": ["--password=hush"], "env": [{"name": "KEY", "value": "hush"}]}]}});
        let clean = object(pod);
        assert!(!clean.to_string().contains("hush"), "{clean}");
        assert_eq!(clean["spec"]["containers"][0]["env"][0]["name"], "KEY");
        assert_eq!(clean["metadata"]["annotations"]["tombolo.dev/site"], "edge-1");
        let work = json!({"kind": "Work", "spec": {"object": {"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "hush"}},
            "with": [{"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "hush"}}]}});
        let clean = object(work);
        assert!(!clean.to_string().contains("hush"), "{clean}");
        assert_eq!(clean["spec"]["with"][0]["name"], "c");
    }

    #[test]
    fn what_programs_and_unknown_kinds_say_of_themselves_is_left_out() {
        let pod = json!({"kind": "Pod", "status": {"containerStatuses": [{"lastState": {"terminated":
            {"exitCode": 1, "message": "cannot log in with hush"}}}]}});
        let clean = object(pod);
        assert!(!clean.to_string().contains("hush"), "{clean}");
        assert_eq!(clean["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 1);
        let work = |version: &str| {
            object(json!({"kind": "Work", "spec": {"root": {"apiVersion": version, "kind": "X"}},
                "status": {"object": {"replicas": 2, "url": "hush"}}}))
        };
        assert!(!work("shop.example.com/v1").to_string().contains("hush"));
        for version in ["apps/v1", "v1", "networking.k8s.io/v1"] {
            assert_eq!(work(version)["status"]["object"]["replicas"], 2, "{version}");
        }
    }

    proptest! {
        #[test]
        fn no_bootstrap_token_gets_through(before in "[^a-z0-9]{0,5}", id in "[a-z0-9]{6}", secret in "[a-z0-9]{16}", after in "[ \"',=:;]{0,3}") {
            prop_assume!(!before.ends_with(['.', '-', '_', '+', '/']) && !before.ends_with(|c: char| c.is_ascii_alphanumeric()));
            let line = format!("{before}{id}.{secret}{after}");
            prop_assert!(!text(&line).contains(&secret));
        }
    }
}
