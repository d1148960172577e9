//! What runs stays where it runs, whatever waits beside it.

use super::*;

/// The site took note of the Work, and said so; its controllers have done nothing about it yet.
fn answers(index: &mut Index, site: &str, applied: bool) {
    let mut work = index.works_of(&key()).find(|(s, _)| *s == site).map(whole).expect("a Work");
    let status = work.status.get_or_insert_default();
    status.observed_generation = work.metadata.generation.unwrap_or(0);
    let applied = if applied { "True" } else { "False" };
    status.conditions =
        vec![Condition { r#type: "Applied".into(), status: applied.into(), ..Default::default() }];
    index.put_work(written(work));
}

#[test]
fn what_runs_stays_while_the_site_has_yet_to_let_go_of_what_was_stuck() {
    let mut index = fleet(&["a", "b"], prefer_a());
    index.put_object(key(), deployment(2, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    stuck(&mut index, "a", 1);
    // From the eleventh second on, what a says is older than what it was told.
    for later in [0, 10, 11, 12, 19, 25, 60] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
    }
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1), ("b".into(), 1)]));
    all_run(&mut index);
    for later in [61, 100] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
        assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1), ("b".into(), 1)]), "{later}: it flaps");
    }
}

#[test]
fn what_runs_stays_while_a_site_is_slow_or_refuses_to_let_go_of_what_was_stuck() {
    for applied in [true, false] {
        let mut index = fleet(&["a", "b"], prefer_a());
        index.put_object(key(), deployment(2, 1));
        step(&mut index, NOW);
        all_run(&mut index);
        stuck(&mut index, "a", 1);
        for later in [0, 10, 11, 12, 22, 23, 33, 60] {
            all_heard(&mut index, NOW + later);
            step(&mut index, NOW + later);
            if later >= 10 {
                answers(&mut index, "a", applied);
                assert_eq!(shares(&index), BTreeMap::from([("a".into(), 1), ("b".into(), 1)]), "{later}");
            }
        }
    }
}

/// A rollout at `site` is at this point: so many run the old version, so many of the new one wait.
fn rolls_out(index: &mut Index, site: &str, old: i64, new: i64) {
    let mut work = index.works_of(&key()).find(|(s, _)| *s == site).map(whole).expect("a Work");
    let status = work.status.get_or_insert_default();
    let runs = PodSummary { phase: "Running".into(), node: "n".into(), ready: true, ..Default::default() };
    let waits = PodSummary { phase: "Pending".into(), reason: "Unschedulable".into(), ..Default::default() };
    status.pods = (0..old).map(|n| (format!("web-old-{n}"), runs.clone())).collect();
    status.pods.extend((0..new).map(|n| (format!("web-new-{n}"), waits.clone())));
    status.object = Some(json!({"replicas": old + new, "updatedReplicas": new, "readyReplicas": old}));
    index.put_work(written(work));
}

#[test]
fn a_rollout_at_a_full_site_moves_nothing() {
    // With one more than there should be, and with one less besides.
    for (old, new) in [(4, 1), (3, 2), (1, 4)] {
        let mut index = fleet(&["a", "b"], prefer_a());
        index.put_object(key(), deployment(4, 1));
        step(&mut index, NOW);
        all_run(&mut index);
        rolls_out(&mut index, "a", old, new);
        for later in [0, 11, 30] {
            all_heard(&mut index, NOW + later);
            step(&mut index, NOW + later);
            assert_eq!(shares(&index), BTreeMap::from([("a".into(), 4)]), "{old} old, {later} s");
        }
        assert!(index.stuck.shunned(&key()).next().is_none(), "it has done nothing wrong");
    }
}

#[test]
fn a_rollout_that_gets_no_further_overflows() {
    let mut index = fleet(&["a", "b"], prefer_a());
    index.put_object(key(), deployment(4, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    rolls_out(&mut index, "a", 3, 2);
    let mut work = index.works_of(&key()).map(whole).next().expect("a Work");
    let status = work.status.get_or_insert_default();
    if let Some(object) = &mut status.object {
        object["conditions"] =
            json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]);
    }
    index.put_work(written(work));
    for later in [0, 10] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
    }
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3), ("b".into(), 1)]));
}

/// The hub that leads from `now` on; all it knows is what is in the API.
fn next_leader(index: &Index, now: i64) -> Index {
    let mut next = fleet(&["a", "b"], prefer_a());
    next.since = at(now);
    all_heard(&mut next, now);
    for work in index.works_of(&key()).map(whole) {
        next.put_work(work);
    }
    next.put_object(key(), index.objects[&key()].clone());
    next
}

#[test]
fn a_new_leader_sends_nothing_back_to_a_site_that_could_not_schedule_it_before_the_site_has_rested() {
    let mut index = fleet(&["a", "b"], prefer_a());
    index.put_object(key(), deployment(3, 1));
    step(&mut index, NOW);
    all_run(&mut index);
    stuck(&mut index, "a", 2);
    for later in [0, 10] {
        all_heard(&mut index, NOW + later);
        step(&mut index, NOW + later);
    }
    all_run(&mut index);
    let overflowed = BTreeMap::from([("a".into(), 1), ("b".into(), 2)]);
    assert_eq!(shares(&index), overflowed);
    // One after the other: none of them remembers more than it finds.
    let mut start = NOW;
    for _ in 0..2 {
        start += 500;
        index = next_leader(&index, start);
        for later in [0, 61, 599] {
            all_heard(&mut index, start + later);
            step(&mut index, start + later);
            assert_eq!(shares(&index), overflowed, "{later} s after its start");
        }
    }
    assert_eq!(index.unsettled.get(&key()), Some(&(start + 600)), "nobody else would say when to look again");
    all_heard(&mut index, start + 600);
    for _ in 0..3 {
        step(&mut index, start + 600);
        all_run(&mut index);
    }
    assert_eq!(shares(&index)["a"], 3, "it is tried again in the end");
    assert_eq!(annotation(&index.objects[&key()], names::SHUNNED_ANNOTATION), "");
}

#[test]
fn what_is_written_on_an_object_that_is_made_later_shuns_no_site() {
    let mut index = fleet(&["a", "b"], prefer_a());
    let mut copied = (*deployment(3, 1)).clone();
    copied["metadata"]["annotations"] = json!({names::SHUNNED_ANNOTATION: "a"});
    index.put_object(key(), Arc::new(copied));
    step(&mut index, NOW);
    assert_eq!(shares(&index), BTreeMap::from([("a".into(), 3)]));
    assert_eq!(annotation(&index.objects[&key()], names::SHUNNED_ANNOTATION), "");
}
