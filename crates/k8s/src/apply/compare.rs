//! What changed between two objects, as sets of paths.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::{self, Fields};
use super::topology::{Form, Members, Schema, elements};

/// Paths that are only in the new object, in both but different, or only in the old one.
#[derive(Debug, Default)]
pub struct Delta {
    pub added: Fields,
    pub modified: Fields,
    pub removed: Fields,
}

/// One side of a comparison at one place.
#[derive(Clone, Copy)]
pub enum Side<'v> {
    Absent,
    /// A built-in field that exists without being written: an empty struct, zero, or null.
    Zero,
    Value(&'v Value),
}

/// What happened to the place itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Same,
    Added,
    Modified,
    Removed,
}

/// Fields that belong to the system and that nobody owns.
const UNOWNED: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

impl Delta {
    /// Compares whole objects. System metadata is left out: nobody owns it.
    pub fn of(old: Side<'_>, new: Side<'_>, schema: Schema<'_>) -> Self {
        let mut delta = Delta::default();
        let Some(members) = schema.members() else { return delta };
        each_member(old, new, members, |name, old, new, child| match name {
            "apiVersion" | "kind" => {}
            "metadata" => delta.put(|| "f:metadata".into(), metadata(old, new, child)),
            _ => delta.put(|| format!("f:{name}"), compare(old, new, child)),
        });
        delta
    }

    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Leaves out fields (and all below) that this write cannot change.
    pub fn exclude(&mut self, paths: &[&[&str]]) {
        for path in paths {
            fields::exclude(&mut self.added, path);
            fields::exclude(&mut self.modified, path);
            fields::exclude(&mut self.removed, path);
        }
    }

    fn put(&mut self, key: impl Fn() -> String, (mark, below): (Mark, Delta)) {
        let sets = [
            (&mut self.added, below.added, Mark::Added),
            (&mut self.modified, below.modified, Mark::Modified),
            (&mut self.removed, below.removed, Mark::Removed),
        ];
        for (set, below, kind) in sets {
            if let Some(node) = fields::make(below, mark == kind) {
                set.insert(key(), node);
            }
        }
    }
}

impl<'v> Side<'v> {
    /// The value, unless it is null or not written.
    fn value(self) -> Option<&'v Value> {
        match self {
            Side::Value(value) if !value.is_null() => Some(value),
            _ => None,
        }
    }

    /// A member; a built-in field that is always written is there even when it is not.
    fn member(self, name: &str, structure: bool, always: bool) -> Side<'v> {
        let written = match self {
            Side::Absent => return Side::Absent,
            Side::Zero => None,
            Side::Value(value) => value.get(name),
        };
        match written {
            Some(Value::Null) if structure => Side::Zero,
            Some(value) => Side::Value(value),
            None if always => Side::Zero,
            None => Side::Absent,
        }
    }
}

fn metadata(old: Side<'_>, new: Side<'_>, schema: Schema<'_>) -> (Mark, Delta) {
    let mut delta = Delta::default();
    let Some(members) = schema.members() else { return (Mark::Same, delta) };
    each_member(old, new, members, |name, old, new, child| {
        if !UNOWNED.contains(&name) {
            delta.put(|| format!("f:{name}"), compare(old, new, child));
        }
    });
    (Mark::Same, delta)
}

