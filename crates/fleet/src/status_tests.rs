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

/// What a site that is heard says of an object that is duplicated.
fn says(site: &str, object: Value) -> Word {
    Word { site: site.into(), object: Some(object), ..Default::default() }
}

fn with(condition: &str, value: &str) -> Value {
    json!({"conditions": [{"type": condition, "status": value, "reason": "Own", "message": "its word"}]})
}

/// Status, reason and message of a condition that sites `a`, `b`, ... have as given.
fn condition(kind: &str, values: &[Option<&str>]) -> (String, String, String) {
    let root = json!({"apiVersion": "odd.test/v1", "kind": "Gate", "metadata": {"generation": 1}});
    let at = |(n, value): (usize, &Option<&str>)| {
        let site = char::from(b'a' + n as u8).to_string();
        says(&site, value.map_or(json!({"phase": "Up"}), |value| with(kind, value)))
    };
    let words: Vec<Word> = values.iter().enumerate().map(at).collect();
    let status = merge(&root, &words, "now").expect("heard");
    let of = |field: &str| text(&status, &format!("/conditions/0/{field}")).to_owned();
    (of("status"), of("reason"), of("message"))
}

#[test]
fn a_condition_of_which_nobody_knows_what_is_good_is_what_all_sites_say_or_unknown() {
    let said = |values: &[Option<&str>]| condition("Programmed", values);
    let is = |status: &str, reason: &str, message: &str| (status.into(), reason.into(), message.into());
    assert_eq!(said(&[Some("True"), Some("True")]), is("True", "Own", "at 2 sites"));
    assert_eq!(said(&[Some("False"), Some("False")]), is("False", "Own", "at 2 sites"));
    assert_eq!(said(&[Some("Unknown"), Some("Unknown")]), is("Unknown", "Own", "at 2 sites"));
    let differ = is("Unknown", "SitesDiffer", "a: True, its word; b: False, its word");
    assert_eq!(said(&[Some("True"), Some("False")]), differ);
    let lacking = is("Unknown", "SitesDiffer", "a: no word yet; b: True, its word");
    assert_eq!(said(&[None, Some("True")]), lacking);
    assert_eq!(said(&[Some("True")]), is("True", "Own", "its word"));
}

#[test]
fn a_condition_of_which_nobody_knows_what_is_good_is_unknown_while_a_site_is_silent() {
    let root = json!({"apiVersion": "odd.test/v1", "kind": "Gate", "metadata": {"generation": 1}});
    let mut lost = says("b", with("Healthy", "True"));
    lost.silent = Some("T".into());
    let both = merge(&root, &[says("a", with("Healthy", "True")), lost.clone()], "now").expect("heard");
    let found = &both["conditions"][0];
    assert_eq!((&found["status"], &found["reason"]), (&json!("Unknown"), &json!("SiteSilent")));
    assert_eq!(found["message"], "a: True, its word; b: not heard since T");
    let alone = merge(&root, &[lost], "now").expect("what it last said");
    assert_eq!(alone["conditions"][0]["status"], "Unknown");
}

#[test]
fn bad_news_of_one_site_is_bad_news() {
    for kind in ["Failed", "Degraded", "ReplicaFailure", "Stalled"] {
        assert_eq!(condition(kind, &[Some("False"), Some("True")]).0, "True", "{kind}");
        assert_eq!(condition(kind, &[None, Some("True")]).0, "True", "{kind}");
        assert_eq!(condition(kind, &[Some("False"), None]).0, "False", "{kind}");
    }
    assert_eq!(condition("Ready", &[Some("False"), Some("True")]).0, "False");
}

#[test]
fn one_site_s_word_is_not_shown_as_that_of_all() {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {}});
    let at = |site: &str, phase: &str, size: &str| {
        says(
            site,
            json!({"phase": phase, "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size, "inodes": "9"}}),
        )
    };
    let merged = |words: &[Word]| merge(&claim, words, "now").expect("heard");
    let bound = at("a", "Bound", "1Gi");
    assert_eq!(Some(merged(&[bound.clone(), at("b", "Bound", "1Gi")])), bound.object);
    assert_eq!(
        merged(&[bound.clone(), at("b", "Pending", "2Gi")]),
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"inodes": "9"}})
    );
    let unheard = Word { site: "c".into(), ..Default::default() };
    assert_eq!(merged(&[bound.clone(), unheard]), json!({}), "it is not bound at c");
    let mut lost = at("d", "Pending", "1Gi");
    lost.silent = Some("T".into());
    assert_eq!(Some(merged(&[lost.clone(), bound.clone()])), bound.object);
    assert_eq!(stale_since("PersistentVolumeClaim", &[lost, bound]), Some("T"), "and marked");
}

#[test]
fn sites_that_count_generations_apart_observe_the_hub_s() {
    let root = json!({"apiVersion": "odd.test/v1", "kind": "Gate", "metadata": {"generation": 3}});
    let at = |site: &str, own: i64| Word {
        sent: 3,
        root_generation: 3,
        site_generation: own,
        ..says(site, json!({"observedGeneration": own}))
    };
    let status = merge(&root, &[at("a", 2), at("b", 9)], "now").expect("heard");
    assert_eq!(status, json!({"observedGeneration": 3}));
}

