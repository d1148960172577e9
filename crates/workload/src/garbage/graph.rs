//! Who owns whom. A plain structure fed by changes; it answers which objects need a look.
//!
//! An owner that is referred to but was never seen is *presumed*: it may be gone, or of a kind whose watch is
//! behind, so it is looked up on the server before anything is concluded from its absence.

use crate::shell::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{BTreeSet, HashMap};

pub const FOREGROUND: &str = "foregroundDeletion";
pub const ORPHAN: &str = "orphan";

pub type Uid = String;

#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug)]
pub struct Object {
    pub identity: Identity,
    pub owners: Vec<OwnerReference>,
    pub deleting: bool,
    pub foreground: bool,
    pub orphaning: bool,
}

#[derive(Debug, Default)]
struct Node {
    /// `None`: presumed, see the module's words.
    object: Option<Object>,
    /// It was seen to go; nothing needs to be looked up.
    gone: bool,
    dependents: BTreeSet<Uid>,
}

#[derive(Default, Debug)]
pub struct Graph {
    nodes: HashMap<Uid, Node>,
}

/// How an object's owners stand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Owners {
    /// Exist, and will stay.
    pub solid: Vec<Uid>,
    /// Do not exist.
    pub dangling: Vec<Uid>,
    /// Wait for their dependents to go first.
    pub waiting: Vec<Uid>,
}

/// What to do with an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Keep,
    /// Drop the references to these owners; others hold the object.
    Unlink(Vec<Uid>),
    /// Stop holding up its owners: it is part of a circle in which all wait for each other.
    Unblock,
    Delete {
        propagation: &'static str,
    },
}

impl Graph {
    /// Takes over the present state of an object; returns the uids that need a look.
    pub fn observe(&mut self, resource: &Resource, meta: &ObjectMeta) -> Vec<Uid> {
        let Some(uid) = meta.uid.clone() else { return Vec::new() };
        let finalizer = |name: &str| meta.finalizers.iter().flatten().any(|f| f == name);
        let deleting = meta.deletion_timestamp.is_some();
        let object = Object {
            identity: Identity {
                resource: resource.clone(),
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
            },
            owners: meta.owner_references.clone().unwrap_or_default(),
            deleting,
            foreground: deleting && finalizer(FOREGROUND),
            orphaning: deleting && finalizer(ORPHAN),
        };
        let mut look = Vec::new();
        let before = self.nodes.entry(uid.clone()).or_default().object.take();
        let mut relinked = before.is_none();
        if let Some(before) = &before
            && before.owners != object.owners
        {
            relinked = true;
            for owner in &before.owners {
                if !object.owners.iter().any(|o| o.uid == owner.uid) {
                    self.unlink(&owner.uid, &uid);
                }
                // An owner that waits for this object may be free to go now.
                if self.get(&owner.uid).is_some_and(|owner| owner.foreground) {
                    look.push(owner.uid.clone());
                }
            }
        }
        for owner in &object.owners {
            self.nodes.entry(owner.uid.clone()).or_default().dependents.insert(uid.clone());
        }
        if relinked && object.owners.iter().any(|owner| self.get(&owner.uid).is_none_or(|o| o.foreground)) {
            look.push(uid.clone());
        }
        let started = |was: bool, is: bool| is && !was;
        if started(before.as_ref().is_some_and(|b| b.foreground), object.foreground) {
            look.push(uid.clone());
            look.extend(self.dependents(&uid));
        }
        if started(before.as_ref().is_some_and(|b| b.orphaning), object.orphaning) {
            look.push(uid.clone());
        }
        self.nodes.entry(uid).or_default().object = Some(object);
        look
    }

