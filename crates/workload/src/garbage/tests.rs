use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};

const KIND: Resource = Resource::new("", "v1", "ConfigMap", "configmaps");

/// A server that holds objects, and whose news may reach the graph late.
#[derive(Clone, Debug, Default)]
struct Server {
    objects: BTreeMap<usize, ObjectMeta>,
    news: VecDeque<(bool, ObjectMeta)>,
}

fn uid(number: usize) -> String {
    format!("uid-{number:02}")
}

impl Server {
    fn put(&mut self, number: usize, meta: ObjectMeta) {
        self.news.push_back((true, meta.clone()));
        self.objects.insert(number, meta);
    }

    /// As the API server does it: finalizers hold an object, else it is gone.
    fn delete(&mut self, number: usize, propagation: &str) {
        let Some(meta) = self.objects.get(&number) else { return };
        let mut meta = meta.clone();
        match propagation {
            "Foreground" => meta.finalizers.get_or_insert_default().push(FOREGROUND.into()),
            "Orphan" => meta.finalizers.get_or_insert_default().push(ORPHAN.into()),
            _ => {}
        }
        meta.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        self.settle(number, meta);
    }

    fn settle(&mut self, number: usize, meta: ObjectMeta) {
        let held = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
        if meta.deletion_timestamp.is_some() && !held {
            self.objects.remove(&number);
            self.news.push_back((false, meta));
        } else {
            self.put(number, meta);
        }
    }

    fn number(&self, uid: &str) -> Option<usize> {
        self.objects.iter().find(|(_, meta)| meta.uid.as_deref() == Some(uid)).map(|(number, _)| *number)
    }

    /// One look at one object, with the same questions and verdicts as the collector's.
    fn look(&mut self, graph: &mut Graph, uid: &str) -> Vec<String> {
        let Some(object) = graph.get(uid).cloned() else { return Vec::new() };
        let Some(number) = self.number(uid) else { return Vec::new() };
        let mut meta = self.objects[&number].clone();
        let drop_finalizer = |meta: &mut ObjectMeta, name: &str| {
            meta.finalizers.get_or_insert_default().retain(|finalizer| finalizer != name);
        };
        if object.orphaning {
            for dependent in graph.dependents(uid) {
                if let Some(other) = self.number(&dependent) {
                    let mut loose = self.objects[&other].clone();
                    loose.owner_references.get_or_insert_default().retain(|r| r.uid != uid);
                    self.settle(other, loose);
                }
            }
            drop_finalizer(&mut meta, ORPHAN);
            self.settle(number, meta);
            return Vec::new();
        }
        if object.foreground {
            let blocking = graph.blocking(uid);
            if blocking.is_empty() {
                drop_finalizer(&mut meta, FOREGROUND);
                self.settle(number, meta);
            }
            return blocking.into_iter().filter(|uid| graph.get(uid).is_some_and(|o| !o.deleting)).collect();
        }
        let references = meta.owner_references.clone().unwrap_or_default();
        let exists = |reference: &OwnerReference| match self.number(&reference.uid) {
            Some(owner) => {
                let owner = &self.objects[&owner];
                let waits = owner.deletion_timestamp.is_some()
                    && owner.finalizers.iter().flatten().any(|finalizer| finalizer == FOREGROUND);
                if waits { Existence::Waiting } else { Existence::Solid }
            }
            None => Existence::Gone,
        };
        let owners = graph.owners(&references, exists);
        match graph.judge(uid, &owners) {
            Verdict::Keep => {}
            Verdict::Unlink(gone) => {
                meta.owner_references.get_or_insert_default().retain(|r| !gone.contains(&r.uid));
                self.settle(number, meta);
            }
            Verdict::Unblock => {
                let references = meta.owner_references.get_or_insert_default();
                references.iter_mut().for_each(|r| r.block_owner_deletion = Some(false));
                self.settle(number, meta);
            }
            Verdict::Delete { propagation } => self.delete(number, propagation),
        }
        Vec::new()
    }
}

fn object(number: usize, owners: &BTreeSet<usize>) -> ObjectMeta {
    let reference = |owner: &usize| OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: owner.to_string(),
        uid: uid(*owner),
        block_owner_deletion: Some(true),
        controller: None,
    };
    ObjectMeta {
        uid: Some(uid(number)),
        name: Some(number.to_string()),
        owner_references: Some(owners.iter().map(reference).collect()),
        ..ObjectMeta::default()
    }
}

