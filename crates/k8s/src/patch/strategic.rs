//! Strategic merge patch: a merge patch that merges lists where the schema says so.
//!
//! Directives: `$patch: replace|delete|merge`, `$retainKeys`, `$setElementOrder/<list>` and
//! `$deleteFromPrimitiveList/<list>`.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use super::merge::without_nulls;
use crate::schema::{Field, Shape, Type};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// Applies `patch` to `object`, an instance of `kind`.
pub fn strategic(object: &Value, patch: &Value, kind: &'static Type) -> Result<Value, PatchError> {
    let nothing = Object::new();
    let patch = match patch {
        Value::Object(patch) => patch,
        Value::Null => &nothing,
        _ => return Err(PatchError::BadRequest("invalid JSON document".into())),
    };
    let original = object.as_object().cloned().unwrap_or_default();
    merge_map(original, patch, Cursor::Type(kind)).map(Value::Object)
}

/// Where in the schema the walk is.
#[derive(Clone, Copy)]
enum Cursor {
    Type(&'static Type),
    /// A map: every value has this shape.
    Map(&'static Shape),
    /// No schema below: maps merge, lists replace.
    Unknown,
}

/// What the schema says about one member.
struct Rules {
    /// The schema of the member, or of its elements when it is a list.
    below: Cursor,
    merge: bool,
    replace: bool,
    key: &'static str,
}

impl Cursor {
    fn of(shape: &'static Shape) -> Self {
        match shape {
            Shape::Object(_) => shape.object().map_or(Cursor::Unknown, Cursor::Type),
            Shape::Map(inner) => Cursor::Map(inner),
            Shape::List(inner) => Cursor::of(inner),
            _ => Cursor::Unknown,
        }
    }

    fn rules(self, key: &str) -> Result<Rules, PatchError> {
        let field: &'static Field = match self {
            Cursor::Type(kind) => kind.field(key).ok_or_else(|| {
                let name = kind.name.rsplit('.').next().unwrap_or(kind.name);
                contradiction(format!("unable to find api field in struct {name} for the json field {key:?}"))
            })?,
            Cursor::Map(shape) => {
                return Ok(Rules { below: Cursor::of(shape), merge: false, replace: false, key: "" });
            }
            Cursor::Unknown => {
                return Ok(Rules { below: Cursor::Unknown, merge: false, replace: false, key: "" });
            }
        };
        Ok(Rules {
            below: Cursor::of(&field.shape),
            merge: field.patch_merge,
            replace: field.patch_replace,
            key: field.merge_key,
        })
    }
}

type Object = Map<String, Value>;

fn merge_map(mut original: Object, patch: &Object, cursor: Cursor) -> Result<Object, PatchError> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                let kept = patch.iter().filter(|(k, _)| *k != DIRECTIVE);
                Ok(kept.map(|(k, v)| (k.clone(), v.clone())).collect())
            }
            Some("delete") => Ok(Object::new()),
            _ => Err(contradiction(format!("unknown patch type: {directive} in map: {}", show(patch)))),
        };
    }
    retain_keys(&mut original, patch)?;
    // Lists that come with an order are done here, and not again below.
    let mut ordered = HashSet::new();
    for (key, order) in patch.iter().filter(|(k, _)| k.starts_with(SET_ORDER)) {
        let name = list_name(key, SET_ORDER)?;
        merge_ordered(&mut original, patch.get(name), name, order, cursor)?;
        ordered.insert(name);
    }
    for (key, value) in patch {
        if key == RETAIN_KEYS || key.starts_with(SET_ORDER) || ordered.contains(key.as_str()) {
            continue;
        }
        if key.starts_with(DELETE_FROM) {
            let name = list_name(key, DELETE_FROM)?;
            match (original.get_mut(name), value) {
                (Some(Value::Array(list)), Value::Array(remove)) => {
                    *list = delete_from(std::mem::take(list), remove, &cursor.rules(name)?)?;
                }
                (_, Value::Null) => {
                    original.remove(name);
                }
                _ => {}
            }
            continue;
        }
        if value.is_null() {
            original.remove(key);
            continue;
        }
        let Some(current) = original.get_mut(key) else {
            if let Some(clean) = without_directives(&without_nulls(value)) {
                original.insert(key.clone(), clean);
            }
            continue;
        };
        match (&mut *current, value) {
            (Value::Object(inner), Value::Object(changes)) => {
                let rules = cursor.rules(key)?;
                let merged = match rules.replace {
                    true => changes.clone(),
                    false => merge_map(std::mem::take(inner), changes, rules.below)?,
                };
                *current = Value::Object(merged);
            }
            (Value::Array(inner), Value::Array(changes)) => {
                let rules = cursor.rules(key)?;
                *current = Value::Array(merge_list(std::mem::take(inner), changes, &rules)?);
            }
            _ => match without_directives(&without_nulls(value)) {
                Some(clean) => *current = clean,
                None => {
                    original.remove(key);
                }
            },
        }
    }
    Ok(original)
}

