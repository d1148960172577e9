//! Label and field selectors, as text and as objects.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_k8s::selector::{FieldSelector, LabelSelector};

fuzz_target!(|input: &[u8]| {
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
});
