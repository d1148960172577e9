//! Changes, each a request to the server and, for the model, a function from the state before to the state after.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::object::{Kind, State};

/// A change that a client asks for.
#[derive(Debug, Clone)]
pub enum Change {
    Create(State),
    /// A PUT of a whole object that holds only if the object is still at this version.
    Replace {
        expect: u64,
        to: State,
    },
    Patch {
        style: Patch,
        set: (String, String),
        remove: Option<String>,
        colour: Option<String>,
        expect: Option<u64>,
    },
    /// A forced server-side apply. A manager owns the field `<manager>` always and `<manager>-more` at times, and
    /// nobody else sets these, so that what an apply leaves out goes away.
    Apply {
        manager: String,
        value: String,
        more: bool,
        colour: String,
    },
    /// A delete, which only marks an object that is held.
    Delete {
        expect: Option<u64>,
    },
    /// Takes the finalizer away, which ends an object that is being deleted.
    Release,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patch {
    Merge,
    Json,
    Strategic,
}

/// What a request consists of.
pub struct Wire {
    pub method: &'static str,
    pub url: String,
    pub content_type: &'static str,
    pub body: Value,
}

impl Change {
    /// The state that this change leaves; `None` when the object is gone. A fresh object has no uid yet.
    pub fn outcome(&self, before: Option<&State>) -> Option<State> {
        match self {
            Self::Create(state) => Some(state.clone()),
            Self::Replace { to, .. } => {
                let before = before?;
                Some(State { uid: before.uid.clone(), deleting: before.deleting, ..to.clone() })
            }
            Self::Patch { set, remove, colour, .. } => {
                let mut state = before?.clone();
                if let Some(name) = remove {
                    state.fields.remove(name);
                }
                state.fields.insert(set.0.clone(), set.1.clone());
                if let Some(colour) = colour {
                    state.colour.clone_from(colour);
                }
                Some(state)
            }
            Self::Apply { manager, value, more, colour } => {
                let mut state = before.cloned().unwrap_or_default();
                state.fields.remove(&format!("{manager}-more"));
                state.fields.extend(applied(manager, value, *more));
                state.colour.clone_from(colour);
                Some(state)
            }
            Self::Delete { .. } => before.filter(|s| s.held).map(|s| State { deleting: true, ..s.clone() }),
            Self::Release => before.filter(|s| !s.deleting).map(|s| State { held: false, ..s.clone() }),
        }
    }

    /// The version that the object must have for this change to happen.
    pub fn expect(&self) -> Option<u64> {
        match self {
            Self::Replace { expect, .. } => Some(*expect),
            Self::Patch { expect, .. } | Self::Delete { expect } => *expect,
            _ => None,
        }
    }

    pub fn wire(&self, kind: &Kind, key: &str) -> Wire {
        let url = kind.object(key);
        let version = |v: &u64| v.to_string();
        match self {
            Self::Create(state) => {
                let namespace = key.split_once('/').map(|(namespace, _)| namespace);
                wire("POST", kind.collection(namespace), "application/json", kind.render(key, state))
            }
            Self::Replace { expect, to } => {
                let mut body = kind.render(key, to);
                body["metadata"]["resourceVersion"] = version(expect).into();
                wire("PUT", url, "application/json", body)
            }
            Self::Patch { style: Patch::Json, set, remove, colour, expect } => {
                let mut steps = Vec::new();
                if let Some(expect) = expect {
                    steps.push(
                        json!({"op": "test", "path": "/metadata/resourceVersion", "value": version(expect)}),
                    );
                }
                let path = |name: &str| format!("/{}/{name}", kind.field);
                steps.push(json!({"op": "add", "path": path(&set.0), "value": set.1}));
                if let Some(name) = remove {
                    // Removing what is not there is an error, so it is put there first.
                    steps.push(json!({"op": "add", "path": path(name), "value": ""}));
                    steps.push(json!({"op": "remove", "path": path(name)}));
                }
                if let Some(colour) = colour {
                    steps.push(json!({"op": "replace", "path": "/metadata/labels/colour", "value": colour}));
                }
                wire("PATCH", url, "application/json-patch+json", steps.into())
            }
            Self::Patch { style, set, remove, colour, expect } => {
                let mut fields = BTreeMap::from([(set.0.clone(), json!(set.1))]);
                if let Some(name) = remove {
                    fields.insert(name.clone(), Value::Null);
                }
                let mut body = json!({ "metadata": {} });
                body[kind.field] = json!(fields);
                if let Some(colour) = colour {
                    body["metadata"]["labels"] = json!({ "colour": colour });
                }
                if let Some(expect) = expect {
                    body["metadata"]["resourceVersion"] = version(expect).into();
                }
                let content_type = match style {
                    Patch::Strategic => "application/strategic-merge-patch+json",
                    _ => "application/merge-patch+json",
                };
                wire("PATCH", url, content_type, body)
            }
            Self::Apply { manager, value, more, colour } => {
                let fields = applied(manager, value, *more).collect();
                let state = State { fields, colour: colour.clone(), ..State::default() };
                let url = format!("{url}?fieldManager={manager}&force=true");
                wire("PATCH", url, "application/apply-patch+yaml", kind.render(key, &state))
            }
            Self::Delete { expect } => {
                let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
                if let Some(expect) = expect {
                    body["preconditions"] = json!({"resourceVersion": version(expect)});
                }
                wire("DELETE", url, "application/json", body)
            }
            Self::Release => {
                let body = json!({"metadata": {"finalizers": null}});
                wire("PATCH", url, "application/merge-patch+json", body)
            }
        }
    }
}

fn wire(method: &'static str, url: String, content_type: &'static str, body: Value) -> Wire {
    Wire { method, url, content_type, body }
}

fn applied<'a>(manager: &'a str, value: &'a str, more: bool) -> impl Iterator<Item = (String, String)> + 'a {
    let always = (manager.to_owned(), value.to_owned());
    let at_times = more.then(|| (format!("{manager}-more"), value.to_owned()));
    [Some(always), at_times].into_iter().flatten()
}
