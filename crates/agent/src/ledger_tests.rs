use super::*;
use std::time::Duration;

use serde_json::json;

use crate::difference::apply;
use crate::rush::PATIENCE;
use crate::told::{FLIGHTS, REST};

fn work(name: &str, uid: &str, generation: i64) -> Work {
    let object =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "d"}});
    let mut work = Work::new(name, WorkSpec { object, ..Default::default() });
    work.spec.root.generation = generation * 10;
    work.metadata.uid = Some(uid.into());
    work.metadata.generation = Some(generation);
    work
}

fn shown(status: Value) -> Root {
    Root { generation: 1, status: Some(status), selects: None }
}

fn pod(ready: bool) -> PodSummary {
    PodSummary { ready, ..Default::default() }
}

/// All that there is to report, each time as if every Work had rested.
fn reports(ledger: &mut Ledger) -> Vec<Report> {
    let rests = u32::try_from(ledger.serial).expect("few reports");
    ledger.reports(10, Instant::now() + REST * rests, false)
}

#[test]
fn a_report_that_echoes_back_is_no_news_and_a_new_generation_is() {
    let mut ledger = Ledger::default();
    let at = |revision: u64, uid: &str, generation: i64| {
        let mut work = work("a", uid, generation);
        work.metadata.resource_version = Some(revision.to_string());
        work
    };
    assert!(ledger.put(&at(10, "1", 1)));
    assert!(!ledger.put(&at(11, "1", 1)));
    assert!(ledger.follow(&at(12, "1", 2)));
    assert!(!ledger.follow(&at(10, "1", 1)), "an older one came late");
    assert!(ledger.follow(&at(13, "2", 1)), "the same name, another Work");
}

#[test]
fn what_a_restored_hub_wants_counts_although_it_is_older_and_it_is_told_what_it_forgot() {
    let mut ledger = Ledger::default();
    let scaled = |generation: i64, replicas: i64| {
        let mut work = work("a", "1", generation);
        work.spec.object["spec"] = json!({"replicas": replicas});
        work
    };
    ledger.put(&scaled(2, 1));
    ledger.see_pod("a", "p", Some(pod(true)));
    let report = reports(&mut ledger).pop().expect("a report");
    ledger.landed("a", report.id, 5);
    assert!(reports(&mut ledger).is_empty());
    ledger.doubt_all();
    assert!(
        ledger.recalls_any() && reports(&mut ledger).is_empty(),
        "nothing is told before the hub has spoken"
    );
    assert!(ledger.put(&scaled(1, 4)), "yesterday's");
    assert_eq!(ledger.get("a").expect("known").spec.object["spec"]["replicas"], 4);
    assert_eq!(reports(&mut ledger).pop().expect("a report").patch["status"]["pods"]["p"]["ready"], true);
    ledger.applied("a", "1", 1, Outcome::default(), "t");
    assert!(ledger.is_applied("a"));
    assert!(ledger.put(&scaled(1, 3)), "another intent with a number that is known");
    assert!(!ledger.is_applied("a"));
    assert!(!ledger.put(&scaled(1, 3)));
}

#[test]
fn what_is_recalled_is_reported_only_when_it_is_known_what_the_hub_shows() {
    let mut ledger = Ledger::default();
    ledger.recall(&work("a", "1", 2));
    assert!(ledger.recalls_any());
    ledger.see_pod("a", "new", Some(pod(true)));
    assert!(reports(&mut ledger).is_empty(), "the hub may show pods that are long gone");
    let mut shown = work("a", "1", 2);
    shown.status.get_or_insert_default().pods.insert("old".into(), pod(true));
    assert!(!ledger.put(&shown), "the same intent is no news");
    let report = reports(&mut ledger).pop().expect("a report");
    assert!(report.patch["status"]["pods"]["old"].is_null(), "{}", report.patch);
    assert_eq!(report.patch["status"]["pods"]["new"]["ready"], true);
    assert!(!ledger.recalls_any());
}

