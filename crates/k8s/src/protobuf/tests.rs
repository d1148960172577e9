use base64::Engine as _;
use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// `apiVersion kind hex json` per line, written by `data/extract` from the Go types.
fn cases() -> impl Iterator<Item = (&'static str, Vec<u8>, Value)> {
    include_str!("../../data/protobuf_zero.txt").lines().filter(|l| !l.starts_with('#')).map(|line| {
        let mut words = line.splitn(4, ' ');
        let (_, kind) = (words.next().unwrap(), words.next().unwrap());
        (kind, hex(words.next().unwrap()), serde_json::from_str(words.next().unwrap()).unwrap())
    })
}

#[test]
fn zero_values_come_out_as_go_writes_them() {
    let mut count = 0;
    for (kind, bytes, wanted) in cases() {
        let got = decode(&bytes).unwrap_or_else(|e| panic!("{kind}: {e}"));
        assert_eq!(got.value, wanted, "{kind}");
        count += 1;
    }
    assert!(count > 200);
}

#[test]
fn both_wires_give_the_same_object() {
    for (kind, bytes, text) in cases() {
        let object = decode(&bytes).unwrap();
        let (group, version) = object.api_version.split_once('/').unwrap_or(("", &object.api_version));
        let type_ = schema::type_of(group, version, kind).unwrap();
        let decoded = crate::decode::json(text.to_string().as_bytes(), Some(type_)).unwrap();
        assert_eq!(decoded.value, object.value, "{kind}");
        assert!(decoded.warnings.is_empty(), "{kind}: {:?}", decoded.warnings);
    }
}

/// Upstream's own fixtures, a folder with `<group>.<version>.<Kind>.{json,pb}`: `testdata/HEAD` of the Go module k8s.io/api.
/// In CI a missing folder fails the test; elsewhere the test is skipped, loudly.
fn upstream_s_fixtures() -> Option<std::path::PathBuf> {
    let folder = std::env::var_os("TOMBOLO_K8S_TESTDATA").map(std::path::PathBuf::from);
    if folder.is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "TOMBOLO_K8S_TESTDATA is not set in CI; `cargo xtask test` sets it"
        );
        eprintln!("SKIPPED: TOMBOLO_K8S_TESTDATA is not set; `cargo xtask test upstream_s_fixtures` sets it");
    }
    folder
}

/// Of the stable kinds, those that no client sends as a protobuf body. Alpha and beta kinds are not in the tables either.
const NOT_SENT: [&str; 10] = [
    "admission.k8s.io.v1.AdmissionReview",
    "apidiscovery.k8s.io.v2.APIGroupDiscovery",
    "core.v1.APIGroup",
    "core.v1.APIVersions",
    "core.v1.CreateOptions",
    "core.v1.GetOptions",
    "core.v1.ListOptions",
    "core.v1.PatchOptions",
    "core.v1.UpdateOptions",
    "core.v1.WatchEvent",
];

#[test]
fn upstream_s_fixtures_decode_alike_from_both_wires() {
    let Some(folder) = upstream_s_fixtures() else { return };
    let (mut count, mut unknown, mut failures) = (0, Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "pb") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let wanted: Value =
            serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap();
        let got = match decode(&std::fs::read(&path).unwrap()) {
            Err(ProtobufError::UnknownKind { .. }) => {
                unknown.push(name);
                continue;
            }
            got => got,
        };
        count += 1;
        match got {
            Ok(got) if got.value == wanted => {}
            Ok(got) => failures.push(format!("{name}: {}", difference("", &got.value, &wanted))),
            Err(e) => failures.push(format!("{name}: {e}")),
        }
        let text = std::fs::read(path.with_extension("json")).unwrap();
        let api_version = wanted["apiVersion"].as_str().unwrap();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let type_ = schema::type_of(group, version, wanted["kind"].as_str().unwrap());
        match crate::decode::json(&text, type_) {
            Ok(d) if d.value == wanted && d.warnings.is_empty() => {}
            Ok(d) => {
                failures.push(format!("{name} json: {} {:?}", difference("", &d.value, &wanted), d.warnings))
            }
            Err(e) => failures.push(format!("{name} json: {e}")),
        }
    }
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    unknown.retain(|name| !name.contains("alpha") && !name.contains("beta"));
    unknown.sort();
    assert_eq!(unknown, NOT_SENT);
    assert!(count > 60, "only {count} fixtures");
}

fn difference(path: &str, got: &Value, wanted: &Value) -> String {
    match (got, wanted) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            let differ = keys.into_iter().find(|k| a.get(*k) != b.get(*k)).unwrap();
            let (a, b) = (a.get(differ).unwrap_or(&Value::Null), b.get(differ).unwrap_or(&Value::Null));
            difference(&format!("{path}.{differ}"), a, b)
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let i = (0..a.len()).find(|i| a[*i] != b[*i]).unwrap();
            difference(&format!("{path}[{i}]"), &a[i], &b[i])
        }
        _ => format!("{path}: got {got}, wanted {wanted}"),
    }
}

#[test]
fn bytes_that_are_not_ours_are_refused_with_a_reason() {
    assert_eq!(decode(b"{}").unwrap_err(), ProtobufError::NoMagic);
    let unknown = decode(b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Foo").unwrap_err();
    assert_eq!(unknown.to_string(), "no kind \"Foo\" is registered for version \"v1\"");
    let cut = decode(b"k8s\0\x0a\x09\x0a\x02v1").unwrap_err();
    assert_eq!(cut.to_string(), "proto: unexpected EOF");
}

#[test]
fn endless_nesting_is_refused() {
    let type_ = schema::type_named(schema::JSON_SCHEMA).unwrap();
    let not = type_.field("not").unwrap().number;
    let mut bytes = Vec::new();
    for _ in 0..10_000 {
        let mut outer = Vec::new();
        varint(&mut outer, u64::from(not) << 3 | 2);
        varint(&mut outer, bytes.len() as u64);
        outer.extend_from_slice(&bytes);
        bytes = outer;
    }
    assert_eq!(message(&bytes, type_).unwrap_err(), ProtobufError::Malformed("nested too deeply"));
}

#[test]
fn growth_is_bounded() {
    let type_ = schema::type_named("io.k8s.api.core.v1.PodSpec").unwrap();
    let bytes = [0x12, 0].repeat(MAX_MESSAGES as usize + 1);
    assert_eq!(message(&bytes, type_).unwrap_err(), ProtobufError::Malformed("too many values"));
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = message(&bytes, schema::type_named("io.k8s.api.core.v1.Pod").unwrap());
        let _ = decode(&[&MAGIC[..], &bytes].concat());
    }

    #[test]
    fn damaged_bodies_never_panic(case in 0usize..200, at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let Some((_, mut bytes, _)) = cases().nth(case) else { return Ok(()) };
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = decode(&bytes);
        let _ = decode(&bytes[..at]);
    }
}

#[test]
fn secrets_carry_bytes() {
    let mut entry = vec![0x0a, 1, b'k', 0x12, 2, 0xff, 0];
    let mut bytes = vec![0x12, entry.len() as u8];
    bytes.append(&mut entry);
    let secret = message(&bytes, schema::type_named("io.k8s.api.core.v1.Secret").unwrap()).unwrap();
    let encoded = base64::engine::general_purpose::STANDARD.encode([0xff, 0]);
    assert_eq!(secret["data"]["k"], Value::String(encoded));
}
