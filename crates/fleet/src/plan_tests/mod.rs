//! A fleet on paper: sites that do what their Works say, and no time but what a test gives.

mod below;
mod leaving;
mod lost;
mod once;
mod room;
mod stuck;
mod told;

use super::*;
use proptest::prelude::*;
use tombolo_api::{
    Condition, HubRef, NodeShape, Placement, PlacementSpec, PodSummary, Site, SiteSpec, SiteStatus, Work,
};

const NOW: i64 = 1_800_000_000;

fn at(seconds: i64) -> crate::clock::Moment {
    crate::clock::Moment { steady: seconds, wall: seconds }
}

fn key() -> Key {
    Key::new("apps/v1", "Deployment", "shop", "web")
}

fn site(name: &str, cpu: &str) -> Site {
    let mut site = Site::new(name, SiteSpec { fences: true, ..Default::default() });
    let room: tombolo_api::Quantities =
        [("cpu".into(), cpu.into()), ("memory".into(), "8Gi".into()), ("pods".into(), "100".into())].into();
    site.status = Some(SiteStatus {
        conditions: vec![Condition { r#type: "Ready".into(), status: "True".into(), ..Default::default() }],
        nodes: Some(1),
        shapes: vec![NodeShape { count: 1, allocatable: room.clone(), free: room, ..Default::default() }],
        ..Default::default()
    });
    site
}

fn deployment(replicas: i64, generation: i64) -> Object {
    Arc::new(json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "generation": generation, "resourceVersion": generation.to_string()},
        "spec": {"replicas": replicas, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]}}}}))
}

fn fleet(sites: &[&str], spec: PlacementSpec) -> Index {
    let hub = HubRef { id: "hub".into(), epoch: 5, path: vec!["hub".into()] };
    let mut index = Index::new(hub, false, at(NOW - 1000), 40);
    for name in sites {
        index.put_site(site(name, "8"), at(NOW - 1000));
        index.heard(name, 0, at(NOW));
    }
    let mut placement = Placement::new("default", spec);
    placement.metadata.namespace = Some(names::SYSTEM_NAMESPACE.into());
    index.put_placement(placement);
    index
}

/// The Work as the API would give it.
fn whole((site, kept): (&String, &Arc<Kept>)) -> Work {
    let mut work = Work::new(&kept.name, kept.spec());
    work.metadata.namespace = Some(names::site_namespace(site));
    work.metadata.uid = Some(kept.uid.clone());
    work.metadata.generation = Some(kept.generation);
    work.metadata.resource_version = Some(kept.version.to_string());
    work.metadata.annotations = Some(kept.annotations.clone());
    work.status = Some(tombolo_api::WorkStatus { object: kept.object(), ..kept.status.clone() });
    work
}

fn the_work(index: &Index, site: &str, name: &str) -> Option<Work> {
    index.works_of(&key()).find(|(s, w)| *s == site && w.name == name).map(whole)
}

