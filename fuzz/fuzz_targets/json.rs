//! Request bodies in JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_k8s::decode;

fuzz_target!(|input: &[u8]| {
    let _ = decode::type_meta(input);
    let _ = decode::custom(input);
    let Some((type_, body)) = tombolo_fuzz::kind(input) else { return };
    if let Ok(decoded) = decode::json(body, Some(type_)) {
        tombolo_fuzz::assert_canonical(&decoded.value, type_);
    }
});
