//! Owners after a plain write: create, update, or one of the classic patches.

use serde_json::Value;

use super::Write;
use super::compare::{Delta, Side};
use super::fields::{self, Fields};
use super::managers::{Entry, cap, decode, encode, managed_fields};
use super::topology::Schema;

/// The `managedFields` of `new` after this write; `None` when it should have none.
///
/// `live` is absent on create. A client may send back what it read, send nothing (ownership continues), or send an
/// empty list (ownership is forgotten).
pub fn track_update(
    live: Option<&Value>,
    new: &Value,
    schema: Schema<'_>,
    write: &Write<'_>,
) -> Option<Value> {
    let live_fields = live.and_then(managed_fields);
    let entries = match managed_fields(new) {
        _ if !write.subresource.is_empty() => decode(live_fields, true).unwrap_or_default(),
        Some(sent) if Some(sent) == live_fields => decode(live_fields, true).unwrap_or_default(),
        Some(sent) if is_reset(sent) => Vec::new(),
        sent => match decode(sent, false) {
            Ok(entries) if !entries.is_empty() => entries,
            _ => decode(live_fields, true).unwrap_or_default(),
        },
    };
    if entries.is_empty() && live.is_some() {
        return None;
    }
    let old = live.map_or(Side::Zero, Side::Value);
    let delta = compare(old, new, schema, write);
    if delta.is_empty() && entries_unchanged(&entries, live_fields, write) {
        return live_fields.cloned();
    }
    encode(record(entries, delta, write))
}

fn is_reset(sent: &Value) -> bool {
    match sent.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(|o| o.values().all(|v| v.is_null() || v == "")),
        _ => false,
    }
}

/// Whether the entries came from the live object as they are.
fn entries_unchanged(entries: &[Entry], live: Option<&Value>, write: &Write<'_>) -> bool {
    live.is_some() && (!write.subresource.is_empty() || decode(live, true).is_ok_and(|l| l == entries))
}

pub(super) fn compare(old: Side<'_>, new: &Value, schema: Schema<'_>, write: &Write<'_>) -> Delta {
    let mut delta = Delta::of(old, Side::Value(new), schema);
    delta.exclude(write.reset);
    delta
}

/// Gives what changed to the writer, and takes it from everybody else.
pub(super) fn record(mut entries: Vec<Entry>, delta: Delta, write: &Write<'_>) -> Vec<Entry> {
    let Delta { added, modified, removed } = delta;
    let mut mine = added;
    fields::union(&mut mine, &modified);
    for entry in &mut entries {
        fields::difference(&mut entry.fields, &mine);
        fields::difference(&mut entry.fields, &removed);
    }
    entries.retain(|e| !e.fields.is_empty());
    // Metadata itself is never owned, only fields in it.
    if mine.get("f:metadata").is_some_and(|m| m.as_object().is_some_and(Fields::is_empty)) {
        mine.remove("f:metadata");
    }
    if !mine.is_empty() {
        let manager = if write.manager.is_empty() { "unknown" } else { write.manager };
        match entries.iter_mut().find(|e| e.is(manager, false, write.api_version, write.subresource)) {
            Some(entry) => {
                fields::union(&mut entry.fields, &mine);
                entry.time = Some(write.now.to_owned());
            }
            None => entries.push(Entry {
                manager: manager.to_owned(),
                applied: false,
                api_version: write.api_version.to_owned(),
                subresource: write.subresource.to_owned(),
                time: Some(write.now.to_owned()),
                fields: mine,
            }),
        }
    }
    cap(&mut entries);
    entries
}
