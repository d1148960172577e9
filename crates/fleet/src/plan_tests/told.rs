//! What the hub shows: status, mirrored pods, events.

use super::*;
use crate::kept::work_of_mirror;

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
fn what_a_site_never_applied_has_no_replicas_there_whatever_else_has_its_name() {
    let mut index = fleet(&["a"], PlacementSpec::default());
    index.put_object(key(), deployment(2, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    let shown = |index: &mut Index, applied: i64| {
        let mut work = index.works_of(&key()).next().map(whole).expect("a Work");
        let refused = Condition { r#type: "Applied".into(), status: "False".into(), ..Default::default() };
        let status = work.status.get_or_insert_default();
        (status.conditions, status.root_generation) = (vec![refused], applied);
        index.put_work(written(work));
        let actions = plan(index, &key(), NOW, "now").actions;
        let patch = actions.iter().find_map(|action| match action {
            Action::PatchStatus { patch, .. } => Some(patch["status"].clone()),
            _ => None,
        });
        patch.expect("a status")
    };
    let status = shown(&mut index, 0);
    assert_eq!((&status["replicas"], status.get("readyReplicas")), (&json!(0), None), "{status}");
    assert_eq!(status["conditions"][0]["reason"], "Refused");
    assert_eq!(shown(&mut index, 1)["readyReplicas"], 2, "an earlier generation runs on");
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
            Action::Mark { annotation: names::STALE_ANNOTATION, value, .. } => Some(value.clone()),
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
