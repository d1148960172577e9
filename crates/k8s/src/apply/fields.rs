//! Sets of field paths, kept in their wire form (`FieldsV1`).
//!
//! A node is a JSON object whose keys are path elements: `f:name` a field, `k:{…}` a list item by its keys, `v:…` a
//! list item by its value. A node is itself a member of the set when it is empty or has the key `.`; the root never
//! is. Working on the wire form means that reading and writing managed fields costs nothing.

use serde_json::{Map, Value};

/// A set of paths: the root node.
pub type Fields = Map<String, Value>;

/// The key that makes a node with children a member.
pub const SELF: &str = ".";

static NONE: std::sync::LazyLock<Fields> = std::sync::LazyLock::new(Fields::new);

fn node(value: &Value) -> &Fields {
    value.as_object().unwrap_or(&NONE)
}

fn is_member(node: &Fields) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

/// Builds a node from what is below it and whether it is a member; `None` when it would be neither.
pub fn make(mut children: Fields, member: bool) -> Option<Value> {
    if children.is_empty() {
        return member.then_some(Value::Object(children));
    }
    if member {
        children.insert(SELF.into(), Value::Object(Fields::new()));
    }
    Some(Value::Object(children))
}

pub fn union(into: &mut Fields, other: &Fields) {
    for (key, theirs) in other {
        match into.get_mut(key) {
            None => {
                into.insert(key.clone(), theirs.clone());
            }
            Some(Value::Object(mine)) if key != SELF => {
                let theirs = node(theirs);
                let member = is_member(mine) || is_member(theirs);
                union(mine, theirs);
                if member && !mine.is_empty() {
                    mine.insert(SELF.into(), Value::Object(Fields::new()));
                }
            }
            Some(_) => {}
        }
    }
}

/// Removes from `from` every path of `other`.
pub fn difference(from: &mut Fields, other: &Fields) {
    for (key, theirs) in other {
        if key == SELF {
            continue;
        }
        let Some(Value::Object(mine)) = from.get_mut(key) else { continue };
        let theirs = node(theirs);
        let member = is_member(mine) && !is_member(theirs);
        mine.remove(SELF);
        difference(mine, theirs);
        let gone = mine.is_empty() && !member;
        if gone {
            from.remove(key);
        } else if member && !mine.is_empty() {
            mine.insert(SELF.into(), Value::Object(Fields::new()));
        }
    }
}

pub fn intersection(a: &Fields, b: &Fields) -> Fields {
    let mut out = Fields::new();
    for (key, mine) in a {
        if key == SELF {
            continue;
        }
        let Some(theirs) = b.get(key) else { continue };
        let (mine, theirs) = (node(mine), node(theirs));
        if let Some(value) = make(intersection(mine, theirs), is_member(mine) && is_member(theirs)) {
            out.insert(key.clone(), value);
        }
    }
    out
}

/// Removes a field and all below it.
pub fn exclude(from: &mut Fields, path: &[&str]) {
    let Some((first, rest)) = path.split_first() else { return };
    let key = format!("f:{first}");
    if rest.is_empty() {
        from.remove(&key);
        return;
    }
    if let Some(Value::Object(inner)) = from.get_mut(&key) {
        let member = is_member(inner);
        exclude(inner, rest);
        if !member && inner.is_empty() {
            from.remove(&key);
        }
    }
}

/// The node below an element: its children, and whether the element itself is a member.
pub fn below<'a>(set: &'a Fields, element: &str) -> Option<(&'a Fields, bool)> {
    set.get(element).map(|value| {
        let inner = node(value);
        (inner, is_member(inner))
    })
}

/// Whether a node has anything below it.
pub fn has_children(node: &Fields) -> bool {
    node.keys().any(|k| k != SELF)
}

pub fn contains(set: &Fields, path: &[String]) -> bool {
    match path {
        [] => false,
        [last] => below(set, last).is_some_and(|(_, member)| member),
        [first, rest @ ..] => below(set, first).is_some_and(|(inner, _)| contains(inner, rest)),
    }
}

/// All paths, those of a level before those below it.
pub fn paths(set: &Fields) -> Vec<Vec<String>> {
    fn visit(set: &Fields, prefix: &[String], out: &mut Vec<Vec<String>>) {
        let with = |key: &String| prefix.iter().cloned().chain([key.clone()]).collect::<Vec<_>>();
        let keys = || set.iter().filter(|(k, _)| *k != SELF);
        out.extend(keys().filter(|(_, v)| is_member(node(v))).map(|(k, _)| with(k)));
        for (key, value) in keys() {
            visit(node(value), &with(key), out);
        }
    }
    let mut out = Vec::new();
    visit(set, &[], &mut out);
    out
}

/// A path as error messages show it: `.spec.containers[name="web"].image`.
pub fn display(path: &[String]) -> String {
    path.iter().map(|element| show(element)).collect()
}

fn show(element: &str) -> String {
    match element.split_at_checked(2) {
        Some(("f:", name)) => format!(".{name}"),
        Some(("v:", value)) => format!("[={value}]"),
        Some(("i:", index)) => format!("[{index}]"),
        Some(("k:", keys)) => {
            let keys: Fields = serde_json::from_str(keys).unwrap_or_default();
            let shown: Vec<_> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", shown.join(","))
        }
        _ => element.to_owned(),
    }
}

/// Rewrites what a client sent into the form this module writes, so that equal elements are equal strings.
pub fn canonical(fields: &Fields) -> Fields {
    let mut out = Fields::new();
    for (key, value) in fields {
        let key = match key.split_at_checked(2) {
            Some((kind @ ("k:" | "v:"), json)) => match serde_json::from_str::<Value>(json) {
                Ok(parsed) => format!("{kind}{}", sorted(&parsed)),
                Err(_) => key.clone(),
            },
            _ => key.clone(),
        };
        out.insert(key, Value::Object(canonical(node(value))));
    }
    out
}

fn sorted(value: &Value) -> String {
    let Value::Object(map) = value else { return value.to_string() };
    let mut pairs: Vec<_> = map.iter().collect();
    pairs.sort_by_key(|(name, _)| *name);
    let pairs: Vec<_> =
        pairs.iter().map(|(name, value)| format!("{}:{value}", Value::from(name.as_str()))).collect();
    format!("{{{}}}", pairs.join(","))
}
