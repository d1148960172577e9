//! How an object is kept in the store, so that lists and watches copy bytes instead of parsing them.
//!
//! A value is a small header followed by the *tail* of the object's JSON: everything after the opening
//! `{"apiVersion":…,"kind":…,"metadata":{"resourceVersion":"`. That opening is the same for all objects of a
//! served version and is written by [`render`]; so is the resource version, which the store only knows
//! after the write. Serving one stored object under another version of its group costs nothing.
//!
//! ```text
//! 0       1          5           9              13             17                              body
//! | 2     | body u32 | shape u32 | metadata u32 | managers u32 | labels, selectable fields ... | tail
//! ```
//! `body` is where the tail begins, `metadata` the length of the tail up to and including the closing brace
//! of `metadata`, `managers` its length up to `managedFields`, which come last there: most programs have no use for
//! them, and may leave them out (`omitManagedFields=true`, an option of ours). Format 1 had no such place. `shape` names the rules under which the object was normalized (schema, selectable fields);
//! a reader with other rules parses instead of copying.

use bytes::Bytes;
use serde_json::{Map, Value};

const FORMAT: u8 = 2;
const FIXED: usize = 17;
const FORMAT_1: u8 = 1;
const FIXED_1: usize = 13;
const MANAGERS: &str = "managedFields";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unreadable {
    #[error("a stored object is damaged")]
    Damaged,
    #[error(
        "a stored object has format {0}, which only a newer version of tombolo reads; start that version again"
    )]
    Newer(u8),
}

/// A stored value, taken apart without copying.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    pub shape: u32,
    labels: &'a [u8],
    fields: &'a [u8],
    tail: &'a [u8],
    metadata: usize,
    managers: usize,
    omits_managers: bool,
}

/// Encodes an object. `fields` are the values of the kind's selectable fields, in the kind's order.
pub fn encode(object: &Value, shape: u32, fields: &[String]) -> Bytes {
    let empty = Map::new();
    let map = object.as_object().unwrap_or(&empty);
    let metadata = map.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let mut out = Vec::with_capacity(512);
    out.push(FORMAT);
    out.extend_from_slice(&[0; FIXED - 1]);
    let labels_at = out.len();
    out.extend_from_slice(&[0; 4]);
    if let Some(labels) = metadata.get("labels").and_then(Value::as_object) {
        for (key, value) in labels {
            put_text(&mut out, key);
            put_text(&mut out, value.as_str().unwrap_or_default());
        }
    }
    let labels_len = (out.len() - labels_at - 4) as u32;
    out[labels_at..labels_at + 4].copy_from_slice(&labels_len.to_le_bytes());
    for field in fields {
        put_text(&mut out, field);
    }
    let body = out.len();
    out.push(b'"');
    for (key, value) in metadata.iter().filter(|(k, _)| *k != "resourceVersion" && *k != MANAGERS) {
        put_member(&mut out, key, value);
    }
    let managers = out.len() - body;
    if let Some(value) = metadata.get(MANAGERS) {
        put_member(&mut out, MANAGERS, value);
    }
    out.push(b'}');
    let metadata_len = out.len() - body;
    for (key, value) in map.iter().filter(|(k, _)| !matches!(k.as_str(), "apiVersion" | "kind" | "metadata"))
    {
        put_member(&mut out, key, value);
    }
    out.push(b'}');
    out[1..5].copy_from_slice(&(body as u32).to_le_bytes());
    out[5..9].copy_from_slice(&shape.to_le_bytes());
    out[9..13].copy_from_slice(&(metadata_len as u32).to_le_bytes());
    out[13..17].copy_from_slice(&(managers as u32).to_le_bytes());
    out.shrink_to_fit();
    out.into()
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_member(out: &mut Vec<u8>, key: &str, value: &Value) {
    out.push(b',');
    write_json(out, &key);
    out.push(b':');
    write_json(out, value);
}

fn write_json(out: &mut Vec<u8>, value: &impl serde::Serialize) {
    serde_json::to_writer(out, value).expect("JSON of strings and values always writes to memory");
}

fn take_text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let len = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let text = std::str::from_utf8(bytes.get(4..4 + len)?).ok()?;
    Some((text, &bytes[4 + len..]))
}

/// The opening of every rendering of a kind at one version.
pub fn prefix(api_version: &str, kind: &str) -> String {
    format!("{{\"apiVersion\":\"{api_version}\",\"kind\":\"{kind}\",\"metadata\":{{\"resourceVersion\":\"")
}

/// The opening of metadata-only renderings.
pub const METADATA_PREFIX: &str = "{\"apiVersion\":\"meta.k8s.io/v1\",\"kind\":\"PartialObjectMetadata\",\"metadata\":{\"resourceVersion\":\"";

impl<'a> Record<'a> {
    pub fn read(value: &'a [u8]) -> Result<Self, Unreadable> {
        Self::split(value).ok_or_else(|| match value.first() {
            // Formats are counted up; what begins with a letter or bracket is none.
            Some(format) if *format > FORMAT && *format < b' ' => Unreadable::Newer(*format),
            _ => Unreadable::Damaged,
        })
    }

    fn split(value: &'a [u8]) -> Option<Self> {
        let fixed = match *value.first()? {
            FORMAT => FIXED,
            FORMAT_1 => FIXED_1,
            _ => return None,
        };
        let number = |at: usize| Some(u32::from_le_bytes(value.get(at..at + 4)?.try_into().ok()?));
        let (body, shape, metadata) = (number(1)? as usize, number(5)?, number(9)? as usize);
        let rest = value.get(fixed..body)?;
        let len = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        let tail = value.get(body..)?;
        (1..=tail.len()).contains(&metadata).then_some(())?;
        let managers = if fixed == FIXED { number(13)? as usize } else { metadata - 1 };
        (managers < metadata).then_some(())?;
        let (labels, fields) = (rest.get(4..4 + len)?, &rest[4 + len..]);
        Some(Self { shape, labels, fields, tail, metadata, managers, omits_managers: false })
    }

