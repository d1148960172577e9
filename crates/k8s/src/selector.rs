//! Label and field selectors: parsed once, matched often.
//!
//! A selector is a conjunction of requirements. The string form comes from a query, the object form
//! (`matchLabels`, `matchExpressions`) from a spec.

mod fields;
mod labels;
mod lexer;

use serde_json::{Map, Value};
use thiserror::Error;

pub use fields::{FieldRequirement, FieldSelector};
pub use labels::LabelSelector;

/// The text is upstream's, because it reaches the user in a 400.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SelectorError(pub(crate) String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// Sorted and unique when parsed from text.
    pub values: Vec<String>,
}

impl Requirement {
    /// Whether a label set in which this key has `value` (or is absent) satisfies the requirement.
    pub fn matches(&self, value: Option<&str>) -> bool {
        use Operator::*;
        let listed = |v: &str| self.values.iter().any(|x| x == v);
        match self.operator {
            In | Equals | DoubleEquals => value.is_some_and(listed),
            NotIn | NotEquals => !value.is_some_and(listed),
            Exists => value.is_some(),
            DoesNotExist => value.is_none(),
            GreaterThan | LessThan => {
                let number = |s: &str| s.parse::<i64>().ok();
                match (value.and_then(number), self.values.first().and_then(|v| number(v))) {
                    (Some(have), Some(bound)) if self.operator == GreaterThan => have > bound,
                    (Some(have), Some(bound)) => have < bound,
                    _ => false,
                }
            }
        }
    }
}

/// The string under `key` in a JSON object of strings, such as `metadata.labels`.
pub(crate) fn text<'a>(map: Option<&'a Map<String, Value>>, key: &str) -> Option<&'a str> {
    map?.get(key)?.as_str()
}
