//! The index of CustomResourceDefinitions, and the rows they become.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tombolo_k8s::crd;
use tombolo_k8s::discovery;
use tombolo_store::Durability;

use super::CustomSchema;
use crate::mirror::Index;
use crate::record::{self, Record};
use crate::registry::builtin::place;
use crate::registry::resource::{Resource, Rules, SelectableField, Shared, Subresource};
use crate::registry::schema::Schema;
use crate::registry::write;

const VERBS: [&str; 8] = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const SUB_VERBS: [&str; 3] = ["get", "patch", "update"];

/// Where definitions are kept.
pub fn source() -> String {
    place("apiextensions.k8s.io", "customresourcedefinitions")
}

struct Definition {
    object: Arc<Value>,
    rows: Vec<Shared>,
    /// What all its rows carry.
    replaced: CancellationToken,
}

/// All definitions by name, and what they serve.
pub struct Definitions {
    by_name: BTreeMap<String, Definition>,
    rows: HashMap<(String, String, String), Shared>,
    /// The server stops.
    stop: CancellationToken,
}

impl Definitions {
    pub fn new(stop: CancellationToken) -> Self {
        Self { by_name: BTreeMap::new(), rows: HashMap::new(), stop }
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Shared> {
        self.rows.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    pub fn versions(&self, group: &str, plural: &str) -> Vec<Shared> {
        self.rows.values().filter(|r| r.group == group && r.plural == plural).cloned().collect()
    }

    /// The definitions that are served.
    pub fn served(&self) -> Vec<Arc<Value>> {
        self.by_name.values().filter(|d| !d.rows.is_empty()).map(|d| d.object.clone()).collect()
    }

    /// All definitions of a group, served or not.
    pub fn of_group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a Value> {
        self.by_name.values().map(|d| &*d.object).filter(move |o| write::text(o, "/spec/group") == group)
    }

    pub fn all(&self) -> Vec<Arc<Value>> {
        self.by_name.values().map(|d| d.object.clone()).collect()
    }

    fn take(&mut self, key: &str) -> Option<Definition> {
        let old = self.by_name.remove(name(key))?;
        for row in &old.rows {
            self.rows.remove(&(row.group.clone(), row.version.clone(), row.plural.clone()));
        }
        Some(old)
    }
}

impl Index for Definitions {
    fn put(&mut self, _source: usize, key: &str, value: &[u8], revision: u64) {
        let old = self.take(key);
        let prefix = record::prefix("apiextensions.k8s.io/v1", "CustomResourceDefinition");
        let Ok(object) = Record::read(value).and_then(|r| r.parse(&prefix, revision)) else {
            return end(old);
        };
        let replaced = match old {
            Some(old) if serves_the_same(&old.object, &object) => old.replaced,
            old => {
                end(old);
                self.stop.child_token()
            }
        };
        let rows = rows(&object, &replaced);
        for row in &rows {
            let name = (row.group.clone(), row.version.clone(), row.plural.clone());
            self.rows.insert(name, row.clone());
        }
        self.by_name.insert(name(key).to_owned(), Definition { object: Arc::new(object), rows, replaced });
    }

    fn remove(&mut self, _source: usize, key: &str) {
        end(self.take(key));
    }

    fn clear(&mut self, _source: usize) {
        // Which of them change is not known: who watches their kinds comes again.
        std::mem::take(&mut self.by_name).into_values().for_each(|old| end(Some(old)));
        self.rows.clear();
    }
}

fn name(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or_default()
}

/// Watches of what a definition served end, and their clients come again.
fn end(old: Option<Definition>) {
    if let Some(old) = old {
        old.replaced.cancel();
    }
}

/// Whether what was begun under one can go on under the other. Conditions and deletion change nothing that is shown.
fn serves_the_same(old: &Value, new: &Value) -> bool {
    old["spec"] == new["spec"] && old["status"]["acceptedNames"] == new["status"]["acceptedNames"]
}

/// The rows of an established definition, one per served version.
fn rows(object: &Value, replaced: &CancellationToken) -> Vec<Shared> {
    if !crd::has_condition(object, "Established") {
        return Vec::new();
    }
    let preserve = object.pointer("/spec/preserveUnknownFields") == Some(&Value::Bool(true));
    let terminating = write::is_deleting(object);
    let storage = crd::storage_version(object).unwrap_or_default();
    let by_webhook = write::text(object, "/spec/conversion/strategy") == "Webhook";
    let list_kind = write::text(object, "/spec/names/listKind");
    let versions = object.pointer("/spec/versions").and_then(Value::as_array);
    discovery::custom(object)
        .into_iter()
        .filter_map(|row| {
            let version = versions?.iter().find(|v| v["name"] == row.version)?;
            let fields = fields(version);
            let api_version = format!("{}/{}", row.group, row.version);
            let subresources = row
                .subresources
                .iter()
                .map(|s| Subresource { name: s.name.into(), verbs: SUB_VERBS.to_vec() });
            let mut schema = CustomSchema::new(version, preserve, terminating);
            schema.kept_in = (by_webhook && row.version != storage).then(|| storage.to_owned());
            Some(Arc::new(Resource {
                group: row.group.into(),
                version: row.version.into(),
                plural: row.plural.into(),
                kind: row.kind.into(),
                list_kind: if list_kind.is_empty() { format!("{}List", row.kind) } else { list_kind.into() },
                namespaced: row.namespaced,
                verbs: VERBS.to_vec(),
                subresources: subresources.collect(),
                schema: Schema::Custom(Arc::new(schema)),
                rules: Rules {
                    create_on_update: false,
                    unconditional_update: false,
                    generation: true,
                    orphan_by_default: false,
                },
                place: place(row.group, row.plural),
                durability: Durability::Durable,
                prefix: record::prefix(&api_version, row.kind),
                shape: shape(version, &fields),
                fields,
                canonical: row.version == storage,
                stored: None,
                replaced: Some(replaced.clone()),
            }))
        })
        .collect()
}

fn fields(version: &Value) -> Vec<SelectableField> {
    let list = version["selectableFields"].as_array();
    list.into_iter()
        .flatten()
        .filter_map(|f| {
            let name = f["jsonPath"].as_str()?.trim_start_matches('.').to_owned();
            let path = name.split('.').map(str::to_owned).collect();
            Some(SelectableField { name, path })
        })
        .collect()
}

/// Names the rules of a version: equal rules, equal number. Never 1 or 2, which are the built-in kinds'.
fn shape(version: &Value, fields: &[SelectableField]) -> u32 {
    let names: Vec<&str> = fields.iter().map(|f| f.name.as_str()).collect();
    let text = format!("{}{names:?}", version["schema"]);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let bytes: [u8; 4] = digest.as_ref()[..4].try_into().expect("a digest has more than four bytes");
    u32::from_le_bytes(bytes) | 4
}