    pub fn labels(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let mut rest = self.labels;
        std::iter::from_fn(move || {
            let (key, after) = take_text(rest)?;
            let (value, after) = take_text(after)?;
            rest = after;
            Some((key, value))
        })
    }

    pub fn label(&self, key: &str) -> Option<&'a str> {
        self.labels().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// The value of the kind's n-th selectable field.
    pub fn field(&self, index: usize) -> &'a str {
        let mut rest = self.fields;
        let mut found = "";
        for _ in 0..=index {
            let Some((text, after)) = take_text(rest) else { return "" };
            (found, rest) = (text, after);
        }
        found
    }

    /// The same, rendered without `managedFields`.
    pub fn without_managers(self) -> Self {
        Self { omits_managers: true, ..self }
    }

    /// Appends the object's JSON as of `revision`.
    pub fn render_into(&self, out: &mut Vec<u8>, prefix: &str, revision: u64) {
        self.render_tail(out, prefix, revision, self.tail.len());
    }

    fn render_tail(&self, out: &mut Vec<u8>, prefix: &str, revision: u64, end: usize) {
        out.extend_from_slice(prefix.as_bytes());
        push_number(out, revision);
        if self.omits_managers {
            out.extend_from_slice(&self.tail[..self.managers]);
            out.extend_from_slice(&self.tail[self.metadata - 1..end]);
        } else {
            out.extend_from_slice(&self.tail[..end]);
        }
    }

    pub fn render(&self, prefix: &str, revision: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(prefix.len() + 20 + self.tail.len());
        self.render_into(&mut out, prefix, revision);
        out
    }

    /// Appends a `PartialObjectMetadata`.
    pub fn render_metadata_into(&self, out: &mut Vec<u8>, revision: u64) {
        self.render_tail(out, METADATA_PREFIX, revision, self.metadata);
        out.push(b'}');
    }

    pub fn parse(&self, prefix: &str, revision: u64) -> Result<Value, Unreadable> {
        serde_json::from_slice(&self.render(prefix, revision)).map_err(|_| Unreadable::Damaged)
    }
}

pub fn push_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_comes_back_with_its_resource_version() {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "uid": "u", "labels": {"app": "x", "tier": ""}, "resourceVersion": "1"},
            "spec": {"nodeName": "n\"1"},
        });
        let value = encode(&object, 7, &["n\"1".into(), String::new()]);
        let record = Record::read(&value).unwrap();
        assert_eq!((record.shape, record.label("app")), (7, Some("x")));
        assert_eq!((record.label("tier"), record.label("none")), (Some(""), None));
        assert_eq!((record.field(0), record.field(1), record.field(2)), ("n\"1", "", ""));
        let mut expected = object.clone();
        expected["metadata"]["resourceVersion"] = "1234".into();
        assert_eq!(record.parse(&prefix("v1", "Pod"), 1234).unwrap(), expected);
        let mut partial = Vec::new();
        record.render_metadata_into(&mut partial, 9);
        let partial: Value = serde_json::from_slice(&partial).unwrap();
        assert_eq!(partial["metadata"]["name"], "a");
        assert_eq!(partial["kind"], "PartialObjectMetadata");
        assert!(partial.get("spec").is_none());
    }

    #[test]
    fn managed_fields_can_be_left_out() {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "spec": {},
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "managedFields": [{"manager": "m"}]}});
        let value = encode(&object, 0, &[]);
        let record = Record::read(&value).unwrap();
        assert_eq!(record.parse(&prefix("v1", "Pod"), 1).unwrap(), object);
        let mut bare = object.clone();
        bare["metadata"].as_object_mut().unwrap().remove(MANAGERS);
        let record = record.without_managers();
        assert_eq!(record.parse(&prefix("v1", "Pod"), 1).unwrap(), bare);
        let mut partial = Vec::new();
        record.render_metadata_into(&mut partial, 1);
        assert_eq!(serde_json::from_slice::<Value>(&partial).unwrap()["metadata"], bare["metadata"]);
    }

    #[test]
    fn what_an_earlier_release_wrote_is_read() {
        let tail = br#"","managedFields":[],"name":"a"},"spec":{}}"#;
        let mut value = vec![FORMAT_1];
        let metadata = tail.iter().position(|byte| *byte == b'}').unwrap() as u32 + 1;
        for number in [17, 3, metadata, 0] {
            value.extend_from_slice(&number.to_le_bytes());
        }
        value.extend_from_slice(tail);
        let record = Record::read(&value).unwrap().without_managers();
        let object = record.parse(&prefix("v1", "Pod"), 5).unwrap();
        assert_eq!((&object["metadata"]["name"], &object["spec"]), (&json!("a"), &json!({})));
    }

    #[test]
    fn damaged_bytes_are_refused_not_misread() {
        let value = encode(&json!({"metadata": {"name": "a"}}), 0, &[]);
        for cut in 0..FIXED {
            assert!(Record::read(&value[..cut]).is_err());
        }
        assert_eq!(Record::read(b"{}").err(), Some(Unreadable::Damaged));
    }

    #[test]
    fn an_object_of_a_newer_version_is_told_from_a_damaged_one() {
        let mut value = encode(&json!({"metadata": {"name": "a"}}), 0, &[]).to_vec();
        value[0] = FORMAT + 1;
        assert_eq!(Record::read(&value).err(), Some(Unreadable::Newer(FORMAT + 1)));
    }
}