#[test]
fn a_workload_that_may_run_at_most_once_is_held_when_the_hub_knows_it() {
    let mut ledger = Ledger::default();
    let mut once = work("a", "1", 1);
    once.spec.lease = Some(Default::default());
    ledger.put(&once);
    ledger.put(&work("b", "2", 1));
    ledger.hold("t1");
    assert!(!ledger.held("t1"));
    let report = reports(&mut ledger).pop().expect("a report");
    assert_eq!((report.work.as_str(), &report.patch["status"]["tie"]), ("a", &json!("t1")));
    assert!(!ledger.held("t1"), "sent is not known");
    ledger.landed("a", report.id, 5);
    assert!(ledger.held("t1"));
    ledger.hold("t2");
    assert!(!ledger.held("t2"), "another tie is another word");
}

#[test]
fn a_change_does_not_wait_for_the_answer_to_an_earlier_report() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    ledger.see_pod("a", "p1", Some(pod(false)));
    let first = reports(&mut ledger).pop().expect("one");
    assert_eq!(first.patch["status"]["pods"]["p1"]["ready"], false);
    ledger.see_pod("a", "p1", Some(pod(true)));
    ledger.see_pod("a", "p2", Some(pod(true)));
    let second = reports(&mut ledger).pop().expect("the rest");
    assert_eq!(second.patch["status"]["pods"]["p1"], json!({"ready": true}));
    assert_eq!(second.patch["status"]["pods"]["p2"]["ready"], true);
    ledger.landed("a", first.id, 7);
    ledger.landed("a", second.id, 8);
    assert!(reports(&mut ledger).is_empty());
}

#[test]
fn reports_that_arrived_in_another_order_are_put_right() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    ledger.see_pod("a", "p", Some(pod(false)));
    let first = reports(&mut ledger).pop().expect("one");
    ledger.see_pod("a", "p", Some(pod(true)));
    let second = reports(&mut ledger).pop().expect("another");
    // The hub took the second before the first, and now shows the pod as not ready.
    ledger.landed("a", second.id, 7);
    ledger.landed("a", first.id, 8);
    let third = reports(&mut ledger).pop().expect("the correction");
    assert_eq!(third.patch, json!({"status": {"pods": {"p": {"ready": true}}}}));
    ledger.landed("a", third.id, 9);
    assert!(reports(&mut ledger).is_empty());
}

#[test]
fn many_changes_of_one_work_travel_together_once_enough_are_under_way() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    let mut flights = Vec::new();
    for n in 0..3 * FLIGHTS {
        ledger.see_pod("a", &format!("p{n}"), Some(pod(true)));
        flights.extend(reports(&mut ledger));
    }
    assert_eq!(flights.len(), FLIGHTS);
    for (n, flight) in flights.iter().enumerate() {
        ledger.landed("a", flight.id, n as u64);
    }
    let rest = reports(&mut ledger).pop().expect("the rest");
    assert_eq!(rest.patch["status"]["pods"].as_object().map(serde_json::Map::len), Some(2 * FLIGHTS));
}

#[test]
fn after_a_cut_a_report_that_may_be_lost_is_made_good_whether_or_not_it_arrived() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    ledger.see_pod("a", "gone", Some(pod(true)));
    ledger.see_pod("a", "stays", Some(pod(true)));
    let lost = reports(&mut ledger).pop().expect("one");
    ledger.see_pod("a", "gone", None);
    ledger.reconnected();
    let again = reports(&mut ledger).pop().expect("again");
    for arrived in [false, true] {
        let mut hub = json!({});
        if arrived {
            apply(&mut hub, &lost.patch);
        }
        apply(&mut hub, &again.patch);
        assert_eq!(hub["status"]["pods"].get("gone"), None, "arrived: {arrived}");
        assert_eq!(hub["status"]["pods"]["stays"]["ready"], true);
    }
    ledger.landed("a", again.id, 3);
    assert!(reports(&mut ledger).is_empty());
}

