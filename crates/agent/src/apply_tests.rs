use super::*;
use kube::client::Body;

pub const HUB: &str = "h";

/// A site with one ConfigMap at revision 2, wanted by `owners`; notes what is asked of it.
pub fn site(owners: &[Owner]) -> (Applier, Arc<Mutex<Vec<String>>>) {
    let annotations: BTreeMap<String, String> = owners.iter().map(|o| (o.key(), o.value())).collect();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "a", "namespace": "d", "uid": "u", "resourceVersion": "2", "annotations": annotations}});
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = asked.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (object, log) = (object.clone(), log.clone());
        async move {
            let method = request.method().to_string();
            let body = request.into_body().collect_bytes().await.expect("a body");
            let text = String::from_utf8_lossy(&body).into_owned();
            let outdated = method == "DELETE"
                && text.contains("resourceVersion")
                && !text.contains(r#""resourceVersion":"2""#);
            log.lock().push(method.clone());
            let answer = match method.as_str() {
                "DELETE" if outdated => json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                    "status": "Failure", "reason": "Conflict", "message": "it changed", "code": 409}),
                "DELETE" => {
                    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
                }
                _ => object,
            };
            let code = if outdated { 409 } else { 200 };
            let body = Body::from(answer.to_string().into_bytes());
            http::Response::builder().status(code).body(body)
        }
    });
    let client = Client::new(service, "d");
    (Applier::new(client.clone(), client, HUB), asked)
}

pub fn owner(work: &str) -> Owner {
    Owner { hub: HUB.into(), work: work.into(), uid: "1".into() }
}

pub fn spec() -> WorkSpec {
    serde_json::from_value(
        json!({"object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "d"}}}),
    )
    .expect("a Work")
}

/// Of an object that we wrote with `operation`; without one it does not say who wrote it.
pub fn metadata(owners: &[Owner], revision: &str, operation: &str) -> ObjectMeta {
    let annotations: BTreeMap<String, String> = owners.iter().map(|o| (o.key(), o.value())).collect();
    let manager = format!("{}-{}", names::SITE_MANAGER, names::hub_label(HUB));
    let metadata = json!({"name": "a", "namespace": "d", "resourceVersion": revision, "annotations": annotations,
        "managedFields": [{"manager": manager, "operation": operation}]});
    let mut metadata: ObjectMeta = serde_json::from_value(metadata).expect("metadata");
    metadata.managed_fields = metadata.managed_fields.filter(|_| !operation.is_empty());
    metadata
}

/// What is asked of a site where the object is Work `there`'s, was seen as such, and has changed at the hub.
async fn change(there: &[Owner], operation: &str) -> Vec<String> {
    let (applier, asked) = site(there);
    let seen = applier.sight(&metadata(there, "2", operation));
    let outcome = applier.apply(&owner("a"), &spec(), &Arc::default(), &|_| Some(seen.clone())).await;
    assert_eq!(outcome.refused, None);
    asked.lock().clone()
}

#[tokio::test]
async fn what_is_ours_alone_is_changed_with_one_call_once_it_was_applied() {
    assert_eq!(change(&[owner("a")], "Apply").await, ["PATCH"]);
    assert_eq!(change(&[owner("a")], "Update").await, ["GET", "PATCH"], "it was only created");
    assert_eq!(change(&[owner("a")], "").await, ["GET", "PATCH"], "nobody said that it was applied");
    let both = [owner("a"), owner("b")];
    assert_eq!(change(&both, "Apply").await, ["GET", "PATCH"], "others may have come and gone");
}

#[tokio::test]
async fn a_selector_that_the_site_did_not_take_selects_nothing() {
    let (applier, _) = site(&[owner("a")]);
    let mut lie = spec();
    lie.object["spec"] = json!({"selector": {"matchLabels": {"app": "x"}}});
    let seen = applier.sight(&metadata(&[owner("a")], "2", "Apply"));
    let outcome = applier.apply(&owner("a"), &lie, &Arc::default(), &|_| Some(seen.clone())).await;
    assert_eq!((outcome.refused, outcome.root.selects), (None, None), "a ConfigMap has no selector");
}