/// `$retainKeys` lists what may stay: a union's other members go.
fn retain_keys(original: &mut Object, patch: &Object) -> Result<(), PatchError> {
    let Some(keys) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let bad = || PatchError::BadRequest("invalid patch format of retainKeys".into());
    let keys = keys.as_array().ok_or_else(bad)?;
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let listed = |name: &str| keys.contains(name);
    for (key, value) in patch {
        let exempt = value.is_null()
            || key == RETAIN_KEYS
            || key.starts_with(DELETE_FROM)
            || key.starts_with(SET_ORDER)
            || listed(key);
        if !exempt {
            return Err(bad());
        }
    }
    original.retain(|key, _| listed(key));
    Ok(())
}

fn list_name<'a>(key: &'a str, prefix: &str) -> Result<&'a str, PatchError> {
    match key.split_once('/') {
        Some((found, name)) if found == prefix => Ok(name),
        _ if prefix == DELETE_FROM => {
            Err(PatchError::BadRequest("invalid patch format of primitive list".into()))
        }
        _ => Err(PatchError::BadRequest("invalid patch format of setElementOrder list".into())),
    }
}

/// Takes values out of a list. Items with keys are not taken out: upstream merges what names them, and refuses all else.
fn delete_from(list: Vec<Value>, remove: &[Value], rules: &Rules) -> Result<Vec<Value>, PatchError> {
    if list.iter().chain(remove).any(Value::is_object) {
        return merge_list(list, remove, &Rules { merge: true, ..*rules });
    }
    let remove = Places::of(remove, "");
    Ok(list.into_iter().filter(|item| remove.find(item).is_none()).collect())
}

/// Merges one list and arranges the result as `order` says; elements only the server has keep their places.
fn merge_ordered(
    original: &mut Object,
    patch: Option<&Value>,
    name: &str,
    order: &Value,
    cursor: Cursor,
) -> Result<(), PatchError> {
    let not_list =
        |v: &Value| contradiction(format!("expected a []interface {{}}, but received a {}", go_type(v)));
    let order = order.as_array().ok_or_else(|| not_list(order))?;
    let live = match original.get(name) {
        None => None,
        Some(Value::Array(list)) => Some(list.clone()),
        Some(other) => return Err(not_list(other)),
    };
    let patch = match patch {
        None => None,
        Some(Value::Array(list)) => Some(list),
        Some(other) => return Err(not_list(other)),
    };
    let rules = cursor.rules(name)?;
    if let Some(patch) = patch {
        check_order(patch, order, rules.key)?;
    }
    let server_order =
        places(live.as_deref().unwrap_or_default(), patch.map_or(&[], Vec::as_slice), rules.key);
    let merged = match (live, patch) {
        (None, None) => return Ok(()),
        (Some(live), None) => live,
        (None, Some(patch)) => patch.iter().filter_map(without_directives).collect(),
        (Some(live), Some(patch)) => merge_list(live, patch, &rules)?,
    };
    let arranged = arrange(merged, order, &server_order, rules.key)?;
    original.insert(name.to_owned(), Value::Array(arranged));
    Ok(())
}

