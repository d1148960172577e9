//! Merge patches (RFC 7386): the one that turns one value into another, and what one does.

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

/// The merge patch that leads to `to` from anything that has no other keys than `from`, whatever their values.
pub fn rewrite(from: &Value, to: &Value) -> Value {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            let mut patch: Map<String, Value> = to
                .iter()
                .map(|(key, value)| {
                    (key.clone(), from.get(key).map_or_else(|| value.clone(), |f| rewrite(f, value)))
                })
                .collect();
            for key in from.keys().filter(|key| !to.contains_key(*key)) {
                patch.insert(key.clone(), Value::Null);
            }
            Value::Object(patch)
        }
        (_, to) => to.clone(),
    }
}

/// Does to `target` what a server does on a merge patch.
pub fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            map.remove(key);
        } else {
            apply(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// As [`apply`], but what the patch takes away stays: all that may be there when nobody knows whether it was applied.
pub fn widen(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
                widen(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        // Keys of an object are kept even if the patch puts something else in its place: they may still be there.
        (Value::Object(_), _) => {}
        (target, patch) => *target = patch.clone(),
    }
}

/// Is there anything that [`without_nulls`] takes out?
pub fn has_nulls(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().any(|v| v.is_null() || has_nulls(v)),
        _ => false,
    }
}

/// `value` without what a merge patch cannot carry: null as the value of a key.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, without_nulls(v))).collect(),
        ),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

        #[test]
        fn a_rewrite_leads_there_whether_or_not_earlier_patches_arrived(
            base in values(), first in values(), second in values(), to in values(), arrived in 0..4u8,
        ) {
            let wrap = |value: &Value| serde_json::json!({ "x": value });
            let (base, first, second, to) = (wrap(&base), wrap(&first), wrap(&second), wrap(&to));
            let patches = [merge_patch(&base, &first), merge_patch(&first, &second)];
            let (mut there, mut possible) = (base.clone(), base);
            for (n, patch) in patches.iter().enumerate() {
                let Some(patch) = patch else { continue };
                widen(&mut possible, patch);
                if arrived & (1 << n) != 0 {
                    apply(&mut there, patch);
                }
            }
            apply(&mut there, &rewrite(&possible, &to));
            prop_assert_eq!(there, to);
        }
    }
}
