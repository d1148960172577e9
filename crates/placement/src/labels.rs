//! Label requirements, the one selector language of nodes, pods and sites.

use std::collections::BTreeMap;

pub type Labels = BTreeMap<String, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    /// The label is an integer greater than the one value given.
    Gt,
    /// The label is an integer less than the one value given.
    Lt,
}

/// One condition on a label. `NotIn` and `DoesNotExist` hold when the label is absent, as in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

impl Requirement {
    pub fn new(key: &str, operator: Operator, values: &[&str]) -> Self {
        Self { key: key.to_owned(), operator, values: values.iter().map(|v| (*v).to_owned()).collect() }
    }

    /// `key = value`.
    pub fn equals(key: &str, value: &str) -> Self {
        Self::new(key, Operator::In, &[value])
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_value(labels.get(&self.key).map(String::as_str))
    }

    /// Whether a label of this value (`None`: absent) meets the condition.
    pub fn matches_value(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|v| v == value);
        match (self.operator, value) {
            (Operator::In, value) => value.is_some_and(listed),
            (Operator::NotIn, value) => !value.is_some_and(listed),
            (Operator::Exists, value) => value.is_some(),
            (Operator::DoesNotExist, value) => value.is_none(),
            (Operator::Gt, Some(value)) => self.compare(value).is_some_and(|(a, b)| a > b),
            (Operator::Lt, Some(value)) => self.compare(value).is_some_and(|(a, b)| a < b),
            (Operator::Gt | Operator::Lt, None) => false,
        }
    }

    fn compare(&self, value: &str) -> Option<(i64, i64)> {
        match self.values.as_slice() {
            [bound] => Some((value.parse().ok()?, bound.parse().ok()?)),
            _ => None,
        }
    }
}