/// The places that elements only the server has are kept by. Upstream deletes in place, so an element that the patch
/// adds takes the place of one that it deletes, as far as there are any.
fn places(live: &[Value], patch: &[Value], key: &str) -> Vec<Value> {
    if key.is_empty() {
        return live.to_vec();
    }
    let (gone, rest): (Vec<_>, Vec<_>) =
        patch.iter().partition(|p| p.get(DIRECTIVE).is_some_and(|d| d == "delete"));
    let gone = Places::of(gone, key);
    let mut out: Vec<Value> = live.iter().filter(|l| gone.find(l).is_none()).cloned().collect();
    let free = live.len() - out.len();
    let kept = Places::of(&out, key);
    let is_new = |p: &Value| p.get(DIRECTIVE).is_none() && kept.find(p).is_none();
    let added: Vec<Value> = rest.into_iter().filter(|p| is_new(p)).take(free).cloned().collect();
    out.extend(added);
    out
}

/// What the patch adds must appear in the order list, in that order.
fn check_order(patch: &[Value], order: &[Value], key: &str) -> Result<(), PatchError> {
    if order.is_empty() {
        return Ok(());
    }
    let mut steps = order.iter().peekable();
    for item in patch.iter().filter(|v| v.get(DIRECTIVE).is_none_or(|d| d != "delete")) {
        let directive = item.get(DIRECTIVE).is_some();
        let wanted = if directive { None } else { Some(identity(item, key)?) };
        let mut found = directive && steps.peek().is_some();
        while !found && let Some(step) = steps.next() {
            found = Some(identity(step, key)?) == wanted;
        }
        if !found {
            return Err(contradiction(format!(
                "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
                Value::from(patch.to_vec()),
                Value::from(order.to_vec())
            )));
        }
    }
    Ok(())
}

fn merge_list(original: Vec<Value>, patch: &[Value], rules: &Rules) -> Result<Vec<Value>, PatchError> {
    if !rules.merge {
        return Ok(patch.to_vec());
    }
    let Some(first) = original.first().or(patch.first()) else { return Ok(original) };
    let maps = first.is_object();
    if original.iter().chain(patch).any(|v| v.is_object() != maps) {
        return Err(contradiction("list element types are not identical".into()));
    }
    if !maps {
        let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
        let mut places = Places::of(&merged, "");
        for value in original.iter().chain(patch) {
            if value.is_array() {
                return Err(PatchError::Unprocessable("lists of lists are not supported".into()));
            }
            if places.find(value).is_none() {
                places.note(value, merged.len());
                merged.push(value.clone());
            }
        }
        return arrange(merged, patch, &original, "");
    }
    if rules.key.is_empty() {
        return Err(contradiction("cannot merge lists without merge key for struct".into()));
    }
    let (original, patch) = element_directives(original, patch, rules.key)?;
    let mut merged = original.clone();
    let mut places = Places::of(&merged, rules.key);
    for item in &patch {
        identity(item, rules.key)?;
        match (places.find(item), item) {
            (Some(at), Value::Object(changes)) => {
                let Value::Object(current) = std::mem::take(&mut merged[at]) else { continue };
                merged[at] = Value::Object(merge_map(current, changes, rules.below)?);
            }
            _ => {
                places.note(item, merged.len());
                merged.push((*item).clone());
            }
        }
    }
    let patch: Vec<Value> = patch.into_iter().cloned().collect();
    arrange(merged, &patch, &original, rules.key)
}

