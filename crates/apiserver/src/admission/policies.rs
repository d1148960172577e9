//! The small objects that admission consults, at hand in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::mirror::Index;
use crate::record::Record;
use crate::registry::builtin::place;

const KINDS: [(&str, &str); 6] = [
    ("scheduling.k8s.io", "priorityclasses"),
    ("", "limitranges"),
    ("", "resourcequotas"),
    ("node.k8s.io", "runtimeclasses"),
    ("storage.k8s.io", "storageclasses"),
    ("networking.k8s.io", "ingressclasses"),
];

pub fn sources() -> impl Iterator<Item = String> {
    KINDS.iter().map(|(group, plural)| place(group, plural))
}

/// Objects by kind and key.
#[derive(Default)]
pub struct Policies {
    by_kind: [BTreeMap<String, Arc<Value>>; KINDS.len()],
}

impl Policies {
    fn index(plural: &str) -> usize {
        KINDS.iter().position(|(_, p)| *p == plural).expect("asked for a kind that is not consulted")
    }

    /// All objects of a kind.
    pub fn all<'a>(&'a self, plural: &str) -> impl Iterator<Item = &'a Arc<Value>> + use<'a> {
        self.by_kind[Self::index(plural)].values()
    }

    /// All objects of a kind in a namespace.
    pub fn within<'a>(
        &'a self,
        plural: &str,
        namespace: &str,
    ) -> impl Iterator<Item = &'a Arc<Value>> + use<'a> {
        let prefix = format!("{}{namespace}/", place("", plural));
        self.by_kind[Self::index(plural)]
            .range(prefix.clone()..)
            .take_while(move |(key, _)| key.starts_with(&prefix))
            .map(|(_, object)| object)
    }

    pub fn named(&self, plural: &str, name: &str) -> Option<&Arc<Value>> {
        let index = Self::index(plural);
        self.by_kind[index].get(&format!("{}{name}", place(KINDS[index].0, plural)))
    }
}

impl Index for Policies {
    fn put(&mut self, source: usize, key: &str, value: &[u8], revision: u64) {
        let parsed =
            Record::read(value).and_then(|r| r.parse("{\"metadata\":{\"resourceVersion\":\"", revision));
        if let Ok(object) = parsed {
            self.by_kind[source].insert(key.to_owned(), Arc::new(object));
        }
    }

    fn remove(&mut self, source: usize, key: &str) {
        self.by_kind[source].remove(key);
    }

    fn clear(&mut self, source: usize) {
        self.by_kind[source].clear();
    }
}