fn each_member<'v, 'a>(
    old: Side<'v>,
    new: Side<'v>,
    members: Members<'a>,
    mut visit: impl FnMut(&str, Side<'v>, Side<'v>, Schema<'a>),
) {
    let structure = members.is_struct();
    let mut one = |name: &str| {
        let (schema, always) = match members.get(name) {
            Some((Schema::Field(field), _)) => (Schema::Field(field), field.required),
            Some((schema, _)) => (schema, false),
            None => (Schema::Deduced, false),
        };
        visit(name, old.member(name, structure, always), new.member(name, structure, always), schema);
    };
    let left = old.value().and_then(Value::as_object);
    let right = new.value().and_then(Value::as_object);
    left.into_iter().flat_map(|m| m.keys()).for_each(|name| one(name));
    for name in right.into_iter().flat_map(|m| m.keys()) {
        if !left.is_some_and(|m| m.contains_key(name)) {
            one(name);
        }
    }
    // A struct that comes or goes takes along the fields it has without being written.
    if let (Members::Struct(kind), true) =
        (members, matches!(old, Side::Absent) || matches!(new, Side::Absent))
    {
        let written = |name: &str| [left, right].into_iter().flatten().any(|m| m.contains_key(name));
        for field in kind.fields.iter().filter(|f| f.required && !written(f.name)) {
            one(field.name);
        }
    }
}

fn compare(old: Side<'_>, new: Side<'_>, schema: Schema<'_>) -> (Mark, Delta) {
    let mut delta = Delta::default();
    let (left, right) = (old.value(), new.value());
    let empty = |v: Option<&Value>| match v {
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
        None => true,
    };
    if empty(left) && empty(right) {
        return (leaf(old, new), delta);
    }
    let forms = (left.map(|v| schema.form(v)), right.map(|v| schema.form(v)));
    let mark = match forms {
        (Some(Form::Map(members)), Some(Form::Map(_)) | None) | (None, Some(Form::Map(members))) => {
            each_member(old, new, members, |name, old, new, child| {
                delta.put(|| format!("f:{name}"), compare(old, new, child));
            });
            presence(old, new)
        }
        (Some(form @ (Form::Set | Form::Keyed(..))), Some(Form::Set | Form::Keyed(..)) | None)
        | (None, Some(form @ (Form::Set | Form::Keyed(..)))) => {
            if left != right {
                items(left, right, &form, &mut delta);
            }
            presence(old, new)
        }
        (Some(Form::Leaf) | None, Some(Form::Leaf) | None) => leaf(old, new),
        // The value changed its kind: all below the old one is gone, all below the new one is new.
        _ => {
            let (_, gone) = compare(old, Side::Absent, schema);
            let (_, fresh) = compare(Side::Absent, new, schema);
            delta.removed = gone.removed;
            delta.added = fresh.added;
            Mark::Modified
        }
    };
    (mark, delta)
}

fn presence(old: Side<'_>, new: Side<'_>) -> Mark {
    match (old, new) {
        (Side::Absent, _) => Mark::Added,
        (_, Side::Absent) => Mark::Removed,
        _ => Mark::Same,
    }
}

fn leaf(old: Side<'_>, new: Side<'_>) -> Mark {
    let same = match (old, new) {
        (Side::Absent, Side::Absent) | (Side::Zero, Side::Zero) => true,
        (Side::Absent, _) => return Mark::Added,
        (_, Side::Absent) => return Mark::Removed,
        (Side::Zero, Side::Value(value)) | (Side::Value(value), Side::Zero) => is_zero(value),
        (Side::Value(old), Side::Value(new)) => old == new,
    };
    if same { Mark::Same } else { Mark::Modified }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Compares list items that have the same path element; one that occurs twice is compared as a whole.
fn items(left: Option<&Value>, right: Option<&Value>, form: &Form<'_>, delta: &mut Delta) {
    fn list(value: Option<&Value>) -> &[Value] {
        value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
    let (left, right) = (list(left), list(right));
    let schema = match form {
        Form::Keyed(_, schema) => *schema,
        _ => Schema::Atomic,
    };
    let mut groups: BTreeMap<String, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for (element, item) in elements(left, form) {
        groups.entry(element).or_default().0.push(item);
    }
    for (element, item) in elements(right, form) {
        groups.entry(element).or_default().1.push(item);
    }
    for (element, (old, new)) in groups {
        let change = match (old.as_slice(), new.as_slice()) {
            ([], [n]) => compare(Side::Absent, Side::Value(n), schema),
            ([o], []) => compare(Side::Value(o), Side::Absent, schema),
            ([o], [n]) => compare(Side::Value(o), Side::Value(n), schema),
            (old, new) if old == new => (Mark::Same, Delta::default()),
            (old, new) => {
                let mark = match (old.len() > 1, new.len() > 1) {
                    (true, true) => Mark::Modified,
                    (true, false) => Mark::Removed,
                    _ => Mark::Added,
                };
                (mark, Delta::default())
            }
        };
        delta.put(|| element.clone(), change);
    }
}
