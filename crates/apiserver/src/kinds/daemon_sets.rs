//! Daemon sets count the versions of their template in an annotation, for tools from before there were revisions.

use serde_json::{Value, json};

const GENERATION: &str = "deprecated.daemonset.template.generation";

/// The count is the server's: what the client says of it is not heard.
pub fn convert(object: &mut Value, old: Option<&Value>) {
    set(object, old.map_or(1, count));
}

pub fn prepare_update(object: &mut Value, old: &Value) {
    let changed = object["spec"]["template"] != old["spec"]["template"];
    set(object, count(old) + i64::from(changed));
}

fn count(object: &Value) -> i64 {
    object["metadata"]["annotations"][GENERATION].as_str().and_then(|n| n.parse().ok()).unwrap_or(1)
}

fn set(object: &mut Value, generation: i64) {
    let annotations = &mut object["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[GENERATION] = generation.to_string().into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_template_is_counted_and_nothing_else() {
        let mut set = json!({"metadata": {"name": "a"}, "spec": {"template": {"a": 1}}});
        convert(&mut set, None);
        assert_eq!(set["metadata"]["annotations"][GENERATION], "1");
        let old = set.clone();
        set["metadata"] = json!({"labels": {"a": "b"}});
        prepare_update(&mut set, &old);
        assert_eq!(set["metadata"]["annotations"][GENERATION], "1");
        set["spec"]["template"] = json!({"a": 2});
        prepare_update(&mut set, &old);
        assert_eq!(set["metadata"]["annotations"][GENERATION], "2");
    }
}