    /// The object is gone; returns the uids that need a look.
    pub fn forget(&mut self, uid: &str) -> Vec<Uid> {
        let Some(node) = self.nodes.get_mut(uid) else { return Vec::new() };
        let object = node.object.take();
        node.gone = true;
        let mut look: Vec<Uid> = node.dependents.iter().cloned().collect();
        if node.dependents.is_empty() {
            self.nodes.remove(uid);
        }
        for owner in object.iter().flat_map(|object| &object.owners) {
            if self.get(&owner.uid).is_some_and(|owner| owner.foreground) {
                look.push(owner.uid.clone());
            }
            self.unlink(&owner.uid, uid);
        }
        look
    }

    pub fn get(&self, uid: &str) -> Option<&Object> {
        self.nodes.get(uid)?.object.as_ref()
    }

    /// Whether the object is known to exist or known to be gone.
    pub fn is_certain(&self, uid: &str) -> bool {
        self.nodes.get(uid).is_some_and(|node| node.gone || node.object.is_some())
    }

    pub fn dependents(&self, uid: &str) -> Vec<Uid> {
        self.nodes.get(uid).map(|node| node.dependents.iter().cloned().collect()).unwrap_or_default()
    }

    /// Objects of one kind, to compare with a fresh list.
    pub fn of_kind(&self, resource: &Resource) -> Vec<Uid> {
        let of =
            |node: &Node| node.object.as_ref().is_some_and(|object| object.identity.resource == *resource);
        self.nodes.iter().filter(|(_, node)| of(node)).map(|(uid, _)| uid.clone()).collect()
    }

    /// Dependents that keep an owner, which is being deleted in the foreground, from going.
    pub fn blocking(&self, owner: &str) -> Vec<Uid> {
        let blocks = |uid: &Uid| {
            self.get(uid).is_some_and(|object| {
                object.owners.iter().any(|o| o.uid == owner && o.block_owner_deletion == Some(true))
            })
        };
        self.dependents(owner).into_iter().filter(blocks).collect()
    }

    /// Sorts an object's owners; `exists` is asked about those that the graph does not know.
    pub fn owners(
        &self,
        references: &[OwnerReference],
        exists: impl Fn(&OwnerReference) -> Existence,
    ) -> Owners {
        let mut owners = Owners::default();
        for reference in references {
            let existence = match self.get(&reference.uid) {
                Some(owner) if owner.foreground => Existence::Waiting,
                Some(_) => Existence::Solid,
                None if self.is_certain(&reference.uid) => Existence::Gone,
                None => exists(reference),
            };
            match existence {
                Existence::Solid => owners.solid.push(reference.uid.clone()),
                Existence::Gone => owners.dangling.push(reference.uid.clone()),
                Existence::Waiting => owners.waiting.push(reference.uid.clone()),
            }
        }
        owners
    }

    /// What becomes of an object whose owners stand like this.
    pub fn judge(&self, uid: &str, owners: &Owners) -> Verdict {
        let Some(object) = self.get(uid) else { return Verdict::Keep };
        if owners.dangling.is_empty() && owners.waiting.is_empty() {
            return Verdict::Keep;
        }
        if !owners.solid.is_empty() {
            let gone = owners.dangling.iter().chain(&owners.waiting).cloned().collect();
            return Verdict::Unlink(gone);
        }
        if object.deleting {
            return Verdict::Keep;
        }
        let dependents = self.dependents(uid);
        if !owners.waiting.is_empty() && !dependents.is_empty() {
            let blocks = object.owners.iter().any(|owner| owner.block_owner_deletion == Some(true));
            if blocks && dependents.iter().any(|uid| self.get(uid).is_some_and(|o| o.foreground)) {
                return Verdict::Unblock;
            }
            return Verdict::Delete { propagation: "Foreground" };
        }
        Verdict::Delete { propagation: "Background" }
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(node) = self.nodes.get_mut(owner) {
            node.dependents.remove(dependent);
            if node.dependents.is_empty() && node.object.is_none() {
                self.nodes.remove(owner);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existence {
    Solid,
    Gone,
    Waiting,
}
