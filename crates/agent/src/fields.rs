//! Fields as server-side apply names them in a conflict, such as `.spec.template.spec.containers[name="web"].image`.

use serde_json::Value;

/// Takes the field at `path` out of `object`; says whether it was there.
pub fn remove(object: &mut Value, path: &str) -> bool {
    match path.strip_prefix('.') {
        Some(rest) => remove_key(object, rest),
        None if path.starts_with('[') => remove_item(object, path),
        None => false,
    }
}

/// Keys may hold dots themselves (`app.kubernetes.io/name`), so the longest key that fits is taken.
fn remove_key(object: &mut Value, rest: &str) -> bool {
    let Some(map) = object.as_object_mut() else { return false };
    let fits = |key: &str| {
        rest.strip_prefix(key).filter(|r| r.is_empty() || r.starts_with(['.', '['])).map(str::len)
    };
    let found = map.keys().filter_map(|key| Some((key.clone(), fits(key)?))).max_by_key(|(key, _)| key.len());
    let Some((key, left)) = found else { return false };
    if left == 0 {
        return map.remove(&key).is_some();
    }
    let rest = &rest[rest.len() - left..];
    map.get_mut(&key).is_some_and(|value| remove(value, rest))
}

fn remove_item(object: &mut Value, path: &str) -> bool {
    let Some(list) = object.as_array_mut() else { return false };
    let Some(end) = closing(path) else { return false };
    let (inside, rest) = (&path[1..end], &path[end + 1..]);
    let position = if let Some(value) = inside.strip_prefix('=') {
        let Ok(value) = serde_json::from_str::<Value>(value) else { return false };
        list.iter().position(|item| *item == value)
    } else if let Ok(index) = inside.parse::<usize>() {
        Some(index).filter(|i| *i < list.len())
    } else {
        let keys: Vec<(String, Value)> = pairs(inside);
        if keys.is_empty() {
            return false;
        }
        list.iter().position(|item| keys.iter().all(|(k, v)| item.get(k).unwrap_or(&Value::Null) == v))
    };
    match position {
        Some(at) if rest.is_empty() => {
            list.remove(at);
            true
        }
        Some(at) => remove(&mut list[at], rest),
        None => false,
    }
}

/// The bracket that closes the one at the start, not counting those inside quotes.
fn closing(path: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in path.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ']' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

/// `containerPort=80,protocol="TCP"`.
fn pairs(inside: &str) -> Vec<(String, Value)> {
    let (mut all, mut rest) = (Vec::new(), inside);
    while let Some((key, after)) = rest.split_once('=') {
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        let Some(Ok(value)) = values.next() else { return Vec::new() };
        rest = after[values.byte_offset()..].trim_start_matches(',');
        all.push((key.to_owned(), value));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_found_as_a_conflict_names_them() {
        let object = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "web", "app": "x"}, "finalizers": ["a/b"]},
            "spec": {"replicas": 3, "template": {"spec": {"containers": [
                {"name": "web", "image": "a", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "http"}]},
                {"name": "log]\"", "image": "b"}]}}},
        });
        for (path, pointer) in [
            (".spec.replicas", "/spec/replicas"),
            (".metadata.labels.app.kubernetes.io/name", "/metadata/labels/app.kubernetes.io~1name"),
            (".spec.template.spec.containers[name=\"web\"].image", "/spec/template/spec/containers/0/image"),
            (
                ".spec.template.spec.containers[name=\"web\"].ports[containerPort=80,protocol=\"TCP\"].name",
                "/spec/template/spec/containers/0/ports/0/name",
            ),
            (
                ".spec.template.spec.containers[name=\"log]\\\"\"].image",
                "/spec/template/spec/containers/1/image",
            ),
            (".metadata.finalizers[=\"a/b\"]", "/metadata/finalizers/0"),
        ] {
            let mut trimmed = object.clone();
            assert!(object.pointer(pointer).is_some(), "{pointer}");
            assert!(remove(&mut trimmed, path), "{path} was not found");
            assert_eq!(trimmed.pointer(pointer), None, "{path}");
        }
        let mut same = object.clone();
        for path in [
            ".spec.nothing",
            ".spec.replicas.more",
            "[name=\"x\"]",
            "nonsense",
            ".metadata.finalizers[=\"z\"]",
        ] {
            assert!(!remove(&mut same, path), "{path}");
        }
        assert_eq!(same, object);
    }
}
