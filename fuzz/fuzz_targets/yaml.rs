//! Request bodies in YAML.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_k8s::decode;

fuzz_target!(|input: &[u8]| {
    let _ = decode::yaml(input, None);
    let Some((type_, body)) = tombolo_fuzz::kind(input) else { return };
    if let Ok(decoded) = decode::yaml(body, Some(type_))
        && !decoded.value.is_null()
    {
        tombolo_fuzz::assert_canonical(&decoded.value, type_);
    }
});
