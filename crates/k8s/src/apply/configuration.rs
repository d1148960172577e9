//! Applying a configuration.

use serde_json::{Map, Value};

use super::compare::{Delta, Side};
use super::fields::{self, Fields};
use super::managers::{Entry, decode, encode, managed_fields};
use super::merge::merge;
use super::topology::Schema;
use super::walk::{check, owned, remove, with_named};
use super::{Applied, ApplyError, Conflict, Conflicts, Write, update};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Lays `config` over `live` (absent: creates), moves ownership, and removes what this manager no longer sets.
pub fn apply(
    live: Option<&Value>,
    config: &Value,
    schema: Schema<'_>,
    write: &Write<'_>,
    force: bool,
) -> Result<Applied, ApplyError> {
    if managed_fields(config).is_some() {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".into()));
    }
    let version = config.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if version != write.api_version {
        return Err(ApplyError::BadRequest(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {}",
            write.api_version
        )));
    }
    fits(config, schema)?;
    let entries = decode(live.and_then(managed_fields), true)
        .map_err(|e| ApplyError::Mismatch(format!("failed to decode managed fields: {e}")))?;
    let entries = match live {
        Some(live) if entries.is_empty() => {
            let before = Write { manager: BEFORE_FIRST_APPLY, ..*write };
            let delta = update::compare(Side::Zero, live, schema, &before);
            update::record(entries, delta, &before)
        }
        _ => entries,
    };
    let attempt = Attempt { live, config, schema, write, entries };
    let (object, entries) = match attempt.run(force) {
        Err(ApplyError::Conflicts(conflicts)) if write.manager == "kubectl" => {
            let conflicts = attempt.not_last_applied(conflicts);
            if !conflicts.0.is_empty() {
                return Err(ApplyError::Conflicts(conflicts));
            }
            attempt.run(true)?
        }
        other => other?,
    };
    Ok(attempt.finish(object, entries))
}

/// Everything one attempt needs; `kubectl` may take a second one.
struct Attempt<'a> {
    live: Option<&'a Value>,
    config: &'a Value,
    schema: Schema<'a>,
    write: &'a Write<'a>,
    entries: Vec<Entry>,
}

impl Attempt<'_> {
    fn is_mine(&self, entry: &Entry) -> bool {
        entry.is(self.write.manager, true, self.write.api_version, self.write.subresource)
    }

    fn run(&self, force: bool) -> Result<(Value, Vec<Entry>), ApplyError> {
        let empty = Value::Object(Map::new());
        let live = self.live.unwrap_or(&empty);
        let merged = merge(live, self.config, self.schema);
        let mut mine = owned(self.config, self.schema);
        for path in self.write.reset {
            fields::exclude(&mut mine, path);
        }
        let mut entries = self.entries.clone();
        let position = entries.iter().position(|e| self.is_mine(e));
        let last = position.map(|at| entries.remove(at));
        let object = match &last {
            Some(last) => self.prune(merged, &last.fields, &mine, &entries),
            None => merged,
        };
        let old = self.live.map_or(Side::Zero, Side::Value);
        let Delta { added, modified, removed } = update::compare(old, &object, self.schema, self.write);
        let mut changed = added;
        fields::union(&mut changed, &modified);
        if !force {
            let conflicts = conflicts(&entries, &changed);
            if !conflicts.0.is_empty() {
                return Err(ApplyError::Conflicts(conflicts));
            }
        }
        for entry in &mut entries {
            fields::difference(&mut entry.fields, &changed);
            fields::difference(&mut entry.fields, &removed);
        }
        entries.retain(|e| !e.fields.is_empty());
        unowned(&mut mine);
        if !mine.is_empty() {
            let same = self.live.is_some_and(|live| equal_but_owners(live, &object));
            let time = if same { last.and_then(|l| l.time) } else { Some(self.write.now.to_owned()) };
            entries.push(Entry {
                manager: self.write.manager.to_owned(),
                applied: true,
                api_version: self.write.api_version.to_owned(),
                subresource: self.write.subresource.to_owned(),
                time,
                fields: mine,
            });
        }
        Ok((object, entries))
    }

    /// Removes what the manager set last time, except what it still sets or somebody else owns.
    fn prune(&self, merged: Value, last: &Fields, mine: &Fields, others: &[Entry]) -> Value {
        let named = |set: &Fields| with_named(set, Some(self.schema));
        let without = |set: &Fields| match remove(&merged, set, self.schema) {
            Some(object @ Value::Object(_)) => object,
            _ => Value::Object(Map::new()),
        };
        let last = named(last);
        let first_cut = without(&last);
        let mut managed = mine.clone();
        others.iter().for_each(|e| fields::union(&mut managed, &e.fields));
        let all = named(&owned(&merged, self.schema));
        let mut gone = all.clone();
        fields::difference(&mut gone, &named(&owned(&first_cut, self.schema)));
        fields::difference(&mut gone, &named(&managed));
        let second_cut = without(&gone);
        // Only what the manager itself had set may go; anything else the cuts took along comes back.
        let mut gone = all;
        fields::difference(&mut gone, &named(&owned(&second_cut, self.schema)));
        without(&fields::intersection(&gone, &last))
    }

    /// `kubectl` may take over what its own client-side apply wrote and nobody changed since.
    fn not_last_applied(&self, conflicts: Conflicts) -> Conflicts {
        let Some(allowed) = self.last_applied() else { return conflicts };
        Conflicts(conflicts.0.into_iter().filter(|c| !fields::contains(&allowed, &c.path)).collect())
    }

    fn last_applied(&self) -> Option<Fields> {
        let live = self.live?;
        let text = live.get("metadata")?.get("annotations")?.get(LAST_APPLIED)?.as_str()?;
        let object: Value = serde_json::from_str(text).ok()?;
        if object.get("apiVersion")?.as_str()? != self.write.api_version
            || fits(&object, self.schema).is_err()
        {
            return None;
        }
        let mut set = owned(&object, self.schema);
        let delta = Delta::of(Side::Value(&object), Side::Value(live), self.schema);
        for changed in [&delta.modified, &delta.added, &delta.removed] {
            fields::difference(&mut set, changed);
        }
        Some(set)
    }

    fn finish(&self, mut object: Value, entries: Vec<Entry>) -> Applied {
        // Built-in types write no null that means anything; a custom resource's schema decides about its own.
        if matches!(self.schema, Schema::Type(_)) {
            drop_nulls(&mut object);
        }
        if self.write.manager == "kubectl" {
            refresh_last_applied(&mut object, self.config);
        }
        let changed = !self.live.is_some_and(|live| equal_but_owners(live, &object));
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            metadata.extend(encode(entries).map(|list| ("managedFields".to_owned(), list)));
        }
        Applied { object, changed }
    }
}

