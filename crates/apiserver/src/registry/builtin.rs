//! The built-in rows, made from the tables once at start.

use std::collections::HashMap;
use std::sync::Arc;

use tombolo_k8s::convert;
use tombolo_k8s::resources::{self, Deletion, RESOURCES};
use tombolo_store::Durability;

use super::resource::{Resource, Rules, SelectableField, Shared, StoredForm, Subresource, TENANT};
use super::schema::Schema;
use crate::record;

/// All built-in rows, in upstream's order of groups.
pub struct BuiltIn {
    rows: Vec<Shared>,
    by_name: HashMap<(&'static str, &'static str, &'static str), usize>,
}

impl BuiltIn {
    pub fn new() -> Self {
        let rows: Vec<Shared> = RESOURCES.iter().map(|row| Arc::new(resource(row))).collect();
        let by_name =
            RESOURCES.iter().enumerate().map(|(i, row)| ((row.group, row.version, row.plural), i)).collect();
        Self { rows, by_name }
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Shared> {
        self.by_name.get(&(group, version, plural)).map(|i| &self.rows[*i])
    }
}

fn resource(row: &'static resources::Resource) -> Resource {
    let stored = stored_form(row);
    let api_version = row.api_version();
    Resource {
        group: row.group.into(),
        version: row.version.into(),
        plural: row.plural.into(),
        kind: row.kind.into(),
        list_kind: row.list_kind.into(),
        namespaced: row.namespaced,
        verbs: row.verbs.to_vec(),
        subresources: row
            .subresources
            .iter()
            .map(|s| Subresource { name: s.name.into(), verbs: s.verbs.to_vec() })
            .collect(),
        schema: Schema::BuiltIn(row),
        rules: Rules {
            create_on_update: row.create_on_update,
            unconditional_update: row.unconditional_update,
            generation: row.generation,
            orphan_by_default: row.deletion == Deletion::Orphan,
        },
        place: place(stored.as_ref().map_or(row.group, |s| s.group), row.plural),
        durability: if row.volatile { Durability::Volatile } else { Durability::Durable },
        prefix: record::prefix(&api_version, row.kind),
        fields: row.fields.iter().map(|name| selectable(name)).collect(),
        // Selectable fields are kept as the stored form names them.
        shape: if stored.is_some() { 2 } else { 1 },
        canonical: stored.is_none(),
        stored,
        replaced: None,
    }
}

pub fn place(group: &str, plural: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    format!("/{TENANT}/{group}/{plural}/")
}

/// The form in which a kind is kept when that is not the one this row serves.
fn stored_form(row: &'static resources::Resource) -> Option<StoredForm> {
    let (group, version) = convert::storage_version(row.group, row.kind)?;
    if (group, version) == (row.group, row.version) {
        return None;
    }
    let home = resources::by_kind(group, version, row.kind)?;
    Some(StoredForm { group, version, row: Arc::new(resource(home)) })
}

fn selectable(name: &'static str) -> SelectableField {
    SelectableField { name: name.into(), path: crate::kinds::selectable_path(name) }
}