/// Carries out `$patch` in list elements; returns what is left of the list and of the patch.
fn element_directives<'a>(
    mut original: Vec<Value>,
    patch: &'a [Value],
    key: &str,
) -> Result<(Vec<Value>, Vec<&'a Value>), PatchError> {
    let (mut rest, mut gone, mut replace) = (Vec::new(), Vec::new(), false);
    for item in patch {
        match item.get(DIRECTIVE).map(|d| (d, d.as_str())) {
            None => rest.push(item),
            Some((_, Some("delete"))) => {
                identity(item, key)?;
                gone.push(item);
            }
            Some((_, Some("replace"))) => replace = true,
            Some((_, Some("merge"))) => {
                return Err(contradiction("merging lists cannot yet be specified in the patch".into()));
            }
            Some((other, _)) => {
                return Err(contradiction(format!("unknown patch type: {other} in map: {item}")));
            }
        }
    }
    let gone = Places::of(gone, key);
    original.retain(|item| gone.find(item).is_none());
    if replace { Ok((rest.into_iter().cloned().collect(), Vec::new())) } else { Ok((original, rest)) }
}

/// Puts the elements named by `order` in that order, and weaves in the others by their place in `server_order`.
fn arrange(
    merged: Vec<Value>,
    order: &[Value],
    server_order: &[Value],
    key: &str,
) -> Result<Vec<Value>, PatchError> {
    if !key.is_empty() {
        for item in merged.iter().chain(order).chain(server_order) {
            identity(item, key)?;
        }
    }
    let (order, server_order) = (Places::of(order, key), Places::of(server_order, key));
    let (mut named, mut others): (Vec<_>, Vec<_>) =
        merged.into_iter().map(|v| (order.find(&v), v)).partition(|(at, _)| at.is_some());
    named.sort_by_key(|(at, _)| *at);
    others.iter_mut().for_each(|(at, v)| *at = server_order.find(v));
    others.sort_by_key(|(at, _)| *at);
    let mut named = named.into_iter().map(|(_, v)| (server_order.find(&v), v)).peekable();
    let mut out = Vec::with_capacity(named.len() + others.len());
    for (at, item) in others {
        while let Some((before, _)) = named.peek() {
            if at.is_some() && before.is_some() && at < *before {
                break;
            }
            out.extend(named.next().map(|(_, v)| v));
        }
        out.push(item);
    }
    out.extend(named.map(|(_, v)| v));
    Ok(out)
}

/// Where the elements of a list are, by what tells them apart: the first of each. Lists may be long, and so may patches.
struct Places<'k> {
    key: &'k str,
    by_identity: HashMap<String, usize>,
}

impl<'k> Places<'k> {
    fn of<'a>(list: impl IntoIterator<Item = &'a Value>, key: &'k str) -> Self {
        let mut places = Self { key, by_identity: HashMap::new() };
        list.into_iter().enumerate().for_each(|(at, item)| places.note(item, at));
        places
    }

    fn note(&mut self, item: &Value, at: usize) {
        if let Ok(identity) = identity(item, self.key) {
            self.by_identity.entry(identity.to_string()).or_insert(at);
        }
    }

    fn find(&self, item: &Value) -> Option<usize> {
        let identity = identity(item, self.key).ok()?;
        self.by_identity.get(&identity.to_string()).copied()
    }
}

fn identity<'a>(item: &'a Value, key: &str) -> Result<&'a Value, PatchError> {
    if key.is_empty() {
        return Ok(item);
    }
    let Value::Object(map) = item else {
        let text = format!("expected a map[string]interface {{}}, but received a {}", go_type(item));
        return Err(contradiction(text));
    };
    map.get(key).ok_or_else(|| {
        contradiction(format!("map: {} does not contain declared merge key: {key}", show(map)))
    })
}

/// A value that meets nothing to merge with, cleaned of directives; `None` when it was only a directive.
fn without_directives(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => return None,
        Value::Object(map) => Value::Object(
            map.iter()
                .filter(|(k, _)| {
                    *k != RETAIN_KEYS && !k.starts_with(SET_ORDER) && !k.starts_with(DELETE_FROM)
                })
                .filter_map(|(k, v)| Some((k.clone(), without_directives(v)?)))
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.iter().filter_map(without_directives).collect()),
        other => other.clone(),
    })
}

fn contradiction(text: String) -> PatchError {
    PatchError::Contradiction(text)
}

fn show(map: &Object) -> String {
    Value::Object(map.clone()).to_string()
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
