//! Columns that a CustomResourceDefinition brings.

use jiff::Timestamp;
use serde_json::Value;

use super::age;
use super::json_path::JsonPath;
use super::text::show;

pub struct CustomColumn {
    pub name: String,
    pub type_: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
    /// A path that cannot be read shows nothing.
    path: Option<JsonPath>,
}

pub fn columns(additional: Option<&Value>) -> Vec<CustomColumn> {
    let listed = additional.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if listed.is_empty() {
        return vec![CustomColumn {
            name: "Age".to_owned(),
            type_: "date".to_owned(),
            format: String::new(),
            description: String::new(),
            priority: 0,
            path: JsonPath::parse(".metadata.creationTimestamp"),
        }];
    }
    let text = |column: &Value, field: &str| column[field].as_str().unwrap_or_default().to_owned();
    listed
        .iter()
        .map(|c| CustomColumn {
            name: text(c, "name"),
            type_: text(c, "type"),
            format: text(c, "format"),
            description: text(c, "description"),
            priority: c["priority"].as_i64().unwrap_or_default(),
            path: JsonPath::parse(&text(c, "jsonPath")),
        })
        .collect()
}

impl CustomColumn {
    pub fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(value) = self.path.as_ref().and_then(|p| p.first(object)) else { return Value::Null };
        match self.type_.as_str() {
            "string" => show(value).into(),
            "integer" => value.as_i64().or(value.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from),
            "number" if value.is_number() => value.clone(),
            "boolean" if value.is_boolean() => value.clone(),
            "date" if value.is_string() => age(Some(value), now).into(),
            _ => Value::Null,
        }
    }
}