/// Which objects should be left: roots that were not deleted, and whatever at least one of those (still) owns.
fn survivors(owners: &[BTreeSet<usize>], deletes: &[(usize, &'static str)]) -> BTreeSet<usize> {
    let mut left: BTreeSet<usize> = (0..owners.len()).collect();
    let mut owners: Vec<BTreeSet<usize>> = owners.to_vec();
    let mut had_owner: Vec<bool> = owners.iter().map(|set| !set.is_empty()).collect();
    for (number, propagation) in deletes {
        if !left.remove(number) {
            continue;
        }
        if *propagation == "Orphan" {
            for (dependent, set) in owners.iter_mut().enumerate() {
                if set.remove(number) && set.is_empty() {
                    had_owner[dependent] = false;
                }
            }
        }
        loop {
            let lost: Vec<usize> =
                left.iter().filter(|n| had_owner[**n] && owners[**n].is_disjoint(&left)).copied().collect();
            if lost.is_empty() {
                break;
            }
            left.retain(|number| !lost.contains(number));
        }
        // Those that others still hold forget the owners that are gone.
        owners.iter_mut().for_each(|set| set.retain(|owner| left.contains(owner)));
    }
    left
}

fn forest() -> impl Strategy<Value = Vec<BTreeSet<usize>>> {
    // Owners come before what they own: no cycles.
    prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..3), 1..12).prop_map(|raw| {
        raw.iter()
            .enumerate()
            .map(|(number, picks)| {
                picks.iter().filter(|_| number > 0).map(|pick| pick.index(number.max(1))).collect()
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_nobody_owns_goes_and_nothing_else_does(
        owners in forest(),
        picks in prop::collection::vec((any::<prop::sample::Index>(), 0..3usize), 1..4),
        order in prop::collection::vec(any::<prop::sample::Index>(), 60),
    ) {
        let deletes: Vec<_> = picks
            .iter()
            .map(|(pick, manner)| (pick.index(owners.len()), ["Background", "Foreground", "Orphan"][*manner]))
            .collect();
        let mut server = Server::default();
        for (number, set) in owners.iter().enumerate() {
            server.put(number, object(number, set));
        }
        let mut graph = Graph::default();
        let mut queue: VecDeque<String> = VecDeque::new();
        let mut order = order.iter().cycle();
        // Every delete runs to its end before the next, so that the reference result is unambiguous.
        let mut waiting = deletes.iter();
        loop {
            // News in order, looks in any order.
            while !server.news.is_empty() || !queue.is_empty() {
                let deliver = queue.is_empty() || (!server.news.is_empty() && order.next().unwrap().index(3) > 0);
                if deliver {
                    let (exists, meta) = server.news.pop_front().unwrap();
                    let look = if exists { graph.observe(&KIND, &meta) } else { graph.forget(meta.uid.as_deref().unwrap()) };
                    queue.extend(look);
                } else {
                    let at = order.next().unwrap().index(queue.len());
                    let uid = queue.remove(at).unwrap();
                    let look = server.look(&mut graph, &uid);
                    queue.extend(look);
                }
            }
            let Some((number, propagation)) = waiting.next() else { break };
            server.delete(*number, propagation);
        }
        let left: BTreeSet<usize> = server.objects.keys().copied().collect();
        prop_assert_eq!(left, survivors(&owners, &deletes));
    }
}

#[test]
fn an_owner_deleted_in_the_foreground_waits_for_what_blocks_it() {
    let mut graph = Graph::default();
    graph.observe(&KIND, &object(0, &BTreeSet::new()));
    graph.observe(&KIND, &object(1, &BTreeSet::from([0])));
    let mut owner = object(0, &BTreeSet::new());
    owner.finalizers = Some(vec![FOREGROUND.into()]);
    owner.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let look = graph.observe(&KIND, &owner);
    assert_eq!(look, [uid(0), uid(1)]);
    assert_eq!(graph.blocking(&uid(0)), [uid(1)]);
    assert_eq!(graph.forget(&uid(1)), [uid(0)]);
    assert!(graph.blocking(&uid(0)).is_empty());
}

#[test]
fn a_circle_that_is_deleted_in_the_foreground_does_not_wait_for_itself() {
    let mut server = Server::default();
    for (number, owner) in [(0, 2), (1, 0), (2, 1)] {
        server.put(number, object(number, &BTreeSet::from([owner])));
    }
    let (mut graph, mut queue) = (Graph::default(), VecDeque::new());
    server.delete(0, "Foreground");
    for _ in 0..100 {
        while let Some((exists, meta)) = server.news.pop_front() {
            let look =
                if exists { graph.observe(&KIND, &meta) } else { graph.forget(meta.uid.as_deref().unwrap()) };
            queue.extend(look);
        }
        let Some(uid) = queue.pop_front() else { break };
        let look = server.look(&mut graph, &uid);
        queue.extend(look);
    }
    assert!(server.objects.is_empty(), "left: {:?}", server.objects.keys());
}
