//! The structural schema of one version of a custom resource.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;
use thiserror::Error;

/// A JSON type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
}

impl Kind {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "object" => Kind::Object,
            "array" => Kind::Array,
            "string" => Kind::String,
            "integer" => Kind::Integer,
            "number" => Kind::Number,
            "boolean" => Kind::Boolean,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Object => "object",
            Kind::Array => "array",
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Boolean => "boolean",
        }
    }
}

/// How server-side apply and uniqueness checks see a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Topology {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

#[derive(Debug, Clone)]
pub enum Additional {
    Allowed(bool),
    Schema(Box<Schema>),
}

/// One node of a schema. Under `allOf`, `anyOf`, `oneOf` and `not` only the checks are meaningful.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    pub kind: Option<Kind>,
    pub nullable: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Schema>,
    pub additional: Option<Additional>,
    pub items: Option<Box<Schema>>,
    /// Fields without a property are kept here.
    pub preserve_unknown: bool,
    /// A whole Kubernetes object lives here.
    pub embedded: bool,
    pub int_or_string: bool,
    pub list: Topology,
    pub atomic_map: bool,
    pub checks: Checks,
    pub rules: Vec<Rule>,
    /// This node or one below has rules, so a walk that only evaluates rules can skip the others.
    pub has_rules: bool,
    /// This node or one below has a default.
    pub has_defaults: bool,
    /// Here or below.
    pub has_embedded: bool,
}

/// Constraints on the value itself.
#[derive(Debug, Clone, Default)]
pub struct Checks {
    pub format: Option<String>,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub max_length: Option<u64>,
    pub min_length: Option<u64>,
    pub pattern: Option<Pattern>,
    pub max_items: Option<u64>,
    pub min_items: Option<u64>,
    pub unique_items: bool,
    pub multiple_of: Option<f64>,
    pub choices: Option<Vec<Value>>,
    pub max_properties: Option<u64>,
    pub min_properties: Option<u64>,
    pub required: Vec<String>,
    pub all_of: Vec<Schema>,
    pub any_of: Vec<Schema>,
    pub one_of: Vec<Schema>,
    pub not: Option<Box<Schema>>,
}

/// A pattern with its text; one that is no valid expression matches nothing and is reported with the CRD.
#[derive(Debug, Clone)]
pub struct Pattern {
    pub text: String,
    pub regex: Option<Regex>,
}

/// One entry of `x-kubernetes-validations`.
#[derive(Debug, Clone, Default)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    pub reason: String,
    pub field_path: String,
    pub optional_old_self: bool,
}

/// What no structural schema can express.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SchemaError {
    #[error("OpenAPIV3Schema '{0}' is not supported")]
    Unsupported(&'static str),
    #[error("OpenAPIV3Schema 'items' must be a schema, but is an array")]
    ItemsArray,
    #[error("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined")]
    PreserveFalse,
}

impl Schema {
    /// Parses an `openAPIV3Schema`. Mistakes that leave the schema usable are for [`super::definition`] to report.
    pub fn parse(schema: &Value) -> Result<Self, SchemaError> {
        for name in
            ["id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions"]
        {
            let set = match schema.get(name) {
                None | Some(Value::Null) => false,
                Some(Value::String(s)) => !s.is_empty(),
                Some(Value::Object(m)) => !m.is_empty() || name == "additionalItems",
                Some(_) => true,
            };
            if set {
                return Err(SchemaError::Unsupported(if name == "$schema" { "schema" } else { name }));
            }
        }
        let text = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default();
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or_default();
        if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            return Err(SchemaError::PreserveFalse);
        }
        let items = match schema.get("items") {
            Some(Value::Array(_)) => return Err(SchemaError::ItemsArray),
            Some(items @ Value::Object(_)) => Some(Box::new(Schema::parse(items)?)),
            _ => None,
        };
        let mut properties = BTreeMap::new();
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            properties.insert(name.clone(), Schema::parse(property)?);
        }
        let additional = match schema.get("additionalProperties") {
            Some(Value::Bool(allowed)) => Some(Additional::Allowed(*allowed)),
            Some(inner @ Value::Object(_)) => Some(Additional::Schema(Box::new(Schema::parse(inner)?))),
            _ => None,
        };
        let list = match text("x-kubernetes-list-type") {
            "set" => Topology::Set,
            "map" => Topology::Map(strings(schema.get("x-kubernetes-list-map-keys"))),
            _ => Topology::Atomic,
        };
        let rules = rules(schema.get("x-kubernetes-validations"));
        let default = schema.get("default").filter(|d| !d.is_null()).cloned();
        let below = || {
            let inside = additional.as_ref().and_then(|a| match a {
                Additional::Schema(s) => Some(s.as_ref()),
                Additional::Allowed(_) => None,
            });
            properties.values().chain(items.as_deref()).chain(inside)
        };
        let has_rules = !rules.is_empty() || below().any(|s| s.has_rules);
        let has_defaults = default.is_some() || below().any(|s| s.has_defaults);
        let embedded = flag("x-kubernetes-embedded-resource");
        let has_embedded = embedded || below().any(|s| s.has_embedded);
        Ok(Self {
            kind: Kind::parse(text("type")),
            nullable: flag("nullable"),
            default,
            additional,
            items,
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded,
            int_or_string: flag("x-kubernetes-int-or-string"),
            list,
            atomic_map: text("x-kubernetes-map-type") == "atomic",
            checks: Checks::parse(schema)?,
            rules,
            has_rules,
            has_defaults,
            has_embedded,
            properties,
        })
    }

    /// The schema of a member: its property, or what all other members share.
    pub fn member(&self, name: &str) -> Option<&Schema> {
        match (self.properties.get(name), &self.additional) {
            (Some(property), _) => Some(property),
            (None, Some(Additional::Schema(schema))) => Some(schema),
            _ => None,
        }
    }
}

impl Checks {
    fn parse(schema: &Value) -> Result<Self, SchemaError> {
        let number = |name: &str| schema.get(name).and_then(Value::as_f64);
        let count = |name: &str| schema.get(name).and_then(Value::as_u64);
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or_default();
        let text = |name: &str| {
            schema.get(name).and_then(Value::as_str).filter(|s| !s.is_empty()).map(str::to_owned)
        };
        let each = |name: &str| -> Result<Vec<Schema>, SchemaError> {
            schema.get(name).and_then(Value::as_array).into_iter().flatten().map(Schema::parse).collect()
        };
        Ok(Self {
            format: text("format"),
            maximum: number("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            minimum: number("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            max_length: count("maxLength"),
            min_length: count("minLength"),
            pattern: text("pattern").map(|text| Pattern { regex: Regex::new(&text).ok(), text }),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            unique_items: flag("uniqueItems"),
            multiple_of: number("multipleOf"),
            choices: schema.get("enum").and_then(Value::as_array).cloned(),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
            required: strings(schema.get("required")),
            all_of: each("allOf")?,
            any_of: each("anyOf")?,
            one_of: each("oneOf")?,
            not: schema.get("not").filter(|n| n.is_object()).map(Schema::parse).transpose()?.map(Box::new),
        })
    }
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn rules(list: Option<&Value>) -> Vec<Rule> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.map(|rule| {
        let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Rule {
            rule: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: rule.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or_default(),
        }
    })
    .collect()
}
