//! How the bytes of an input become a kind and several documents, and what holds for all that was decoded.

use serde_json::Value;
use tombolo_k8s::schema::{KINDS, TYPES, Type};

/// The kinds that an input may name by its first byte, so that seeds stay readable: `a` is a ConfigMap.
const COMMON: &[(&str, &str, &str)] = &[
    ("", "v1", "ConfigMap"),
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("apps", "v1", "Deployment"),
    ("batch", "v1", "CronJob"),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
    ("rbac.authorization.k8s.io", "v1", "Role"),
    ("networking.k8s.io", "v1", "Ingress"),
];

/// Takes the kind from the first byte: a lower-case letter for the common ones, any other byte for the rest.
pub fn kind(input: &[u8]) -> Option<(&'static Type, &[u8])> {
    let (first, rest) = input.split_first()?;
    let common = first.checked_sub(b'a').and_then(|i| COMMON.get(usize::from(i)));
    let type_ = match common {
        Some((group, version, kind)) => tombolo_k8s::schema::type_of(group, version, kind)?,
        None => &TYPES[KINDS[usize::from(*first) % KINDS.len()].type_index as usize],
    };
    Some((type_, rest))
}

/// Two JSON documents with a line break between them. Without two there is nothing to patch.
pub fn two_documents(input: &[u8]) -> Option<(Value, Value)> {
    let at = input.iter().position(|b| *b == b'\n')?;
    let first = serde_json::from_slice(&input[..at]).ok()?;
    Some((first, serde_json::from_slice(&input[at + 1..]).ok()?))
}

/// A value that was decoded is canonical: decoding it again changes nothing and finds nothing to complain about.
pub fn assert_canonical(value: &Value, type_: &'static Type) {
    let again =
        tombolo_k8s::decode::value(value.clone(), type_).expect("what was decoded once decodes again");
    assert_eq!(&again.value, value, "decoding is not idempotent");
    assert!(again.warnings.is_empty(), "what was decoded is not strict: {:?}", again.warnings);
}
