use super::*;
use crate::kept::work_of_mirror;
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
        nodes: 1,
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
        status.object = Some(json!({"replicas": replicas, "readyReplicas": replicas}));
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

#[test]
fn a_lost_site_s_replicas_move_after_the_wait_and_not_before() {
    let mut spec = PlacementSpec::default();
    spec.failover.wait_seconds = Some(120);
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    let before = shares(&index);
    assert_eq!(before.values().sum::<i64>(), 4);
    let lost = before.keys().next().cloned().expect("a site");
    let other = if lost == "a" { "b" } else { "a" };
    for (later, moved) in [(60, false), (130, true)] {
        index.heard(other, 0, at(NOW + later));
        index.topology += 1;
        step(&mut index, NOW + later);
        let now = shares(&index);
        assert_eq!(now.values().sum::<i64>(), 4, "a replica was lost");
        assert_eq!(!now.contains_key(&lost), moved, "after {later} s: {now:?}");
    }
}

#[test]
fn a_site_that_comes_back_keeps_what_it_ran_where_it_is_wanted_there() {
    let mut spec = PlacementSpec::default();
    spec.failover.wait_seconds = Some(10);
    spec.replicas.divide_by = tombolo_api::DivideBy::Weight;
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 2), ("b".into(), 2)]));
    all_run(&mut index);
    index.heard("b", 0, at(NOW + 100));
    index.topology += 1;
    step(&mut index, NOW + 100);
    assert_eq!(shares(&index), BTreeMap::from([("b".into(), 4)]), "the lost site's share moves");
    all_run(&mut index);
    // It is heard again: two too many run, and those that go are not all of the ones that came back.
    index.heard("a", 0, at(NOW + 200));
    index.heard("b", 0, at(NOW + 200));
    index.topology += 1;
    let actions = step(&mut index, NOW + 200);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 2), ("b".into(), 2)]));
    let touched = actions.iter().any(|a| matches!(a, Action::UpdateWork { site, .. } if site == "a"));
    assert!(!touched, "what ran at the returned site was changed: {actions:?}");
}

#[test]
fn at_most_once_replicas_grow_elsewhere_only_when_they_are_gone_where_they_were() {
    let mut spec = PlacementSpec::default();
    spec.failover.at_most_once = true;
    spec.replicas.divide_by = tombolo_api::DivideBy::Weight;
    let weigh = |spec: &mut PlacementSpec, a: i64, b: i64| {
        let one = |site: &str, weight| tombolo_api::Weight {
            sites: tombolo_api::SiteSelector { names: vec![site.into()], ..Default::default() },
            weight,
        };
        spec.replicas.weights = vec![one("a", a), one("b", b)];
    };
    weigh(&mut spec, 3, 1);
    let mut index = fleet(&["a", "b"], spec.clone());
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3), ("b".into(), 1)]));
    weigh(&mut spec, 1, 3);
    let mut placement = Placement::new("default", spec);
    placement.metadata.namespace = Some(names::SYSTEM_NAMESPACE.into());
    index.put_placement(placement);
    index.since = at(NOW - 10_000);
    for _ in 0..3 {
        step(&mut index, NOW);
        assert_eq!(shares(&index)["b"], 1, "they may still run at a");
    }
    assert_eq!(shares(&index)["a"], 1, "a was told");
    all_run(&mut index);
    step(&mut index, NOW);
    assert_eq!(shares(&index)["b"], 3);
}

#[test]
fn an_at_most_once_workload_waits_until_the_old_site_says_it_is_gone() {
    let mut spec = PlacementSpec::default();
    spec.failover.at_most_once = true;
    spec.sites.names = vec!["a".into()];
    let mut index = fleet(&["a", "b"], spec.clone());
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
    spec.sites.names = vec!["b".into()];
    let mut placement = Placement::new("default", spec);
    placement.metadata.namespace = Some(names::SYSTEM_NAMESPACE.into());
    index.put_placement(placement);
    for _ in 0..3 {
        step(&mut index, NOW);
        assert_eq!(shares(&index), BTreeMap::new(), "it may still run at a");
    }
    removed(&mut index, "a");
    for _ in 0..3 {
        step(&mut index, NOW);
    }
    assert_eq!(shares(&index), BTreeMap::from([("b".into(), 1)]));
}

fn all_heard(index: &mut Index, now: i64) {
    for name in ["a", "b"] {
        index.heard(name, 0, at(now));
    }
}

