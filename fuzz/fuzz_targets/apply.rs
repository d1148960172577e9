//! Server-side apply: creating, then applying over what is there, then again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use tombolo_k8s::apply::{self, Schema, Write};
use tombolo_k8s::decode;

fuzz_target!(|input: &[u8]| {
    let Some((type_, rest)) = tombolo_fuzz::kind(input) else { return };
    // As in the server: the live object is canonical, the configuration is what the client wrote.
    let Some((live, config)) = tombolo_fuzz::two_documents(rest) else { return };
    if !config.is_object() {
        return;
    }
    let api_version = config.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
    let reset = apply::reset_fields(type_.short_name(), false, "");
    let now = "2026-01-02T03:04:05Z";
    let write = Write { manager: "fuzz", subresource: "", api_version: &api_version, now, reset };
    let schema = Schema::Type(type_);
    let canonical = |object: Value| decode::value(object, type_).ok().map(|decoded| decoded.value);
    let _ = apply::apply(None, &config, schema, &write, true);
    let Some(mut live) = canonical(live) else { return };
    // Owners that no server wrote may lead anywhere but to a panic.
    let _ = apply::apply(Some(&live), &config, schema, &write, true);
    if let Some(Value::Object(metadata)) = live.get_mut("metadata") {
        metadata.remove("managedFields");
    }
    let Ok(once) = apply::apply(Some(&live), &config, schema, &write, true) else { return };
    let Some(once) = canonical(once.object) else { return };
    if let Ok(twice) = apply::apply(Some(&once), &config, schema, &write, true)
        && let Some(twice) = canonical(twice.object)
    {
        assert_eq!(twice, once, "applying twice is not the same as once");
    }
});
