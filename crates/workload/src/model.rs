//! A tiny server for tests of plans: it applies actions to objects as the API server would.

use crate::shell::{Action, Object, PatchKind};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

#[derive(Default, Clone)]
pub struct Model {
    objects: BTreeMap<(String, String), Value>,
    next: u64,
}

impl Model {
    pub fn add<K: Object>(&mut self, object: Value) -> String {
        self.insert(K::RESOURCE.plural.to_string(), object)
    }

    fn insert(&mut self, plural: String, mut object: Value) -> String {
        self.next += 1;
        let meta = &mut object["metadata"];
        if meta["name"].is_null() {
            let prefix = meta["generateName"].as_str().unwrap_or_default().to_owned();
            meta["name"] = json!(format!("{prefix}{:05}", self.next));
        }
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("uid-{}", self.next));
        }
        meta["resourceVersion"] = json!(self.next.to_string());
        meta["generation"] = json!(1);
        let created = jiff::Timestamp::from_second(1_000 + self.next as i64).unwrap();
        meta["creationTimestamp"] = json!(created.to_string());
        let name = meta["name"].as_str().unwrap().to_owned();
        self.objects.entry((plural, name.clone())).or_insert(object);
        name
    }

    pub fn list<K: Object>(&self) -> Vec<Arc<K>> {
        let of = |((plural, _), _): &(&(String, String), &Value)| *plural == K::RESOURCE.plural;
        self.objects
            .iter()
            .filter(of)
            .map(|(_, value)| Arc::new(serde_json::from_value(value.clone()).unwrap()))
            .collect()
    }

    pub fn get<K: Object>(&self, name: &str) -> Option<Arc<K>> {
        let value = self.objects.get(&(K::RESOURCE.plural.to_string(), name.to_owned()))?;
        Some(Arc::new(serde_json::from_value(value.clone()).unwrap()))
    }

    /// Changes an object as somebody else would.
    pub fn merge<K: Object>(&mut self, name: &str, patch: Value) {
        self.patch(K::RESOURCE.plural.to_string(), name.to_owned(), &patch);
    }

    pub fn remove<K: Object>(&mut self, name: &str) {
        self.delete(K::RESOURCE.plural.to_string(), name.to_owned());
    }

    pub fn apply(&mut self, action: &Action) {
        match action {
            Action::Create { resource, body, .. } => {
                let mut object: Value = body.read().unwrap();
                object["metadata"]["uid"] = Value::Null;
                self.insert(resource.plural.to_string(), object);
            }
            Action::Patch { resource, name, kind, body, .. } => {
                assert_eq!(*kind, PatchKind::Merge);
                self.patch(resource.plural.to_string(), name.clone(), &body.read().unwrap());
            }
            Action::Delete { resource, name, .. } => self.delete(resource.plural.to_string(), name.clone()),
            Action::Replace { resource, name, body, .. } => {
                self.objects.insert((resource.plural.to_string(), name.clone()), body.read().unwrap());
            }
            Action::Tell(_) | Action::After(_) => {}
        }
    }

    fn patch(&mut self, plural: String, name: String, patch: &Value) {
        self.next += 1;
        let key = (plural, name);
        let Some(object) = self.objects.get_mut(&key) else { return };
        let spec = object["spec"].clone();
        merge(object, patch);
        if object["spec"] != spec {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            object["metadata"]["generation"] = json!(generation);
        }
        object["metadata"]["resourceVersion"] = json!(self.next.to_string());
        let held =
            object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        if !object["metadata"]["deletionTimestamp"].is_null() && !held {
            self.objects.remove(&key);
        }
    }

    fn delete(&mut self, plural: String, name: String) {
        let key = (plural, name);
        let Some(object) = self.objects.get_mut(&key) else { return };
        let held =
            object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        if held {
            object["metadata"]["deletionTimestamp"] = json!("1970-01-01T01:00:00Z");
        } else {
            self.objects.remove(&key);
        }
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], change);
        }
    }
}
