//! Server-side apply: creating, then applying over what is there, then again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tombolo_k8s::apply::{self, Schema, Write};
use tombolo_k8s::decode;

fuzz_target!(|input: &[u8]| {
    let Some((type_, rest)) = tombolo_fuzz::kind(input) else { return };
    let Some((live, config)) = tombolo_fuzz::two_documents(rest) else { return };
    let api_version = config.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    let reset = apply::reset_fields(type_.short_name(), false, "");
    let write = Write {
        manager: "fuzz",
        subresource: "",
        api_version: &api_version,
        now: "2026-01-02T03:04:05Z",
        reset,
    };
    let schema = Schema::Type(type_);
    let Ok(config) = decode::value(config, type_).map(|decoded| decoded.value) else { return };
    let _ = apply::apply(None, &config, schema, &write, true);
    let Ok(live) = decode::value(live, type_).map(|decoded| decoded.value) else { return };
    let Ok(once) = apply::apply(Some(&live), &config, schema, &write, true) else { return };
    if let Ok(twice) = apply::apply(Some(&once.object), &config, schema, &write, true) {
        assert_eq!(twice.object, once.object, "applying twice is not the same as once");
        assert!(!twice.changed, "applying the same twice counts as a change");
    }
});