#[test]
fn a_refusal_says_why_and_does_not_claim_the_generation() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 3));
    let refused = Outcome { refused: Some(("Forbidden".into(), "not here".into())), ..Default::default() };
    ledger.applied("a", "1", 3, refused, "t");
    let status = &ledger.get("a").expect("known").status;
    assert_eq!(
        (status.conditions[0].status.as_str(), status.conditions[0].message.as_str()),
        ("False", "not here")
    );
    assert_eq!((status.root_generation, status.observed_generation), (0, 3));
    ledger.applied(
        "a",
        "1",
        3,
        Outcome { root: Root { generation: 5, ..Default::default() }, ..Default::default() },
        "t",
    );
    let status = &ledger.get("a").expect("known").status;
    assert_eq!((status.root_generation, status.site_generation), (30, 5));
}

/// A Work that takes over what selects pods with `app: x`.
fn taking_over(generation: i64) -> Work {
    let mut work = work("a", "1", generation);
    work.spec.adopt = true;
    work.spec.hub.id = "h".into();
    work.spec.root.namespace = "d".into();
    work.spec.object["spec"] = json!({"selector": {"matchLabels": {"app": "x"}}});
    work
}

/// The root as a site has it that let the Work take it over.
fn selecting(app: &str) -> Root {
    let data = json!({"spec": {"selector": {"matchLabels": {"app": app}}}});
    Root { generation: 1, status: None, selects: Selects::of("d", &data) }
}

fn refused() -> Outcome {
    Outcome { refused: Some(("Forbidden".into(), "not here".into())), ..Default::default() }
}

fn labels(app: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), app.to_owned()), ("more".to_owned(), "1".to_owned())])
}

fn born_of(ledger: &Ledger, namespace: &str, labels: &BTreeMap<String, String>) -> String {
    ledger.work_of_pod(namespace, labels).unwrap_or_default()
}

#[test]
fn pods_of_what_was_taken_over_are_found_by_its_selector() {
    let mut ledger = Ledger::default();
    let mut taken = taking_over(1);
    taken.spec.adopt = false;
    ledger.put(&taken);
    assert_eq!(born_of(&ledger, "d", &labels("x")), "", "it was not taken over");
    ledger.put(&taking_over(2));
    ledger.applied("a", "1", 2, refused(), "t");
    assert_eq!(born_of(&ledger, "d", &labels("x")), "", "the site did not let it");
    ledger.applied("a", "1", 2, Outcome { root: selecting("x"), ..Default::default() }, "t");
    assert_eq!(born_of(&ledger, "d", &labels("x")), "a");
    assert_eq!(born_of(&ledger, "e", &labels("x")), "");
    assert_eq!(born_of(&ledger, "d", &labels("y")), "");
    // A label of the Work that made them before says nothing, unless that Work is still spoken of.
    let mut labelled = labels("x");
    labelled.insert(names::WORK_LABEL.into(), "b".into());
    assert_eq!(born_of(&ledger, "d", &labelled), "a");
    ledger.put(&work("b", "2", 1));
    assert_eq!(born_of(&ledger, "d", &labelled), "b");
}

#[test]
fn a_hub_that_lies_about_what_it_took_over_sees_no_pods() {
    let mut ledger = Ledger::default();
    let mut lie = taking_over(1);
    lie.status.get_or_insert_default().root_generation = 9;
    ledger.put(&lie);
    assert_eq!(born_of(&ledger, "d", &labels("x")), "", "only the hub says that it was applied");
    ledger.applied("a", "1", 1, refused(), "t");
    assert_eq!(born_of(&ledger, "d", &labels("x")), "");
    // What it may take over does not open another namespace, nor other pods than the site says.
    ledger.applied("a", "1", 1, Outcome { root: selecting("x"), ..Default::default() }, "t");
    let mut elsewhere = taking_over(2);
    elsewhere.spec.root.namespace = "secret".into();
    elsewhere.spec.object["spec"] = json!({"selector": {"matchLabels": {"app": "y"}}});
    ledger.put(&elsewhere);
    ledger.applied("a", "1", 2, refused(), "t");
    for namespace in ["d", "secret"] {
        assert_eq!(born_of(&ledger, namespace, &labels("y")), "", "{namespace}");
    }
    assert_eq!(born_of(&ledger, "d", &labels("x")), "a", "it was taken over all the same");
    elsewhere.spec.object["metadata"]["namespace"] = json!("secret");
    elsewhere.metadata.generation = Some(3);
    ledger.put(&elsewhere);
    for (namespace, app) in [("d", "x"), ("d", "y"), ("secret", "x"), ("secret", "y")] {
        assert_eq!(born_of(&ledger, namespace, &labels(app)), "", "{namespace} {app}");
    }
}

