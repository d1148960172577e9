use super::*;
use proptest::prelude::*;

fn root(generation: i64, replicas: i64) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w", "generation": generation}, "spec": {"replicas": replicas}})
}

fn word(site: &str, generation: i64, replicas: i64, ready: i64) -> Word {
    let available = if ready >= replicas { "True" } else { "False" };
    Word {
        site: site.into(),
        silent: None,
        sent: generation,
        root_generation: generation,
        site_generation: 7,
        object: Some(
            json!({"observedGeneration": 7, "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": ready,
                "availableReplicas": ready, "conditions": [{"type": "Available", "status": available, "reason": "R", "message": format!("{ready} of {replicas}"),
                "lastTransitionTime": "t", "lastUpdateTime": "t"}]}),
        ),
    }
}

fn available(status: &Value) -> (&str, &str) {
    let condition = &status["conditions"][0];
    (text(condition, "/status"), text(condition, "/message"))
}

#[test]
fn counts_are_sums_and_the_worst_site_decides_a_condition_by_name() {
    let status = merge(&root(3, 5), &[word("a", 3, 3, 3), word("b", 3, 2, 1)], "now").expect("heard");
    assert_eq!(
        (&status["replicas"], &status["readyReplicas"], &status["unavailableReplicas"]),
        (&json!(5), &json!(4), &json!(1))
    );
    assert_eq!(available(&status), ("False", "b: 1 of 2"));
    assert_eq!(status["observedGeneration"], 3);
}

#[test]
fn a_generation_is_observed_only_when_every_site_has_it() {
    let mut behind = word("b", 2, 2, 2);
    assert_eq!(
        merge(&root(3, 4), &[word("a", 3, 2, 2), behind.clone()], "now").expect("heard")["observedGeneration"],
        2
    );
    behind.root_generation = 3;
    behind.sent = 3;
    behind.site_generation = 8;
    assert_eq!(
        merge(&root(3, 4), &[word("a", 3, 2, 2), behind], "now").expect("heard")["observedGeneration"],
        2,
        "applied, not yet observed"
    );
    let unheard = Word { site: "c".into(), sent: 3, ..Default::default() };
    let status = merge(&root(3, 4), &[word("a", 3, 2, 2), unheard], "now").expect("heard");
    assert_eq!(status.get("observedGeneration"), None);
}

#[test]
fn a_silent_site_is_unknown_not_ready_and_not_gone() {
    let mut silent = word("b", 3, 2, 2);
    silent.silent = Some("T".into());
    let status = merge(&root(3, 4), &[word("a", 3, 2, 2), silent], "now").expect("heard");
    assert_eq!(
        (&status["replicas"], &status["readyReplicas"], &status["availableReplicas"]),
        (&json!(4), &json!(2), &json!(2))
    );
    assert_eq!(available(&status), ("Unknown", "b: not heard since T"));
    assert_eq!(status["observedGeneration"], 2);
}

#[test]
fn a_condition_that_stays_keeps_its_time() {
    let mut root = root(3, 3);
    let first = merge(&root, &[word("a", 3, 3, 3)], "1").expect("heard");
    root["status"] = first.clone();
    assert_eq!(merge(&root, &[word("a", 3, 3, 3)], "2").expect("heard"), first);
}

#[test]
fn a_rolling_stateful_set_at_one_site_is_rolling_at_the_hub() {
    let root = json!({"kind": "StatefulSet", "metadata": {"generation": 1}});
    let at = |current: &str| Word {
        object: Some(json!({"replicas": 1, "currentRevision": current, "updateRevision": "w-2"})),
        ..Default::default()
    };
    let done = merge(&root, &[at("w-2"), at("w-2")], "now").expect("heard");
    assert_eq!(done["currentRevision"], done["updateRevision"]);
    let rolling = merge(&root, &[at("w-2"), at("w-1")], "now").expect("heard");
    assert_ne!(rolling["currentRevision"], rolling["updateRevision"]);
}

#[test]
fn a_custom_resource_at_one_site_has_that_site_s_status() {
    let root = json!({"kind": "Postgres", "metadata": {"generation": 1}});
    let word = Word { object: Some(json!({"phase": "Up"})), ..Default::default() };
    assert_eq!(merge(&root, &[word], "now"), Some(json!({"phase": "Up"})));
    assert_eq!(merge(&root, &[Word::default()], "now"), None);
}

#[test]
fn what_nothing_places_says_so_in_its_status() {
    let status =
        with_condition(None, &root(1, 1), "False", "NoPlacement", "create one", "now").expect("a Deployment");
    assert_eq!(status["conditions"][0]["type"], "Placed");
    assert_eq!(with_condition(None, &json!({"kind": "CronJob"}), "False", "r", "m", "now"), None);
}

#[test]
fn the_word_of_a_silent_site_is_marked_where_counts_and_conditions_do_not_say_it() {
    let word = |silent: Option<&str>| Word {
        object: Some(json!({"phase": "Running"})),
        silent: silent.map(str::to_owned),
        ..Default::default()
    };
    assert_eq!(stale_since("Postgres", &[word(None)]), None);
    assert_eq!(stale_since("CronJob", &[word(Some("T2")), word(Some("T1"))]), Some("T1"));
    assert_eq!(stale_since("Job", &[word(None), word(Some("T1"))]), Some("T1"));
    assert_eq!(stale_since("Deployment", &[word(Some("T1"))]), None);
    let unheard = Word { silent: Some("T1".into()), ..Default::default() };
    assert_eq!(stale_since("CronJob", &[unheard]), None, "nothing of it is shown");
    let pod = json!({"kind": "Pod", "metadata": {}});
    let status = merge(&pod, &[word(Some("T1"))], "now").expect("spoken");
    assert_eq!((text(&status, "/reason"), text(&status, "/phase")), ("SiteSilent", "Running"));
    assert_eq!(merge(&pod, &[word(None)], "now").expect("spoken").get("reason"), None);
}

proptest! {
    /// Status is never better than the truth.
    #[test]
    fn ready_is_never_more_than_what_heard_sites_said(parts in prop::collection::vec((0i64..5, 0i64..5, any::<bool>()), 1..6)) {
        let words: Vec<Word> = parts.iter().enumerate().map(|(n, (replicas, ready, silent))| {
            let mut word = word(&format!("s{n}"), 3, *replicas, (*ready).min(*replicas));
            word.silent = silent.then(|| "T".to_owned());
            word
        }).collect();
        let status = merge(&root(3, 10), &words, "now").expect("heard");
        let heard: i64 = parts.iter().filter(|p| !p.2).map(|p| p.1.min(p.0)).sum();
        let ready = status.get("readyReplicas").and_then(Value::as_i64).unwrap_or(0);
        prop_assert_eq!(ready, heard);
        let any_silent = parts.iter().any(|p| p.2);
        prop_assert_eq!(status["observedGeneration"] == json!(3), !any_silent);
        if any_silent {
            prop_assert_ne!(available(&status).0, "True");
        }
    }
}

#[test]
fn a_job_at_a_silent_site_is_not_known_to_be_ready() {
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "haul", "generation": 1}});
    let said = json!({"active": 1, "ready": 1, "startTime": "t"});
    let word = |silent: Option<&str>| Word {
        site: "a".into(),
        silent: silent.map(str::to_owned),
        object: Some(said.clone()),
        ..Default::default()
    };
    assert_eq!(merge(&job, &[word(None)], "now"), Some(said.clone()));
    let unknown = merge(&job, &[word(Some("T1"))], "now").expect("what it last said");
    assert_eq!(unknown, json!({"active": 1, "startTime": "t"}));
}
