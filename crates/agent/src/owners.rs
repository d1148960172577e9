//! Who made an object at the site: the record that decides whether a Work may change or delete it.
//!
//! Every object carries one annotation per Work that wants it, `owner.tombolo.dev/<work> = <hub>/<uid of the Work>`.
//! Shared dependencies thereby count their users, and a Work of a restored hub (same name, other uid) is not mistaken
//! for the one that made the object. One that was there before a hub took it over says so in `tombolo.dev/adopted`: it
//! is let go when the last Work is done with it, never deleted.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tombolo_api::{Tombstone, names};

const PREFIX: &str = "owner.tombolo.dev/";

/// One Work, as recorded on objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub hub: String,
    pub work: String,
    pub uid: String,
}

/// What an object at the site says about its makers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    works: Vec<Owner>,
    /// No Work made it: it was there before.
    adopted: bool,
}

/// May a Work take the object?
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nothing there, or it is this hub's already.
    Free,
    /// Something this hub did not make.
    Foreign,
    /// Another hub's.
    OtherHub(String),
    /// Another Work of this hub has it as its own root; it must go first.
    OtherRoot(String),
}

/// What a tombstone does to one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// Not ours, or not for this tombstone: leave it.
    Leave(&'static str),
    /// Others still need it, or had it first: take only our name off. `last`: no other Work's name is on it.
    Release {
        last: bool,
    },
    Delete,
}

impl Owner {
    pub fn key(&self) -> String {
        format!("{PREFIX}{}", self.work)
    }

    /// A Work is named `<kind>-<name>-<hash>` after its root: two Works with the same beginning are for two objects that
    /// had the same name, one after the other.
    fn root_name(&self) -> &str {
        self.work.rsplit_once('-').map_or(&self.work, |(root, _)| root)
    }

    pub fn value(&self) -> String {
        format!("{}/{}", self.hub, self.uid)
    }
}

