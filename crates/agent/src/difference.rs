//! The merge patch (RFC 7386) that turns one value into another.

use serde_json::{Map, Value};

/// `None` when there is nothing to change.
pub fn merge_patch(from: &Value, to: &Value) -> Option<Value> {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            let mut patch = Map::new();
            for key in from.keys().filter(|key| !to.contains_key(*key)) {
                patch.insert(key.clone(), Value::Null);
            }
            for (key, value) in to {
                let change = from.get(key).map_or_else(|| Some(value.clone()), |old| merge_patch(old, value));
                if let Some(change) = change {
                    patch.insert(key.clone(), change);
                }
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        (from, to) if from == to => None,
        (_, to) => Some(to.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn apply(target: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *target = patch.clone();
            return;
        };
        if !target.is_object() {
            *target = Value::Object(Map::new());
        }
        let map = target.as_object_mut().expect("an object");
        for (key, value) in patch {
            if value.is_null() {
                map.remove(key);
            } else {
                apply(map.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0i64..5).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[abc]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_patch_leads_from_one_to_the_other(from in values(), to in values()) {
            let (from, to) = (serde_json::json!({ "x": from }), serde_json::json!({ "x": to }));
            let mut reached = from.clone();
            match merge_patch(&from, &to) {
                Some(patch) => apply(&mut reached, &patch),
                None => prop_assert_eq!(&from, &to),
            }
            prop_assert_eq!(reached, to);
        }
    }
}