fn prefer_a() -> PlacementSpec {
    let a = tombolo_api::SiteSelector { names: vec!["a".into()], ..Default::default() };
    PlacementSpec { prefer: vec![a], ..Default::default() }
}

#[test]
fn room_is_given_away_once_while_a_site_has_not_reported_what_is_left() {
    let mut index = fleet(&["b"], prefer_a());
    index.put_site(site("a", "400m"), at(NOW));
    index.put_object(key(), deployment(3, 1));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3)]));
    // The pods are shown, the room is still that of before.
    all_run(&mut index);
    index.note_news(at(NOW));
    index.put_object(key(), deployment(7, 2));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 4), ("b".into(), 3)]));
    all_run(&mut index);
    index.note_news(at(NOW));
    index.put_site(site("a", "0"), at(NOW));
    for later in [1, 10, 100, 1000] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
        assert_eq!(
            shares(&index),
            BTreeMap::from([("a".into(), 4), ("b".into(), 3)]),
            "it is full, and stays so"
        );
    }
}

#[test]
fn a_changed_placement_is_followed_at_once_and_returned_room_only_after_a_rest() {
    let mut index = fleet(&["a", "b"], PlacementSpec::default());
    let placement = |index: &mut Index, spec: PlacementSpec| {
        let mut placement = Placement::new("default", spec);
        placement.metadata.namespace = Some(names::SYSTEM_NAMESPACE.into());
        index.put_placement(placement);
    };
    index.since = at(NOW);
    index.put_object(key(), deployment(2, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    assert_eq!(shares(&index).len(), 2);
    placement(&mut index, prefer_a());
    step(&mut index, NOW + 1);
    step(&mut index, NOW + 1);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 2)]));
    removed(&mut index, "b");
    step(&mut index, NOW + 1);
    // Full for a while: what came goes elsewhere, and comes back only when things have been calm.
    index.put_site(site("a", "0"), at(NOW));
    index.put_object(key(), deployment(3, 2));
    step(&mut index, NOW + 2);
    all_run(&mut index);
    assert_eq!(shares(&index)["b"], 1);
    index.put_site(site("a", "8"), at(NOW));
    for later in [3, 30] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
        assert_eq!(shares(&index)["b"], 1, "{later} s are too early");
    }
    all_heard(&mut index, NOW + 90);
    step(&mut index, NOW + 90);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3)]));
}

fn lost_with_at_most_once() -> Index {
    let mut spec = PlacementSpec::default();
    spec.failover.at_most_once = true;
    spec.failover.lease_seconds = Some(1);
    spec.prefer = prefer_a().prefer;
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
    index
}

#[test]
fn what_may_run_at_most_once_moves_when_its_lease_is_over() {
    let mut index = lost_with_at_most_once();
    // 30 s to stop and 10 more: a lease is never shorter, and the hub waits longer than the lease.
    for later in [41, 54] {
        index.heard("b", 0, at(NOW + later));
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]), "{later} s are too early");
    }
    index.heard("b", 0, at(NOW + 60));
    step(&mut index, NOW + 60);
    assert_eq!(shares(&index), BTreeMap::new(), "first the old place is told");
    step(&mut index, NOW + 61);
    assert_eq!(shares(&index), BTreeMap::from([("b".into(), 1)]));
}

#[test]
fn a_restored_hub_starts_nothing_that_may_run_at_most_once_before_it_has_stopped_everywhere() {
    let mut spec = PlacementSpec::default();
    spec.failover.at_most_once = true;
    let mut index = fleet(&["a"], spec);
    index.nothing_once_before = NOW + 55;
    index.put_object(key(), deployment(1, 1));
    for later in [0, 54] {
        index.heard("a", 0, at(NOW + later));
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::new(), "{later} s are too early");
    }
    index.heard("a", 0, at(NOW + 55));
    step(&mut index, NOW + 55);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
}

#[test]
fn a_hub_that_did_not_listen_gives_no_site_up() {
    let mut index = fleet(&["a", "b"], prefer_a());
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    index.nobody_lost_before = NOW + 120;
    for (later, at_site) in [(119, "a"), (121, "b")] {
        index.heard("b", 0, at(NOW + later));
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::from([(at_site.into(), 1)]), "{later} s later");
    }
}

