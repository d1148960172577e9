//! Request bodies in protobuf, with and without their envelope.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tombolo_k8s::{protobuf, schema};

fuzz_target!(|input: &[u8]| {
    if let Ok(object) = protobuf::decode(input) {
        let (group, version) = object.api_version.split_once('/').unwrap_or(("", &object.api_version));
        let type_ = schema::type_of(group, version, &object.kind).expect("it was decoded by this type");
        tombolo_fuzz::assert_canonical(&object.value, type_);
    }
    let Some((type_, body)) = tombolo_fuzz::kind(input) else { return };
    if let Ok(object) = protobuf::message(body, type_) {
        tombolo_fuzz::assert_canonical(&Value::Object(object), type_);
    }
});