#[tokio::test]
async fn after_a_restart_the_pods_of_what_was_taken_over_are_counted_when_it_is_seen() {
    let mut ledger = Ledger::default();
    ledger.recall(&taking_over(1));
    let key = Key::of(&taking_over(1).spec.object).expect("a key");
    let owners = |work: &str| {
        let owner = Owner { hub: "h".into(), work: work.into(), uid: "1".into() };
        Owners::of(Some(&[(owner.key(), owner.value())].into()))
    };
    let recount = ledger.recount.clone();
    let recounted = || tokio::time::timeout(Duration::from_millis(20), recount.notified());
    ledger.see_object(&key, &owners("b"), selecting("x"));
    assert_eq!(born_of(&ledger, "d", &labels("x")), "", "it is another Work's");
    assert!(recounted().await.is_err());
    ledger.see_object(&key, &owners("a"), selecting("x"));
    assert_eq!(born_of(&ledger, "d", &labels("x")), "a");
    assert!(recounted().await.is_ok(), "pods may have been listed before");
    ledger.applied("a", "1", 1, Outcome { root: selecting("x"), ..Default::default() }, "t");
    assert!(recounted().await.is_err(), "nothing new");
    ledger.miss_object(&key);
    assert_eq!(born_of(&ledger, "d", &labels("x")), "a", "its pods stay for a moment");
}

#[test]
fn an_object_of_an_earlier_work_does_not_speak_for_the_one_that_wants_its_name() {
    let mut ledger = Ledger::default();
    let mut wanted = work("deployment-web-2", "2", 1);
    wanted.spec.hub.id = "h".into();
    ledger.put(&wanted);
    let key = Key::of(&wanted.spec.object).expect("a key");
    let owners = |owners: &[(&str, &str)]| {
        let owner =
            |(hub, work): &(&str, &str)| Owner { hub: (*hub).into(), work: (*work).into(), uid: "1".into() };
        Owners::of(Some(&owners.iter().map(owner).map(|o| (o.key(), o.value())).collect()))
    };
    let seen = || shown(json!({"replicas": 2}));
    let shown = |ledger: &Ledger| ledger.get("deployment-web-2").and_then(|e| e.status.object.clone());
    for others in [&[][..], &[("h", "deployment-web-1")], &[("other", "deployment-web-2")]] {
        assert!(ledger.see_object(&key, &owners(others), seen()));
        assert_eq!(shown(&ledger), None, "{others:?}");
    }
    // Of a Work that a restored hub made anew the object is still the same.
    ledger.see_object(&key, &owners(&[("h", "deployment-web-1"), ("h", "deployment-web-2")]), seen());
    assert_eq!(shown(&ledger), seen().status);
    ledger.see_object(&key, &owners(&[("h", "deployment-web-1")]), seen());
    assert_eq!(shown(&ledger), None, "somebody put the earlier one back");
    ledger.see_object(&key, &owners(&[("h", "deployment-web-2")]), seen());
    assert!(ledger.miss_object(&key));
    assert_eq!(shown(&ledger), None);
}

#[test]
fn a_work_that_is_absent_is_forgotten_and_nothing_else() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    ledger.forget("a");
    assert!(ledger.get("a").is_none());
    assert!(reports(&mut ledger).is_empty());
    ledger.see_pod("a", "p", Some(pod(true)));
    assert!(reports(&mut ledger).is_empty());
}

