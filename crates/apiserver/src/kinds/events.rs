//! Events: one store, two faces. `v1` and `events.k8s.io/v1` name the same fields differently.

use serde_json::Value;

use crate::registry::resource::Conversion;

/// From `events.k8s.io/v1` to the stored `v1` and back.
pub static CONVERSION: Conversion =
    Conversion { stored_version: "v1", to_stored, from_stored };

const NAMES: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reportingController", "reportingComponent"),
];

fn to_stored(object: &mut Value) {
    rename(object, |(new, old)| (*new, *old));
    object["apiVersion"] = "v1".into();
}

fn from_stored(object: &mut Value) {
    rename(object, |(new, old)| (*old, *new));
    object["apiVersion"] = "events.k8s.io/v1".into();
}

fn rename(object: &mut Value, names: impl Fn(&(&'static str, &'static str)) -> (&'static str, &'static str)) {
    let Some(map) = object.as_object_mut() else { return };
    for (from, to) in NAMES.iter().map(names) {
        if let Some(value) = map.remove(from) {
            map.insert(to.into(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_faces_hold_the_same_event() {
        let face = json!({
            "apiVersion": "events.k8s.io/v1", "regarding": {"name": "a"}, "note": "n",
            "reportingController": "c", "eventTime": "t",
        });
        let mut object = face.clone();
        to_stored(&mut object);
        assert_eq!(object["involvedObject"]["name"], "a");
        assert_eq!(object["reportingComponent"], "c");
        from_stored(&mut object);
        assert_eq!(object, face);
    }
}
