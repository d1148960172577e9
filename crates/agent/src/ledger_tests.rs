use super::*;
use serde_json::json;

fn work(name: &str, uid: &str, generation: i64) -> Work {
    let object =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "d"}});
    let mut work = Work::new(name, WorkSpec { object, ..Default::default() });
    work.spec.root.generation = generation * 10;
    work.metadata.uid = Some(uid.into());
    work.metadata.generation = Some(generation);
    work
}

fn pod(ready: bool) -> PodSummary {
    PodSummary { ready, ..Default::default() }
}

#[test]
fn a_report_that_echoes_back_is_no_news_and_a_new_generation_is() {
    let mut ledger = Ledger::default();
    assert!(ledger.put(&work("a", "1", 1)));
    assert!(!ledger.put(&work("a", "1", 1)));
    assert!(ledger.put(&work("a", "1", 2)));
    assert!(!ledger.put(&work("a", "1", 1)), "an older one came late");
    assert!(ledger.put(&work("a", "2", 1)), "the same name, another Work");
}

#[test]
fn changes_during_a_report_travel_together_in_the_next_one() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    ledger.see_pod("a", "p1", Some(pod(false)));
    let first = ledger.reports(10).pop().expect("one");
    assert_eq!(first.patch["status"]["pods"]["p1"]["ready"], false);
    ledger.see_pod("a", "p1", Some(pod(true)));
    ledger.see_pod("a", "p2", Some(pod(true)));
    assert!(ledger.reports(10).is_empty(), "one is under way");
    ledger.acked("a", Some(first.sent));
    let second = ledger.reports(10).pop().expect("the rest");
    assert_eq!(second.patch["status"]["pods"]["p1"], json!({"ready": true}));
    assert_eq!(second.patch["status"]["pods"]["p2"]["ready"], true);
    ledger.acked("a", Some(second.sent));
    assert!(ledger.reports(10).is_empty());
}

#[test]
fn a_report_that_may_be_lost_is_sent_again() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    ledger.see_pod("a", "p", Some(pod(true)));
    let lost = ledger.reports(10).pop().expect("one");
    ledger.reconnected();
    assert_eq!(ledger.reports(10).pop().expect("again").patch, lost.patch);
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
    ledger.applied("a", "1", 3, Outcome { generation: 5, ..Default::default() }, "t");
    let status = &ledger.get("a").expect("known").status;
    assert_eq!((status.root_generation, status.site_generation), (30, 5));
}

#[test]
fn pods_of_what_was_taken_over_are_found_by_its_selector() {
    let mut ledger = Ledger::default();
    let mut taken = work("a", "1", 1);
    taken.spec.root.namespace = "d".into();
    taken.spec.object["spec"] = json!({"selector": {"matchLabels": {"app": "x"}}});
    let labels =
        |app: &str| BTreeMap::from([("app".to_owned(), app.to_owned()), ("more".to_owned(), "1".to_owned())]);
    ledger.put(&taken);
    assert_eq!(ledger.adopter("d", &labels("x")), None, "it was not taken over");
    taken.spec.adopt = true;
    taken.metadata.generation = Some(2);
    ledger.put(&taken);
    assert_eq!(ledger.adopter("d", &labels("x")).map(String::as_str), Some("a"));
    assert_eq!(ledger.adopter("e", &labels("x")), None);
    assert_eq!(ledger.adopter("d", &labels("y")), None);
}

#[test]
fn a_work_that_is_absent_is_forgotten_and_nothing_else() {
    let mut ledger = Ledger::default();
    ledger.put(&work("a", "1", 1));
    ledger.forget("a");
    assert!(ledger.get("a").is_none());
    assert!(ledger.reports(10).is_empty());
    ledger.see_pod("a", "p", Some(pod(true)));
    assert!(ledger.reports(10).is_empty());
}