fn fits(config: &Value, schema: Schema<'_>) -> Result<(), ApplyError> {
    let mut errors = Vec::new();
    check(config, schema, "", &mut errors);
    let text = match errors.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    };
    let name = |field: &str| config.pointer(field).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = name("/apiVersion").split_once('/').unwrap_or(("", name("/apiVersion")));
    let version = if group.is_empty() { format!("/{version}") } else { format!("{group}/{version}") };
    Err(ApplyError::Mismatch(format!(
        "failed to create typed patch object ({}/{}; {version}, Kind={}): {text}",
        name("/metadata/namespace"),
        name("/metadata/name"),
        name("/kind")
    )))
}

fn conflicts(entries: &[Entry], changed: &Fields) -> Conflicts {
    let mut out = Vec::new();
    for entry in entries {
        let owner = entry.describe();
        let paths = fields::paths(&fields::intersection(&entry.fields, changed));
        out.extend(paths.into_iter().map(|path| Conflict { owner: owner.clone(), path }));
    }
    Conflicts(out)
}

/// Drops what nobody owns from a configuration's fields.
fn unowned(set: &mut Fields) {
    for name in ["apiVersion", "kind"] {
        fields::exclude(set, &[name]);
    }
    for name in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        fields::exclude(set, &["metadata", name]);
    }
    if let Some(Value::Object(metadata)) = set.get_mut("f:metadata") {
        metadata.remove(fields::SELF);
        if metadata.is_empty() {
            set.remove("f:metadata");
        }
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn equal_but_owners(a: &Value, b: &Value) -> bool {
    let (Value::Object(a), Value::Object(b)) = (a, b) else { return a == b };
    let rest = |m: &Map<String, Value>| m.iter().filter(|(k, _)| *k != "metadata").count();
    let same = a.iter().filter(|(k, _)| *k != "metadata").all(|(k, v)| b.get(k) == Some(v));
    let metadata = |m: &Map<String, Value>| {
        let mut metadata = m.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
        metadata.remove("managedFields");
        metadata
    };
    same && rest(a) == rest(b) && metadata(a) == metadata(b)
}

/// Keeps the annotation of client-side apply in step for users who go back and forth.
fn refresh_last_applied(object: &mut Value, config: &Value) {
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return;
    };
    if annotations.get(LAST_APPLIED).and_then(Value::as_str).is_none_or(str::is_empty) {
        return;
    }
    let mut config = config.clone();
    if let Some(theirs) = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        theirs.remove(LAST_APPLIED);
    }
    annotations.insert(LAST_APPLIED.into(), Value::String(format!("{config}\n")));
    let size: usize = annotations.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS_LIMIT {
        annotations.remove(LAST_APPLIED);
    }
}