#[test]
fn a_service_is_reached_at_the_addresses_of_all_sites() {
    let mut service =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {}, "spec": {"type": "LoadBalancer"}});
    let at = |site: &str, addresses: &[&str]| {
        let ingress: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        says(site, json!({"loadBalancer": {"ingress": ingress}}))
    };
    let none = says("c", json!({"loadBalancer": {}}));
    let words = [at("a", &["1.1.1.1", "2.2.2.2"]), at("b", &["3.3.3.3", "1.1.1.1"]), none];
    let status = merge(&service, &words, "now");
    let all = json!([{"ip": "1.1.1.1"}, {"ip": "2.2.2.2"}, {"ip": "3.3.3.3"}]);
    assert_eq!(status.expect("heard")["loadBalancer"]["ingress"], all);
    service["spec"]["type"] = json!("ClusterIP");
    let status = merge(&service, &words, "now").expect("heard");
    assert_eq!(status["loadBalancer"], Value::Null, "the API would refuse it");
    let kept = json!({"loadBalancer": {}});
    assert_eq!(crate::compare::status_patch(&kept, &status), None, "the API keeps the empty field");
}

#[test]
fn what_nothing_places_says_so_in_its_status() {
    let status =
        with_condition(None, &root(1, 1), "False", "NoPlacement", "create one", "now").expect("a Deployment");
    assert_eq!(status["conditions"][0]["type"], "Placed");
    assert_eq!(with_condition(None, &json!({"kind": "CronJob"}), "False", "r", "m", "now"), None);
}

#[test]
fn placed_is_the_hub_s_own_word_and_what_a_hub_below_could_not_place_is_told_apart() {
    let placing = |below: &[(&str, &str, &str)]| {
        let mut north = word("north", 3, 2, 2);
        for (kind, value, message) in below {
            let said = json!({"type": kind, "status": value, "reason": "NoRoom", "message": message, "lastUpdateTime": "t"});
            north.object.as_mut().expect("spoken")["conditions"].as_array_mut().expect("a list").push(said);
        }
        let merged = merge(&root(3, 5), &[word("a", 3, 3, 3), north], "now");
        let status =
            with_condition(merged, &root(3, 5), "True", "Placed", "all", "now").expect("a Deployment");
        let all = status["conditions"].as_array().expect("a list").iter();
        let own = |c: &&Value| text(c, "/type") != "Available";
        all.filter(own)
            .map(|c| [text(c, "/type"), text(c, "/status"), text(c, "/message")].map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(placing(&[("Placed", "True", "2 of 2")]), [["Placed", "True", "all"]]);
    let below = ["PlacedBelow", "False", "north: 1 of 2"];
    assert_eq!(placing(&[("Placed", "False", "1 of 2")]), [below, ["Placed", "True", "all"]]);
    let further = ["PlacedBelow", "False", "north: cove: 0 of 1"];
    let both = [("PlacedBelow", "False", "cove: 0 of 1"), ("Placed", "True", "2 of 2")];
    assert_eq!(placing(&both), [further, ["Placed", "True", "all"]]);
}

#[test]
fn placed_is_an_ordinary_condition_of_a_kind_for_which_the_hub_has_none() {
    assert_eq!(condition("Placed", &[Some("True")]).2, "its word");
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

proptest! {
    /// A field is shown as all heard sites say it, or not at all.
    #[test]
    fn nothing_is_shown_that_a_heard_site_does_not_say(phases in prop::collection::vec((0u8..2, any::<bool>()), 1..5)) {
        let root = json!({"apiVersion": "odd.test/v1", "kind": "Gate", "metadata": {"generation": 1}});
        let words: Vec<Word> = phases.iter().enumerate().map(|(n, (phase, silent))| {
            let mut word = with("Open", if *phase == 0 { "True" } else { "False" });
            word["phase"] = json!(phase);
            Word { silent: silent.then(|| "T".to_owned()), ..says(&format!("s{n}"), word) }
        }).collect();
        let status = merge(&root, &words, "now").expect("heard");
        let heard: Vec<&Word> = words.iter().filter(|w| w.silent.is_none()).collect();
        for word in &heard {
            let own = word.object.as_ref().expect("spoken");
            prop_assert!(status.get("phase").is_none_or(|phase| *phase == own["phase"]));
        }
        let alike = |w: &&Word| w.object == words[0].object;
        let known = heard.len() == words.len() && heard.iter().all(alike);
        prop_assert_eq!(&status["conditions"][0]["status"] != "Unknown", known);
        prop_assert_eq!(stale_since("Gate", &words).is_some(), heard.len() < words.len());
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

#[test]
fn a_message_names_some_sites_and_counts_the_rest() {
    let told: Vec<String> = (0..25).map(|n| format!("s{n}: no")).collect();
    assert_eq!(few(&told[..2]), "s0: no; s1: no");
    assert!(few(&told).ends_with("; s19: no; and 5 more"), "{}", few(&told));
}