/// Every site runs what it was given, and says so.
fn all_run(index: &mut Index) {
    let works: Vec<Work> = index.works_of(&key()).map(whole).collect();
    for mut work in works {
        let replicas = work.spec.replicas.unwrap_or(0);
        let pod = PodSummary { phase: "Running".into(), node: "n".into(), ready: true, ..Default::default() };
        let mut status = work.status.clone().unwrap_or_default();
        status.observed_generation = work.metadata.generation.unwrap_or(0);
        status.object =
            Some(json!({"replicas": replicas, "readyReplicas": replicas, "updatedReplicas": replicas}));
        status.conditions =
            vec![Condition { r#type: "Applied".into(), status: "True".into(), ..Default::default() }];
        status.pods = (0..replicas).map(|n| (format!("web-{n}"), pod.clone())).collect();
        work.status = Some(status);
        index.put_work(written(work));
    }
}

/// As the API would give it back: every write has a version of its own.
fn written(mut work: Work) -> Work {
    let version = work.metadata.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok());
    work.metadata.resource_version = Some((version.unwrap_or(0) + 1).to_string());
    work
}

/// Does to the index what the API would do; reports are as if every replica ran.
fn carry_out(index: &mut Index, actions: &[Action]) {
    for action in actions {
        match action {
            Action::CreateWork { site, name, spec, .. } | Action::UpdateWork { site, name, spec, .. } => {
                let old = the_work(index, site, name);
                let mut work = Work::new(name, (**spec).clone());
                work.metadata.annotations = old.as_ref().and_then(|w| w.metadata.annotations.clone());
                work.status = old.as_ref().and_then(|w| w.status.clone());
                work.metadata.namespace = Some(names::site_namespace(site));
                work.metadata.uid = Some("w".into());
                work.metadata.generation =
                    Some(old.as_ref().map_or(1, |w| w.metadata.generation.unwrap_or(0) + 1));
                work.metadata.resource_version = old.and_then(|w| w.metadata.resource_version);
                index.put_work(written(work));
            }
            Action::NoteLeft { site, name, left } => {
                let mut work = the_work(index, site, name).expect("a Work to note it on");
                let notes = work.metadata.annotations.get_or_insert_default();
                match left {
                    Some(left) => drop(notes.insert(names::LEFT_ANNOTATION.into(), left.clone())),
                    None => drop(notes.remove(names::LEFT_ANNOTATION)),
                }
                index.put_work(written(work));
            }
            Action::Mark { key, annotation, value } => {
                let mut root = index.objects.get(key).map(|root| (**root).clone()).expect("a root to mark");
                root["metadata"]["annotations"][annotation] = json!(value);
                index.objects.insert(key.clone(), Arc::new(root));
            }
            Action::DeleteWork { site, name, .. } => {
                if let Some(work) = the_work(index, site, name) {
                    index.drop_work(&crate::index::work_id(&work));
                }
            }
            _ => {}
        }
    }
}

fn step(index: &mut Index, now: i64) -> Vec<Action> {
    let plan = plan(index, &key(), now, "now");
    if let Some(decided) = plan.decided {
        index.decided.insert(key(), decided);
    }
    if plan.moved {
        index.moved.insert(key(), now);
    }
    match plan.again {
        Some(at) => drop(index.unsettled.insert(key(), at)),
        None => drop(index.unsettled.remove(&key())),
    }
    carry_out(index, &plan.actions);
    plan.actions
}

fn about_works(actions: &[Action]) -> usize {
    let works = |a: &&Action| {
        matches!(a, Action::CreateWork { .. } | Action::UpdateWork { .. } | Action::DeleteWork { .. })
    };
    actions.iter().filter(works).count()
}

fn shares(index: &Index) -> BTreeMap<String, i64> {
    let key = key();
    let alive = index.works_of(&key).filter(|(_, w)| w.tombstone.is_none() && !w.has_left());
    alive.map(|(site, w)| (site.clone(), w.replicas.unwrap_or(0))).collect()
}

fn removed(index: &mut Index, site: &str) {
    let mut work = index.works_of(&key()).find(|(s, _)| *s == site).map(whole).expect("a Work");
    let mut status = work.status.clone().unwrap_or_default();
    status.observed_generation = work.metadata.generation.unwrap_or(0);
    status.conditions =
        vec![Condition { r#type: "Removed".into(), status: "True".into(), ..Default::default() }];
    work.status = Some(status);
    work.metadata.resource_version = Some("1000".into());
    index.put_work(work);
}

fn all_heard(index: &mut Index, now: i64) {
    for name in ["a", "b"] {
        index.heard(name, 0, at(now));
    }
}

/// So many of the pods at `site` cannot be scheduled there.
fn stuck(index: &mut Index, site: &str, count: usize) {
    let mut work = index.works_of(&key()).find(|(s, _)| *s == site).map(whole).expect("a Work");
    let status = work.status.get_or_insert_default();
    for (n, pod) in status.pods.values_mut().enumerate() {
        let fits = n >= count;
        (pod.node, pod.ready) = (if fits { "n".into() } else { String::new() }, fits);
        pod.reason = if fits { String::new() } else { "Unschedulable".into() };
    }
    index.put_work(written(work));
}

fn prefer_a() -> PlacementSpec {
    let a = tombolo_api::SiteSelector { names: vec!["a".into()], ..Default::default() };
    PlacementSpec { prefer: vec![a], ..Default::default() }
}

#[test]
fn a_deleted_root_leaves_its_sites_by_tombstone_and_its_works_go_when_that_is_done() {
    let mut index = fleet(&["a"], PlacementSpec::default());
    index.put_object(key(), deployment(2, 1));
    step(&mut index, NOW);
    index.drop_object(&key());
    step(&mut index, NOW);
    let tombstone =
        index.works_of(&key()).next().and_then(|(_, w)| w.tombstone.clone()).expect("a tombstone");
    assert_eq!((tombstone.hub.as_str(), tombstone.epoch, tombstone.keep), ("hub", 5, false));
    assert_eq!(about_works(&step(&mut index, NOW)), 0, "it waits for the site");
    removed(&mut index, "a");
    step(&mut index, NOW);
    assert_eq!(index.works_of(&key()).count(), 0);
}

#[test]
fn a_restored_hub_drops_tombstones_of_before_and_a_restarted_one_confirms_them() {
    for restored in [true, false] {
        let mut index = fleet(&["a"], PlacementSpec::default());
        index.put_object(key(), deployment(1, 1));
        step(&mut index, NOW);
        index.drop_object(&key());
        step(&mut index, NOW);
        index.hub.epoch = 6;
        index.restored = restored;
        step(&mut index, NOW);
        let left = index.works_of(&key()).next().and_then(|(_, w)| w.tombstone.clone());
        assert_eq!(left.map(|t| t.epoch), (!restored).then_some(6));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Planning again without news changes no Work, and no replica is lost or invented, whatever came before.
    #[test]
    fn a_plan_is_stable_and_conserves_replicas(scales in prop::collection::vec(0i64..12, 1..6), sites in 1usize..4) {
        let names: Vec<String> = (0..sites).map(|n| format!("s{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut index = fleet(&names, PlacementSpec::default());
        for (n, replicas) in scales.into_iter().enumerate() {
            index.put_object(key(), deployment(replicas, n as i64 + 1));
            step(&mut index, NOW);
            // A Work that was taken away is confirmed by its site, so that it can come again.
            let leaving: Vec<String> = index.works_of(&key()).filter(|(_, w)| w.tombstone.is_some()).map(|(s, _)| s.clone()).collect();
            for site in leaving {
                removed(&mut index, &site);
            }
            step(&mut index, NOW);
            step(&mut index, NOW);
            prop_assert_eq!(shares(&index).values().sum::<i64>(), replicas);
            prop_assert_eq!(about_works(&step(&mut index, NOW)), 0);
        }
    }
}