impl Owners {
    pub fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let all = annotations.into_iter().flatten().filter_map(|(key, value)| {
            let (hub, uid) = value.split_once('/')?;
            Some(Owner { hub: hub.into(), work: key.strip_prefix(PREFIX)?.into(), uid: uid.into() })
        });
        let adopted = annotations.is_some_and(|all| all.contains_key(names::ADOPTED_ANNOTATION));
        Self { works: all.collect(), adopted }
    }

    /// The same object, from now on marked as one that was there before.
    pub fn adopting(mut self) -> Self {
        self.adopted = true;
        self
    }

    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    pub fn adopted(&self) -> bool {
        self.adopted
    }

    pub fn iter(&self) -> impl Iterator<Item = &Owner> {
        self.works.iter()
    }

    pub fn has(&self, owner: &Owner) -> bool {
        self.works.contains(owner)
    }

    pub fn is_only(&self, owner: &Owner) -> bool {
        self.works.len() == 1 && self.has(owner)
    }

    /// Do Works of `hub` want it, and nobody else's?
    pub fn only(&self, hub: &str) -> bool {
        !self.works.is_empty() && self.works.iter().all(|owner| owner.hub == hub)
    }

    /// May `owner` apply the object that `self` was read from? `root`: as its root rather than as a dependency.
    pub fn claim(&self, owner: &Owner, root: bool) -> Claim {
        if let Some(other) = self.works.iter().find(|o| o.hub != owner.hub) {
            return Claim::OtherHub(other.hub.clone());
        }
        if self.works.is_empty() {
            return Claim::Foreign;
        }
        let mine = self.works.iter().any(|o| o.work == owner.work);
        let rival = self.works.iter().find(|o| o.work != owner.work && o.root_name() == owner.root_name());
        match rival {
            Some(other) if root && !mine => Claim::OtherRoot(other.work.clone()),
            // Other Works have it as a dependency: what one of them needs and another one is coexist.
            _ => Claim::Free,
        }
    }

    /// What `tombstone` of Work `owner` does, at a site that has seen epoch `seen` of that hub.
    pub fn farewell(&self, owner: &Owner, tombstone: &Tombstone, seen: i64) -> Farewell {
        if tombstone.hub != owner.hub {
            return Farewell::Leave("the tombstone is of another hub");
        }
        if tombstone.epoch < seen {
            return Farewell::Leave("the tombstone is older than what this site has seen of the hub");
        }
        if !self.has(owner) {
            return Farewell::Leave("the object was not made by this Work");
        }
        let last = self.works.len() == 1;
        if last && !self.adopted { Farewell::Delete } else { Farewell::Release { last } }
    }

    /// Annotations to apply for `owner`, keeping the other owners for which `alive` holds.
    pub fn annotations(&self, owner: &Owner, alive: impl Fn(&Owner) -> bool) -> Map<String, Value> {
        let mut all = Map::new();
        for other in self.works.iter().filter(|o| o.work != owner.work && o.hub == owner.hub && alive(o)) {
            all.insert(other.key(), json!(other.value()));
        }
        all.insert(owner.key(), json!(owner.value()));
        if self.adopted {
            all.insert(names::ADOPTED_ANNOTATION.to_owned(), json!("true"));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner(hub: &str, work: &str, uid: &str) -> Owner {
        Owner { hub: hub.into(), work: work.into(), uid: uid.into() }
    }

    fn recorded(owners: &[Owner]) -> Owners {
        Owners::of(Some(&owners.iter().map(|o| (o.key(), o.value())).collect()))
    }

    fn tombstone(hub: &str, epoch: i64) -> Tombstone {
        Tombstone { hub: hub.into(), epoch, ..Default::default() }
    }

    #[test]
    fn an_object_nobody_recorded_is_foreign_and_is_never_deleted() {
        let none = recorded(&[]);
        assert_eq!(none.claim(&owner("h", "w", "u"), true), Claim::Foreign);
        assert!(matches!(none.farewell(&owner("h", "w", "u"), &tombstone("h", 9), 0), Farewell::Leave(_)));
    }

    #[test]
    fn a_shared_dependency_goes_with_its_last_user() {
        let (a, b) = (owner("h", "a", "1"), owner("h", "b", "2"));
        let shared = recorded(&[a.clone(), b.clone()]);
        assert_eq!(shared.farewell(&a, &tombstone("h", 1), 1), Farewell::Release { last: false });
        assert_eq!(recorded(std::slice::from_ref(&b)).farewell(&b, &tombstone("h", 1), 1), Farewell::Delete);
    }

    #[test]
    fn a_root_that_another_work_still_has_must_go_first() {
        let (old, new) = (owner("h", "web-1", "1"), owner("h", "web-2", "2"));
        assert_eq!(recorded(&[old]).claim(&new, true), Claim::OtherRoot("web-1".into()));
    }

    #[test]
    fn what_came_as_a_dependency_can_become_a_root_of_its_own() {
        let (deployment, service) = (owner("h", "deployment-web-1", "1"), owner("h", "service-web-2", "2"));
        assert_eq!(recorded(&[deployment]).claim(&service, true), Claim::Free);
    }

    #[test]
    fn what_was_there_before_is_let_go_and_never_deleted() {
        let (a, b) = (owner("h", "a", "1"), owner("h", "b", "2"));
        // As the annotations come back from the site, after a second Work wanted it too.
        let both = recorded(std::slice::from_ref(&a)).adopting().annotations(&b, |_| true);
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let mut on_it: BTreeMap<String, String> = both.iter().map(|(k, v)| (k.clone(), text(v))).collect();
        let farewell = |on_it: &BTreeMap<String, String>, who: &Owner| {
            Owners::of(Some(on_it)).farewell(who, &tombstone("h", 1), 1)
        };
        assert_eq!(farewell(&on_it, &a), Farewell::Release { last: false });
        on_it.remove(&a.key());
        assert_eq!(farewell(&on_it, &b), Farewell::Release { last: true });
        assert!(matches!(farewell(&on_it, &a), Farewell::Leave(_)));
    }

    proptest! {
        /// Whatever a confused hub sends, only the very Work that made the object, in an epoch not older than seen, deletes it.
        #[test]
        fn only_the_maker_deletes(hub in "[ab]", work in "[ab]", uid in "[ab]", said in "[ab]", epoch in 0i64..4, seen in 0i64..4) {
            let maker = owner("a", "a", "a");
            let who = owner(&hub, &work, &uid);
            let deletes = recorded(std::slice::from_ref(&maker)).farewell(&who, &tombstone(&said, epoch), seen) == Farewell::Delete;
            prop_assert_eq!(deletes, who == maker && said == "a" && epoch >= seen);
        }
    }
}
