//! `metadata.managedFields`: who owns which fields.

use serde_json::{Map, Value};
use thiserror::Error;

use super::fields::{self, Fields};

/// One owner. Its identity is everything but the fields and the time, and for `Apply` not the version either.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub manager: String,
    /// `Apply`, else `Update`.
    pub applied: bool,
    pub api_version: String,
    pub subresource: String,
    pub time: Option<String>,
    pub fields: Fields,
}

/// Managed fields that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ManagedFieldsError {
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    #[error("apiVersion must not be empty")]
    Version,
    #[error("missing fieldsType in managed fields entry {0}")]
    NoType(usize),
    #[error("invalid fieldsType {0:?} in managed fields entry {1}")]
    Type(String, usize),
}

impl Entry {
    pub fn is(&self, manager: &str, applied: bool, api_version: &str, subresource: &str) -> bool {
        self.manager == manager
            && self.applied == applied
            && self.subresource == subresource
            && (applied || self.api_version == api_version)
    }

    /// The owner as conflict messages name it.
    pub fn describe(&self) -> String {
        let mut out = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            out += &format!(" with subresource {:?}", self.subresource);
        }
        if !self.applied {
            out += &format!(" using {}", self.api_version);
        }
        out
    }
}

/// The entries in an object's metadata.
pub fn managed_fields(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields").filter(|m| !m.is_null())
}

/// Reads entries; `trusted` ones were written by [`encode`] and need no rewriting.
pub fn decode(list: Option<&Value>, trusted: bool) -> Result<Vec<Entry>, ManagedFieldsError> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.enumerate()
        .map(|(i, entry)| {
            let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
            let applied = match text("operation") {
                "Apply" => true,
                "Update" => false,
                _ => return Err(ManagedFieldsError::Operation),
            };
            if text("apiVersion").is_empty() {
                return Err(ManagedFieldsError::Version);
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(ManagedFieldsError::NoType(i)),
                other => return Err(ManagedFieldsError::Type(other.to_owned(), i)),
            }
            let found = entry.get("fieldsV1").and_then(Value::as_object);
            let fields = match (found, trusted) {
                (None, _) => Fields::new(),
                (Some(found), true) => found.clone(),
                (Some(found), false) => fields::canonical(found),
            };
            Ok(Entry {
                manager: text("manager").to_owned(),
                applied,
                api_version: text("apiVersion").to_owned(),
                subresource: text("subresource").to_owned(),
                time: entry.get("time").and_then(Value::as_str).map(str::to_owned),
                fields,
            })
        })
        .collect()
}

/// Writes entries in upstream's order; `None` when there are none.
pub fn encode(mut entries: Vec<Entry>) -> Option<Value> {
    if entries.is_empty() {
        return None;
    }
    entries.sort_by(|a, b| {
        let key = |e: &Entry| (!e.applied, e.time.clone());
        key(a)
            .cmp(&key(b))
            .then_with(|| a.manager.cmp(&b.manager))
            .then_with(|| a.api_version.cmp(&b.api_version))
            .then_with(|| a.subresource.cmp(&b.subresource))
    });
    let list = entries.into_iter().map(|entry| {
        let mut out = Map::new();
        out.insert("apiVersion".into(), Value::String(entry.api_version));
        out.insert("fieldsType".into(), Value::from("FieldsV1"));
        out.insert("fieldsV1".into(), Value::Object(entry.fields));
        out.insert("manager".into(), Value::String(entry.manager));
        out.insert("operation".into(), Value::from(if entry.applied { "Apply" } else { "Update" }));
        if !entry.subresource.is_empty() {
            out.insert("subresource".into(), Value::String(entry.subresource));
        }
        if let Some(time) = entry.time {
            out.insert("time".into(), Value::String(time));
        }
        Value::Object(out)
    });
    Some(Value::Array(list.collect()))
}

/// Update entries beyond this many are merged, oldest first, into one per version.
const MAX_UPDATE_ENTRIES: usize = 10;
const OLD_UPDATES: &str = "ancient-changes";

/// Keeps the number of `Update` entries bounded.
pub(super) fn cap(entries: &mut Vec<Entry>) {
    let mut updates = entries.iter().filter(|e| !e.applied).count();
    if updates <= MAX_UPDATE_ENTRIES {
        return;
    }
    entries.sort_by(|a, b| {
        let key = |e: &Entry| (e.applied, e.time.clone());
        key(a).cmp(&key(b)).then_with(|| a.manager.cmp(&b.manager))
    });
    // The first old entry of a version becomes the bucket as soon as there is a second one to put in it.
    let mut kept: Vec<Entry> = Vec::with_capacity(entries.len());
    for entry in entries.drain(..) {
        let full = !entry.applied && updates > MAX_UPDATE_ENTRIES;
        let bucket = kept.iter_mut().find(|k| !k.applied && k.api_version == entry.api_version);
        match bucket.filter(|_| full) {
            Some(bucket) => {
                bucket.manager = OLD_UPDATES.into();
                bucket.subresource = String::new();
                bucket.time = entry.time;
                fields::union(&mut bucket.fields, &entry.fields);
                updates -= 1;
            }
            None => kept.push(entry),
        }
    }
    *entries = kept;
}