#[test]
fn a_site_that_speaks_up_while_its_work_is_buried_is_not_taken_for_silent() {
    let mut index = lost_with_at_most_once();
    index.heard("b", 0, at(NOW + 60));
    step(&mut index, NOW + 60);
    assert_eq!(shares(&index), BTreeMap::new());
    // The answer to the tombstone has in it that the site is back and holds the workload under a new tie.
    let mut work = index.works_of(&key()).map(whole).next().expect("the buried Work");
    work.status.get_or_insert_default().tie = Some("new".into());
    work.metadata.resource_version = Some("100".into());
    index.put_work(work);
    index.note_news(at(NOW + 61));
    for later in 61..100 {
        index.heard("b", 0, at(NOW + later));
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::new(), "it may run at a");
    }
    removed(&mut index, "a");
    for _ in 0..3 {
        step(&mut index, NOW + 100);
    }
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1)]));
}

#[test]
fn a_clock_that_jumps_loses_no_site() {
    let mut index = fleet(&["a"], PlacementSpec::default());
    let jumped = crate::clock::Moment { steady: NOW + 10, wall: NOW + 100_000 };
    assert_eq!(index.silent("a", jumped.steady), None);
    index.heard("a", 0, jumped);
    // And back again: what was heard then is not in the future for long.
    assert_eq!(index.silent("a", NOW + 40), None);
    assert_eq!(index.silent("a", NOW + 60), Some(50));
    // Written by another replica, whose clock may be anything: what counts is that it wrote again.
    index.read_lease("a", "1", 0, at(NOW + 61));
    assert!(index.silent("a", NOW + 61).is_some(), "a lease that was there before is no sign of life");
    index.read_lease("a", "2", 3, at(NOW + 70));
    assert_eq!(index.silent("a", NOW + 106), None);
    assert_eq!(index.silent("a", NOW + 107), Some(40), "the lease is over");
    assert_eq!(index.silent("a", NOW + 108), Some(41));
    index.read_lease("a", "2", 3, at(NOW + 108));
    assert_eq!(index.silent("a", NOW + 108), Some(41), "the same version again is no news");
}

