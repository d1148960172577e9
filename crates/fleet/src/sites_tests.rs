use super::*;

use kube::client::Body;
use parking_lot::Mutex;
use tombolo_api::SiteSpec;

#[test]
fn a_site_s_rights_end_at_its_own_objects_and_hang_on_its_identity() {
    let all = equipment("a", "i1");
    for object in &all {
        if let Some(subjects) = object.get("subjects") {
            assert_eq!(subjects[0]["name"], "system:site-identity:i1");
        }
        for rule in object["rules"].as_array().into_iter().flatten() {
            let own = object["metadata"]["namespace"] == "site-a" || rule["resourceNames"] == json!(["a"]);
            // It asks for certificates under names that only it knows.
            if *rule == requests() {
                continue;
            }
            assert!(own, "{rule} reaches beyond the site");
            let verbs = rule["verbs"].as_array().expect("verbs");
            assert!(!verbs.iter().any(|v| v == "*" || v == "create" || v == "delete"), "{rule}");
        }
    }
}

#[test]
fn a_site_of_an_earlier_hub_is_refitted_and_another_is_left() {
    let own = |rules: Value| {
        let rules: Vec<PolicyRule> = serde_json::from_value(rules).expect("rules");
        HashMap::from([("tombolo:site:a".to_owned(), Some(rules))])
    };
    let all = equipment("a", "i1");
    let role = all.iter().find(|o| o["kind"] == "ClusterRole").expect("a role");
    assert!(all.iter().all(|o| is_given(o, &own(role["rules"].clone()))));
    assert!(!is_given(role, &own(json!([]))));
    assert!(!is_given(role, &HashMap::new()));
}

#[test]
fn the_oldest_removals_are_forgotten_and_what_is_remembered_fits() {
    let removal = Removal { hub: "h".repeat(36), message: "m".repeat(160), ..Default::default() };
    let text = |at: &str| {
        let remembered = Remembered { removal: removal.clone(), at: at.to_owned() };
        serde_json::to_string(&remembered).expect("JSON")
    };
    let mut known: BTreeMap<String, String> =
        [("c", "2026-03"), ("b", "2026-02"), ("a", "2026-01")].map(|(id, at)| (id.into(), text(at))).into();
    // One of an earlier hub says no time.
    known.insert("z".into(), serde_json::to_string(&removal).expect("JSON"));
    assert_eq!(forgotten(&known, "new", 5), Vec::<String>::new());
    assert_eq!(forgotten(&known, "new", 3), ["z", "a"]);
    assert_eq!(forgotten(&known, "a", 3), ["z"], "removed once more");
    let one = text("2026-01-01T00:00:00Z").len() + uuid::Uuid::nil().simple().to_string().len();
    assert!(REMEMBERED * one < 1 << 20);
    // Sites and earlier hubs read it as before.
    assert_eq!(tombolo_agent::removal(&known["a"]), Some(removal.clone()));
    let config = ConfigMap { data: Some(known), ..Default::default() };
    assert!(removed(&config).values().all(|told| *told == removal));
}

#[test]
fn a_silent_site_is_not_ready_and_its_node_is_unknown() {
    let condition = ready(Some("2026-01-01T00:00:00Z"), "t");
    assert_eq!(condition.status, "False");
    let site = Site::new("a", SiteSpec::default());
    assert_eq!(node_status(&site, &condition, "t")["status"]["conditions"][0]["status"], "Unknown");
}

/// A hub that has one ConfigMap, once it was written; notes what is asked of it.
fn hub_with_one_map(asked: &Arc<Mutex<Vec<String>>>) -> Client {
    let (asked, kept) = (asked.clone(), Arc::<Mutex<Option<Value>>>::default());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (asked, kept) = (asked.clone(), kept.clone());
        async move {
            let method = request.method().to_string();
            let kind = request.headers().get("content-type");
            let applied = kind.is_some_and(|kind| kind == "application/apply-patch+yaml");
            let body = request.into_body().collect_bytes().await.expect("a body");
            asked.lock().push(method);
            let mut kept = kept.lock();
            if applied {
                *kept = serde_json::from_slice(&body).ok();
            }
            let missing = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": "NotFound", "message": "no such ConfigMap", "code": 404});
            let (code, answer) = kept.clone().map_or((404, missing), |map| (200, map));
            http::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))
        }
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn a_removed_site_that_waits_for_its_leases_is_written_once() {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let hub = hub_with_one_map(&asked);
    // Looked at every second, until its leases have run out.
    for _ in 0..3 {
        apply_removed(&hub, "i1", Removal::default()).await.expect("written");
    }
    assert_eq!(*asked.lock(), ["GET", "PATCH", "PATCH", "GET", "GET"], "the second write makes the map");
    apply_removed(&hub, "i2", Removal::default()).await.expect("written");
    assert_eq!(asked.lock()[5..], ["GET", "PATCH"], "another one");
}
