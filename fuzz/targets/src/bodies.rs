//! Decoders of request bodies and of query parameters.

use serde_json::Value;
use tombolo_k8s::continuation::Continue;
use tombolo_k8s::selector::{FieldSelector, LabelSelector};
use tombolo_k8s::{decode, protobuf as wire, schema};

use crate::input::{assert_canonical, kind};

pub fn json(input: &[u8]) {
    let _ = decode::type_meta(input);
    let _ = decode::custom(input);
    let Some((type_, body)) = kind(input) else { return };
    if let Ok(decoded) = decode::json(body, Some(type_)) {
        assert_canonical(&decoded.value, type_);
    }
}

pub fn yaml(input: &[u8]) {
    let _ = decode::yaml(input, None);
    let Some((type_, body)) = kind(input) else { return };
    if let Ok(decoded) = decode::yaml(body, Some(type_))
        && !decoded.value.is_null()
    {
        assert_canonical(&decoded.value, type_);
    }
}

/// With and without the envelope.
pub fn protobuf(input: &[u8]) {
    if let Ok(object) = wire::decode(input) {
        let (group, version) = object.api_version.split_once('/').unwrap_or(("", &object.api_version));
        let type_ = schema::type_of(group, version, &object.kind).expect("it was decoded by this type");
        assert_canonical(&object.value, type_);
    }
    let Some((type_, body)) = kind(input) else { return };
    if let Ok(object) = wire::message(body, type_) {
        assert_canonical(&Value::Object(object), type_);
    }
}

/// As text and as objects.
pub fn selectors(input: &[u8]) {
    if let Ok(value) = serde_json::from_slice(input)
        && let Ok(selector) = LabelSelector::from_object(Some(&value))
    {
        let _ = selector.matches(value.as_object());
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(selector) = LabelSelector::parse(text) {
        let _ = selector.matches_by(|key| (key.len() > 3).then_some("web"));
        let _ = selector.exact("app");
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        let _ = selector.matches(|field| Some(field.to_owned()));
        let _ = selector.exact("metadata.name");
    }
}

pub fn continue_token(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(token) = Continue::decode(text) {
        assert!(!token.after.split('/').any(|part| part == ".."), "a token leaves its list: {}", token.after);
        let again = Continue::decode(&Continue::encode(token.revision, &token.after));
        assert_eq!(again.as_ref(), Ok(&token), "a token changes when it is passed on");
    }
}
