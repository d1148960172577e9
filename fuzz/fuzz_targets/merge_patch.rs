//! JSON merge patches. Laying the same patch twice is the same as once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_k8s::patch;

fuzz_target!(|input: &[u8]| {
    let Some((object, patch)) = tombolo_fuzz::two_documents(input) else { return };
    if let Ok(once) = patch::merge(&object, &patch) {
        assert_eq!(patch::merge(&once, &patch).as_ref(), Ok(&once), "a merge patch is not idempotent");
    }
});
