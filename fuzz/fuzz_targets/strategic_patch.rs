//! Strategic merge patches, laid over an object as the server has decoded it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_k8s::{decode, patch};

fuzz_target!(|input: &[u8]| {
    let Some((type_, rest)) = tombolo_fuzz::kind(input) else { return };
    let Some((object, patch)) = tombolo_fuzz::two_documents(rest) else { return };
    let Ok(decoded) = decode::value(object, type_) else { return };
    if let Ok(patched) = patch::strategic(&decoded.value, &patch, type_) {
        let _ = decode::value(patched, type_);
    }
});