#[test]
fn the_hub_s_own_definitions_never_travel_and_the_status_of_others_stays_its_own() {
    let own = Key::new("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "sites.tombolo.dev");
    let other = Key::new("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "ships.sea.example.com");
    let all = tombolo_api::ObjectSelector { kind: Some(own.kind.clone()), ..Default::default() };
    let mut index = fleet(&["a"], PlacementSpec::default());
    let mut placement = Placement::new("all", PlacementSpec { objects: vec![all], ..Default::default() });
    placement.metadata.namespace = Some(names::SYSTEM_NAMESPACE.into());
    index.put_placement(placement);
    for key in [&own, &other] {
        let object = json!({"apiVersion": key.api_version, "kind": key.kind, "metadata": {"name": key.name, "uid": "u", "generation": 1}});
        index.put_object(key.clone(), Arc::new(object));
    }
    assert!(plan(&mut index, &own, NOW, "now").actions.is_empty());
    let actions = plan(&mut index, &other, NOW, "now").actions;
    assert!(matches!(&actions[..], [Action::CreateWork { .. }]), "{actions:?}");
    let Action::CreateWork { name, spec, .. } = &actions[0] else { unreachable!() };
    let mut work = Work::new(name, (**spec).clone());
    work.metadata.namespace = Some("site-a".into());
    let object = Some(json!({"conditions": [{"type": "Established", "status": "False"}]}));
    work.status = Some(tombolo_api::WorkStatus { object, ..Default::default() });
    index.put_work(work);
    let actions = plan(&mut index, &other, NOW, "now").actions;
    assert!(!actions.iter().any(|a| matches!(a, Action::PatchStatus { .. })), "{actions:?}");
}

#[test]
fn a_given_back_object_stays_at_its_site() {
    let mut index = fleet(&["a"], PlacementSpec::default());
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    let mut object = (*deployment(1, 2)).clone();
    object["metadata"]["annotations"] = json!({names::GIVE_BACK_ANNOTATION: "true"});
    index.put_object(key(), Arc::new(object));
    step(&mut index, NOW);
    assert!(index.works_of(&key()).all(|(_, w)| w.tombstone.as_ref().is_some_and(|t| t.keep)));
}

#[test]
fn pods_are_shown_once_and_disappear_with_their_report() {
    let mut index = fleet(&["a"], PlacementSpec::default());
    index.put_object(key(), deployment(1, 1));
    step(&mut index, NOW);
    let mut work = index.works_of(&key()).next().map(whole).expect("a Work");
    let pod = PodSummary {
        phase: "Running".into(),
        containers: vec!["c".into()],
        node: "n".into(),
        ..Default::default()
    };
    work.status =
        Some(tombolo_api::WorkStatus { pods: [("web-1".to_owned(), pod)].into(), ..Default::default() });
    work.metadata.resource_version = Some("50".into());
    index.put_work(work.clone());
    let actions = step(&mut index, NOW);
    let created = actions.iter().find_map(|a| {
        if let Action::CreatePod { pod, status } = a { Some((pod.clone(), status.clone())) } else { None }
    });
    let (mut pod, status) = created.expect("a mirror");
    assert_eq!(text(&pod, "/metadata/name"), "web-1.a");
    pod["status"] = status;
    index.put_mirror(&work_of_mirror(&pod).expect("its Work"), Arc::new(Mirror::new(&pod)));
    let quiet = step(&mut index, NOW);
    assert!(
        !quiet.iter().any(|a| matches!(a, Action::CreatePod { .. } | Action::PatchPod { .. })),
        "{quiet:?}"
    );
    work.status = Some(Default::default());
    work.metadata.resource_version = Some("51".into());
    index.put_work(work);
    assert!(
        step(&mut index, NOW)
            .iter()
            .any(|a| matches!(a, Action::DeletePod { name, .. } if name == "web-1.a"))
    );
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

#[test]
fn a_mirror_never_goes_back_to_an_older_state() {
    let mut index = Index::default();
    let pod = |uid: &str, version: u64, phase: &str| {
        let labels = json!({names::SITE_LABEL: "a", names::MIRROR_LABEL: "w"});
        let metadata = json!({"name": "p.a", "namespace": "shop", "uid": uid, "resourceVersion": version.to_string(), "labels": labels});
        Arc::new(Mirror::new(&json!({"metadata": metadata, "status": {"phase": phase}})))
    };
    let work = ("a".to_owned(), "w".to_owned());
    let phase =
        |index: &Index| index.mirrors_of(&work).expect("mirrors").pods["p.a"].status()["phase"].clone();
    index.put_mirror(&work, pod("1", 5, "Pending"));
    index.put_mirror(&work, pod("1", 7, "Running"));
    index.put_mirror(&work, pod("1", 6, "Pending"));
    assert_eq!(phase(&index), "Running");
    index.put_mirror(&work, pod("2", 6, "Pending"));
    assert_eq!(phase(&index), "Pending", "another pod of the same name");
}

fn once() -> (Key, Object) {
    let object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once", "namespace": "shop", "uid": "j1", "generation": 1},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    (Key::new("batch/v1", "Job", "shop", "once"), Arc::new(object))
}

/// What is told of an object, remembered as the API's side does.
fn told(index: &mut Index, key: &Key, root: &Value, now: i64) -> Vec<(bool, String)> {
    let actions = plan(index, key, now, "now").actions;
    carry_out(index, &actions);
    let tell = |action: Action| match action {
        Action::Tell { warning, brief, message, .. } => Some((warning, brief, message)),
        _ => None,
    };
    let told: Vec<_> = actions.into_iter().filter_map(tell).collect();
    for (warned, brief, _) in &told {
        match warned {
            true => drop(index.warned.insert(key.clone(), warning(root, brief))),
            false => drop(index.warned.remove(key)),
        }
    }
    told.into_iter().map(|(warning, _, message)| (warning, message)).collect()
}

#[test]
fn what_has_no_condition_for_it_says_once_that_nothing_places_it_and_once_that_something_does() {
    let (key, root) = once();
    let mut index = fleet(&["a"], PlacementSpec::default());
    let default = index.placements.values().next().cloned().expect("the default");
    index.drop_placement(names::SYSTEM_NAMESPACE, "default");
    index.put_object(key.clone(), root.clone());
    let first = told(&mut index, &key, &root, NOW);
    assert!(matches!(&first[..], [(true, why)] if why.contains("create a Placement")), "{first:?}");
    assert!(told(&mut index, &key, &root, NOW + 1).is_empty(), "told twice");
    index.put_placement(default);
    let then = told(&mut index, &key, &root, NOW + 2);
    let whole =
        |text: &str| text.starts_with("1 of 1 replicas placed: a 1.\nSITE") && text.contains("chosen");
    assert!(matches!(&then[..], [(false, text)] if whole(text)), "{then:?}");
    assert!(told(&mut index, &key, &root, NOW + 3).is_empty(), "what is well is told to nobody");
}

#[test]
fn what_is_placed_without_trouble_costs_no_event_where_nothing_remembers_it() {
    let (key, root) = once();
    let mut index = fleet(&["a"], PlacementSpec::default());
    index.put_object(key.clone(), root.clone());
    assert!(told(&mut index, &key, &root, NOW).is_empty());
}

#[test]
fn a_refusal_shows_at_the_hub_whatever_the_kind() {
    let (key, root) = once();
    let mut index = fleet(&["a"], PlacementSpec::default());
    index.put_object(key.clone(), root.clone());
    told(&mut index, &key, &root, NOW);
    let mut work = index.works_of(&key).next().map(whole).expect("a Work");
    let no = Condition {
        r#type: "Applied".into(),
        status: "False".into(),
        reason: "Forbidden".into(),
        ..Default::default()
    };
    work.status = Some(tombolo_api::WorkStatus { conditions: vec![no], ..Default::default() });
    work.metadata.resource_version = Some("9".into());
    index.put_work(work);
    let refused = told(&mut index, &key, &root, NOW);
    assert!(matches!(&refused[..], [(true, why)] if why.contains("a refuses it")), "{refused:?}");
    assert!(told(&mut index, &key, &root, NOW + 1).is_empty(), "told twice");
}

#[test]
fn an_object_that_shows_the_word_of_a_silent_site_says_since_when() {
    let (key, _) = once();
    let key = Key { kind: "CronJob".into(), ..key };
    let root = |stale: Option<&str>, version: i64| {
        let notes = json!({names::STALE_ANNOTATION: stale});
        Arc::new(
            json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "once", "namespace": "shop", "uid": "j1",
            "generation": 1, "resourceVersion": version.to_string(), "annotations": notes}, "status": {"lastScheduleTime": "t"}}),
        )
    };
    let marks = |index: &mut Index, now: i64| -> Vec<Option<String>> {
        let plan = plan(index, &key, now, "now");
        carry_out(index, &plan.actions);
        let mark = |action: &Action| match action {
            Action::MarkStale { since, .. } => Some(since.clone()),
            _ => None,
        };
        plan.actions.iter().filter_map(mark).collect()
    };
    let mut index = fleet(&["a"], PlacementSpec::default());
    index.put_object(key.clone(), root(None, 1));
    marks(&mut index, NOW);
    let mut work = index.works_of(&key).next().map(whole).expect("a Work");
    let object = Some(json!({"lastScheduleTime": "t"}));
    work.status = Some(tombolo_api::WorkStatus { object, ..Default::default() });
    work.metadata.resource_version = Some("9".into());
    index.put_work(work);
    assert!(marks(&mut index, NOW + 1).is_empty(), "it is heard");
    let since = crate::time_text(NOW);
    assert_eq!(marks(&mut index, NOW + 50), [Some(since.clone())]);
    index.put_object(key.clone(), root(Some(&since), 2));
    assert!(marks(&mut index, NOW + 51).is_empty(), "once");
    index.heard("a", 0, at(NOW + 52));
    assert_eq!(marks(&mut index, NOW + 52), [None]);
}

#[test]
fn with_a_bound_on_moves_the_next_replica_leaves_a_lost_site_when_the_last_one_is_up() {
    let spec = PlacementSpec {
        prefer: vec![tombolo_api::SiteSelector { names: vec!["a".into()], ..Default::default() }],
        failover: tombolo_api::Failover { wait_seconds: Some(1), max_at_once: Some(1), ..Default::default() },
        ..Default::default()
    };
    let mut index = fleet(&["a", "b"], spec);
    index.put_object(key(), deployment(3, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    assert_eq!(shares(&index), [("a".to_owned(), 3)].into());
    let at_b = |index: &Index| shares(index).get("b").copied().unwrap_or(0);
    for moved in 1..=3 {
        let now = NOW + 100 * moved;
        index.heard("b", 0, at(now));
        step(&mut index, now);
        assert_eq!(at_b(&index), moved);
        step(&mut index, now + 1);
        assert_eq!(at_b(&index), moved, "the one that moved is not up yet");
        all_run(&mut index);
    }
}