#[test]
fn changes_close_to_each_other_travel_together() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    let start = Instant::now();
    ledger.see_root("a", Some(shown(json!({"replicas": 1}))));
    assert_eq!(ledger.reports(10, start, false).len(), 1, "the first goes at once");
    ledger.see_root("a", Some(shown(json!({"replicas": 2}))));
    ledger.see_root("a", Some(shown(json!({"replicas": 3}))));
    assert!(ledger.reports(10, start + REST / 2, false).is_empty());
    assert!(ledger.resting(start + REST / 2));
    let then = ledger.reports(10, start + REST, false);
    assert_eq!(then.len(), 1);
    assert_eq!(then[0].patch["status"]["object"]["replicas"], 3);
    assert!(!ledger.resting(start + REST));
}

#[test]
fn what_an_overloaded_hub_did_not_take_is_said_again() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    ledger.see_pod("a", "p", Some(pod(false)));
    let refused = reports(&mut ledger).pop().expect("one");
    ledger.see_pod("a", "p", Some(pod(true)));
    let taken = reports(&mut ledger).pop().expect("the change");
    ledger.unknown("a");
    ledger.landed("a", taken.id, 7);
    ledger.landed("a", refused.id, 0);
    let all = reports(&mut ledger).pop().expect("everything");
    assert_eq!(all.patch["status"]["pods"]["p"]["ready"], true);
    ledger.landed("a", all.id, 8);
    assert!(reports(&mut ledger).is_empty());
}

#[test]
fn in_a_rush_of_works_reports_gather() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    let start = Instant::now();
    ledger.see_root("a", Some(shown(json!({"replicas": 1}))));
    assert!(ledger.reports(10, start, true).is_empty());
    assert!(ledger.resting(start));
    ledger.see_root("a", Some(shown(json!({"replicas": 2}))));
    assert!(ledger.reports(10, start + PATIENCE / 2, true).is_empty());
    let then = ledger.reports(10, start + PATIENCE, true);
    assert_eq!(then.len(), 1, "but not without end");
    assert_eq!(then[0].patch["status"]["object"]["replicas"], 2);
}

#[tokio::test]
async fn whoever_renews_leases_is_woken_by_a_work_that_needs_one() {
    let mut ledger = Ledger::default();
    let wanted = ledger.lease_wanted.clone();
    let woken = || tokio::time::timeout(std::time::Duration::from_millis(20), wanted.notified());
    ledger.put(&work("a", "1", 1));
    assert!(woken().await.is_err(), "it needs none");
    let mut once = work("b", "2", 1);
    once.spec.lease = Some(Default::default());
    ledger.put(&once);
    assert!(woken().await.is_ok());
}

#[test]
fn what_a_tombstone_left_nothing_of_is_not_looked_for_again_until_the_hub_wants_something_else() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    let spec = |ledger: &Ledger| ledger.get("a").expect("known").spec.clone();
    let first = spec(&ledger);
    ledger.emptied("a", &first, Removed::Gone);
    assert_eq!(ledger.how_emptied("a"), Some(Removed::Gone));
    ledger.put(&work("a", "1", 1));
    assert_eq!(ledger.how_emptied("a"), Some(Removed::Gone), "an echo");
    ledger.put(&work("a", "1", 2));
    assert_eq!(ledger.how_emptied("a"), None);
    ledger.emptied("a", &first, Removed::Gone);
    assert_eq!(ledger.how_emptied("a"), None, "what was done for an earlier wish");
    ledger.emptied("a", &spec(&ledger), Removed::Kept("others".into()));
    ledger.put(&work("a", "2", 2));
    assert_eq!(ledger.how_emptied("a"), None, "the same name, another Work");
}

#[test]
fn what_was_first_said_of_a_removal_stands_until_the_hub_wants_something_else() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    let said = |ledger: &Ledger| ledger.get("a").expect("known").status.conditions[0].message.clone();
    ledger.removed("a", "1", 1, "Namespace/shop stays", "t");
    ledger.removed("a", "1", 1, "deleted at the hub", "t");
    assert_eq!(said(&ledger), "Namespace/shop stays");
    ledger.put(&work("a", "1", 2));
    ledger.removed("a", "1", 2, "placed elsewhere", "t");
    assert_eq!(said(&ledger), "placed elsewhere");
}
