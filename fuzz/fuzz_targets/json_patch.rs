//! JSON patches.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_k8s::patch;

fuzz_target!(|input: &[u8]| {
    let Some((object, patch)) = tombolo_fuzz::two_documents(input) else { return };
    let _ = patch::json(&object, &patch);
});
