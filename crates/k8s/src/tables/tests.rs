use super::*;
use crate::resources::RESOURCES;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn cells(group: &str, plural: &str, object: &Value) -> Vec<Value> {
    let row = Printer::built_in(group, plural).row(object, Include::None, at("2024-01-02T00:00:00Z"));
    row["cells"].as_array().unwrap().clone()
}

/// Columns as a real kube-apiserver defines them: `data/columns_observed.txt`.
#[test]
fn every_resource_has_upstream_s_columns() {
    for line in include_str!("../../data/columns_observed.txt").lines().filter(|l| !l.starts_with('#')) {
        let (resource, wanted) = line.split_once(" | ").unwrap();
        let name = resource.split(' ').next().unwrap();
        let (plural, group) = name.split_once('.').unwrap_or((name, ""));
        let definitions = Printer::built_in(group, plural).definitions();
        let got: Vec<String> = definitions
            .as_array()
            .unwrap()
            .iter()
            .map(|c| {
                let mut text = format!("{}:{}", c["name"].as_str().unwrap(), c["type"].as_str().unwrap());
                if let Some(format) = c["format"].as_str().filter(|f| !f.is_empty()) {
                    text += &format!(":{format}");
                }
                match c["priority"].as_i64().unwrap() {
                    0 => text,
                    priority => format!("{text} {priority}"),
                }
            })
            .collect();
        assert_eq!(got.join("; "), wanted, "{name}");
    }
}

/// Rows as a real kube-apiserver printed them: `data/rows_observed.json`.
#[test]
fn rows_are_printed_as_upstream_prints_them() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../data/rows_observed.json")).unwrap();
    assert!(cases.len() > 40);
    let mut wrong = Vec::new();
    for case in &cases {
        let now = at(case["now"].as_str().unwrap());
        let name = case["resource"].as_str().unwrap();
        let (plural, group) = name.split_once('.').unwrap_or((name, ""));
        let row = Printer::built_in(group, plural).row(&case["object"], Include::None, now);
        if row["cells"] != case["cells"] {
            wrong.push(format!("{name}\n  got    {}\n  wanted {}", row["cells"], case["cells"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_resource_can_be_printed_from_nothing() {
    for resource in RESOURCES {
        let printer = Printer::built_in(resource.group, resource.plural);
        let row = printer.row(&json!({"metadata": {"name": "a"}}), Include::Metadata, Timestamp::UNIX_EPOCH);
        let columns = printer.definitions().as_array().unwrap().len();
        assert_eq!(row["cells"].as_array().unwrap().len(), columns, "{}", resource.plural);
    }
}

#[test]
fn a_pod_is_summed_up_in_one_word() {
    let pod = |spec: Value, status: Value| {
        let pod = json!({"metadata": {"name": "p", "creationTimestamp": "2024-01-01T00:00:00Z"}, "spec": spec, "status": status});
        let cells = cells("", "pods", &pod);
        cells[1..4].iter().map(|c| c.as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    let two = json!({"containers": [{"name": "a"}, {"name": "b"}]});
    let running =
        |name: &str| json!({"name": name, "ready": true, "restartCount": 0, "state": {"running": {}}});
    let done = |name: &str, code: i64, reason: &str| {
        json!({"name": name, "restartCount": 2, "state": {"terminated": {"exitCode": code, "reason": reason}},
            "lastState": {"terminated": {"finishedAt": "2024-01-01T23:59:00Z"}}})
    };
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let cases = [
        (json!({"phase": "Pending"}), "0/2 Pending 0"),
        (json!({"phase": "Running", "containerStatuses": [running("a"), running("b")]}), "2/2 Running 0"),
        (
            json!({"phase": "Running", "containerStatuses": [running("a"), done("b", 1, "Error")]}),
            "1/2 Error 2 (60s ago)",
        ),
        (
            json!({"phase": "Running", "conditions": ready, "containerStatuses": [done("a", 0, "Completed"), running("b")]}),
            "1/2 Running 2 (60s ago)",
        ),
        (
            json!({"phase": "Running", "containerStatuses": [done("a", 0, "Completed"), running("b")]}),
            "1/2 NotReady 2 (60s ago)",
        ),
        (
            json!({"phase": "Pending", "containerStatuses": [{"name": "a", "state": {"waiting": {"reason": "ErrImagePull"}}}]}),
            "0/2 ErrImagePull 0",
        ),
        (json!({"phase": "Failed", "reason": "Evicted"}), "0/2 Evicted 0"),
        (
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
            "0/2 SchedulingGated 0",
        ),
    ];
    for (status, wanted) in cases {
        assert_eq!(pod(two.clone(), status.clone()), wanted, "{status}");
    }
    let init = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]});
    let cases = [
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}),
            "0/2 Init:0/2 0",
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 3, "state": {"terminated": {"exitCode": 7}}}]}),
            "0/2 Init:ExitCode:7 3",
        ),
        (
            json!({"phase": "Running", "containerStatuses": [running("a")], "initContainerStatuses": [
                {"name": "i", "restartCount": 5, "state": {"terminated": {"exitCode": 0}}},
                {"name": "s", "ready": true, "started": true, "restartCount": 1, "state": {"running": {}}}]}),
            "2/2 Running 1",
        ),
    ];
    for (status, wanted) in cases {
        assert_eq!(pod(init.clone(), status.clone()), wanted, "{status}");
    }
}

#[test]
fn durations_are_said_as_people_say_them() {
    let cases = [
        (-5, "<invalid>"),
        (-1, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"),
        (11_000, "3h3m"),
        (100_000, "27h"),
        (200_000, "2d7h"),
        (800_000, "9d"),
        (63_072_000, "2y"),
        (70_000_000, "2y80d"),
        (300_000_000, "9y"),
    ];
    for (seconds, wanted) in cases {
        assert_eq!(human_duration(seconds), wanted, "{seconds}");
    }
}

#[test]
fn custom_columns_follow_their_paths_and_types() {
    let columns = json!([
        {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
        {"name": "Tags", "type": "string", "jsonPath": ".spec.tags"},
        {"name": "Missing", "type": "string", "jsonPath": ".spec.missing", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    let printer = Printer::custom(Some(&columns));
    let object = json!({"metadata": {"name": "a", "creationTimestamp": "2024-01-01T00:00:00Z"}, "spec": {"replicas": 3, "tags": ["x"]}});
    let now = at("2024-01-02T00:00:00Z");
    let table =
        printer.table(&json!({"resourceVersion": "5", "selfLink": "x"}), [&object], Include::Metadata, now);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 3, "[\"x\"]", null, "24h"]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(table["columnDefinitions"][3]["priority"], 1);
    assert_eq!(table["metadata"], json!({"resourceVersion": "5"}));
    let plain = Printer::custom(None).row(&object, Include::None, now);
    assert_eq!(plain["cells"], json!(["a", "24h"]));
}
