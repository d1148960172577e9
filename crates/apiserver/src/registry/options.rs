//! The options of list and watch requests, checked as upstream checks them.

use serde_json::Value;
use tombolo_k8s::field::FieldError;
use tombolo_k8s::selector::{FieldSelector, LabelSelector};

use super::resource::Resource;
use crate::http::query::Query;
use crate::http::status::{Failure, Result};
use crate::record::Record;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionMatch {
    Unset,
    Exact,
    NotOlderThan,
}

pub struct ListOptions {
    pub filter: Filter,
    /// `None` when unset; `Some(0)` is "anything at hand".
    pub version: Option<u64>,
    pub version_match: VersionMatch,
    pub limit: usize,
    pub resume: Option<String>,
    pub bookmarks: bool,
    pub initial_events: Option<bool>,
    pub timeout_seconds: Option<u64>,
}

impl ListOptions {
    pub fn parse(resource: &Resource, query: &Query, watch: bool) -> Result<Self> {
        let version = match query.get("resourceVersion") {
            None => None,
            Some(text) => Some(text.parse::<u64>().map_err(|_| wrong_version(text, watch))?),
        };
        let version_match = match query.get("resourceVersionMatch") {
            None => VersionMatch::Unset,
            Some("Exact") => VersionMatch::Exact,
            Some("NotOlderThan") => VersionMatch::NotOlderThan,
            Some(other) => {
                let allowed = ["Exact", "NotOlderThan", ""];
                return Err(invalid(FieldError::not_supported(
                    "resourceVersionMatch",
                    &other.into(),
                    &allowed,
                )));
            }
        };
        let resume = query.get("continue").map(str::to_owned);
        let initial_events = query.has("sendInitialEvents").then(|| query.flag("sendInitialEvents"));
        let forbid = |detail: &str| Err(invalid(FieldError::forbidden("resourceVersionMatch", detail)));
        if watch {
            if initial_events.is_some() && version_match != VersionMatch::NotOlderThan {
                return forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
            }
            if initial_events.is_none() && version_match != VersionMatch::Unset {
                return forbid(
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                );
            }
        } else {
            if initial_events.is_some() {
                let detail = "sendInitialEvents is forbidden for list";
                return Err(invalid(FieldError::forbidden("sendInitialEvents", detail)));
            }
            if version_match != VersionMatch::Unset {
                if resume.is_some() {
                    return forbid("resourceVersionMatch is forbidden when continue is provided");
                }
                if version.is_none() {
                    return forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
                }
                if version_match == VersionMatch::Exact && version == Some(0) {
                    return forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
                }
            }
        }
        let limit = query.number("limit")?.unwrap_or(0).max(0) as usize;
        Ok(Self {
            filter: Filter::parse(resource, query)?,
            version,
            version_match,
            limit,
            resume,
            bookmarks: query.flag("allowWatchBookmarks"),
            initial_events,
            timeout_seconds: query.number("timeoutSeconds")?.and_then(|seconds| seconds.try_into().ok()),
        })
    }
}

fn wrong_version(text: &str, watch: bool) -> Failure {
    let detail = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
    let error = FieldError::invalid("resourceVersion", &text.into(), detail);
    // Lists and watches say it in different ways.
    if watch { invalid(error) } else { Failure::bad_request(format!("invalid resource version: {error}")) }
}

fn invalid(error: FieldError) -> Failure {
    Failure::invalid("meta.k8s.io", "ListOptions", "", &[error])
}

/// Which objects of a kind a request means.
#[derive(Default)]
pub struct Filter {
    labels: LabelSelector,
    fields: Vec<FieldTest>,
    /// The only name that can match, when the selector says so.
    pub name: Option<String>,
    pub namespace: Option<String>,
    everything: bool,
}

struct FieldTest {
    field: FieldName,
    equal: bool,
    value: String,
}

enum FieldName {
    Name,
    Namespace,
    Selectable(usize),
}

impl Filter {
    pub fn parse(resource: &Resource, query: &Query) -> Result<Self> {
        let bad = |e: tombolo_k8s::selector::SelectorError| Failure::bad_request(e.to_string());
        let labels = match query.get("labelSelector") {
            Some(text) => LabelSelector::parse(text)
                .map_err(|e| Failure::bad_request(format!("unable to parse label selector: {e}")))?,
            None => LabelSelector::everything(),
        };
        let selector = match query.get("fieldSelector") {
            Some(text) => FieldSelector::parse(text).map_err(bad)?,
            None => FieldSelector::everything(),
        };
        let mut fields = Vec::new();
        for requirement in selector.requirements() {
            let field = match requirement.field.as_str() {
                "metadata.name" => FieldName::Name,
                "metadata.namespace" => FieldName::Namespace,
                other => match resource.fields.iter().position(|f| f.name == other) {
                    Some(index) => FieldName::Selectable(index),
                    None => {
                        return Err(Failure::bad_request(format!("field label not supported: {other}")));
                    }
                },
            };
            fields.push(FieldTest { field, equal: requirement.equal, value: requirement.value.clone() });
        }
        let everything = labels.is_everything() && fields.is_empty();
        Ok(Self {
            labels,
            fields,
            name: selector.exact("metadata.name").map(str::to_owned),
            namespace: selector.exact("metadata.namespace").map(str::to_owned),
            everything,
        })
    }

    pub fn is_everything(&self) -> bool {
        self.everything
    }

    pub fn matches(&self, resource: &Resource, key: &str, value: &[u8]) -> bool {
        if self.everything {
            return true;
        }
        let Ok(record) = Record::read(value) else { return false };
        if !self.labels.is_everything() && !self.labels.matches_by(|name| record.label(name)) {
            return false;
        }
        if self.fields.is_empty() {
            return true;
        }
        let (namespace, name) = resource.split_key(key);
        // Records written under other rules are parsed; they become rare as they are rewritten.
        let parsed: Option<Value> = if record.shape == resource.shape {
            None
        } else {
            Some(resource.decode(value, 0).unwrap_or_default())
        };
        self.fields.iter().all(|test| {
            let owned;
            let have = match (&test.field, &parsed) {
                (FieldName::Name, _) => name,
                (FieldName::Namespace, _) => namespace,
                (FieldName::Selectable(index), None) => record.field(*index),
                (FieldName::Selectable(index), Some(object)) => {
                    owned = resource.fields[*index].value(resource, object);
                    owned.as_str()
                }
            };
            (have == test.value) == test.equal
        })
    }
}

impl Filter {
    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Exactly the object of this name.
    pub fn named(name: &str) -> Self {
        let test = FieldTest { field: FieldName::Name, equal: true, value: name.to_owned() };
        Self {
            labels: LabelSelector::everything(),
            fields: vec![test],
            name: Some(name.to_owned()),
            namespace: None,
            everything: false,
        }
    }
}
