//! Objects as rows: what `kubectl get` shows, as a `meta.k8s.io/v1` Table.
//!
//! The columns of each built-in kind are data ([`columns`]); cells that need thought are functions beside them. Custom
//! resources bring their own columns. The caller passes the time, for ages.

mod cells;
mod columns;
mod custom;
mod json_path;
mod pod;
mod text;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use custom::CustomColumn;
use text::human_duration;

pub use json_path::JsonPath;

/// What a row carries of its object beside the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    /// The `includeObject` query parameter; `None` when it is not one of the three.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("" | "Metadata") => Some(Self::Metadata),
            Some("None") => Some(Self::None),
            Some("Object") => Some(Self::Object),
            Some(_) => None,
        }
    }
}

/// How objects of one resource are shown.
pub struct Printer(Kind);

enum Kind {
    BuiltIn(&'static [columns::Column]),
    Custom(Vec<CustomColumn>),
}

impl Printer {
    /// The printer of a built-in resource; name and age for those that have no columns of their own.
    pub fn built_in(group: &str, plural: &str) -> Self {
        let found = columns::COLUMNS.iter().find(|(g, p, _)| *g == group && *p == plural);
        Self(Kind::BuiltIn(found.map_or(columns::CREATED_AT, |(_, _, columns)| columns)))
    }

    /// The printer of a custom resource: its version's `additionalPrinterColumns`, or name and age.
    pub fn custom(additional: Option<&Value>) -> Self {
        Self(Kind::Custom(custom::columns(additional)))
    }

    /// The table's `columnDefinitions`.
    pub fn definitions(&self) -> Value {
        let define = |name: &str, type_: &str, format: &str, description: &str, priority: i64| json!({"name": name, "type": type_, "format": format, "description": description, "priority": priority});
        match &self.0 {
            Kind::BuiltIn(columns) => {
                columns.iter().map(|c| define(c.name, c.type_, c.format, "", c.priority.into())).collect()
            }
            Kind::Custom(columns) => std::iter::once(define("Name", "string", "name", "", 0))
                .chain(
                    columns.iter().map(|c| define(&c.name, &c.type_, &c.format, &c.description, c.priority)),
                )
                .collect(),
        }
    }

    /// One row of the table.
    pub fn row(&self, object: &Value, include: Include, now: Timestamp) -> Value {
        let cells: Vec<Value> = match &self.0 {
            Kind::BuiltIn(columns) => columns.iter().map(|c| c.cell.render(object, now)).collect(),
            Kind::Custom(columns) => std::iter::once(object["metadata"]["name"].clone())
                .chain(columns.iter().map(|c| c.cell(object, now)))
                .collect(),
        };
        let mut row = Map::new();
        row.insert("cells".to_owned(), cells.into());
        if matches!(self.0, Kind::BuiltIn(columns) if std::ptr::eq(columns, columns::PODS))
            && let Some(conditions) = pod::conditions(object)
        {
            row.insert("conditions".to_owned(), conditions);
        }
        let shown = match include {
            Include::None => Value::Null,
            Include::Object => object.clone(),
            Include::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
            }),
        };
        row.insert("object".to_owned(), shown);
        row.into()
    }

    /// The whole table. `metadata` is the list's, or that of the one object.
    pub fn table<'a>(
        &self,
        metadata: &Value,
        objects: impl IntoIterator<Item = &'a Value>,
        include: Include,
        now: Timestamp,
    ) -> Value {
        let rows: Vec<Value> = objects.into_iter().map(|o| self.row(o, include, now)).collect();
        self.assemble(metadata, rows, true)
    }

    /// A table of rows already made, such as the single row of a watch event.
    pub fn assemble(&self, metadata: &Value, rows: Vec<Value>, headers: bool) -> Value {
        let kept = ["resourceVersion", "continue", "remainingItemCount"];
        let meta: Map<String, Value> =
            kept.into_iter().filter_map(|k| Some((k.to_owned(), metadata.get(k)?.clone()))).collect();
        let definitions = if headers { self.definitions() } else { Value::Null };
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
            "columnDefinitions": definitions, "rows": rows,
        })
    }
}

/// How long ago a time was, as people say it; `<unknown>` for no time.
pub fn age(time: Option<&Value>, now: Timestamp) -> String {
    let Some(text) = time.and_then(Value::as_str).filter(|t| !t.is_empty()) else {
        return "<unknown>".to_owned();
    };
    match text.parse::<Timestamp>() {
        Ok(at) => human_duration(now.as_second() - at.as_second()),
        Err(_) => "<invalid>".to_owned(),
    }
}

#[cfg(test)]
mod tests;
