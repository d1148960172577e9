use super::*;
use kube::client::Body;

const HUB: &str = "h";

/// A site with one ConfigMap at revision 2, wanted by `owners`; notes what is asked of it.
fn site(owners: &[Owner]) -> (Applier, Arc<Mutex<Vec<String>>>) {
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

fn owner(work: &str) -> Owner {
    Owner { hub: HUB.into(), work: work.into(), uid: "1".into() }
}

fn spec() -> WorkSpec {
    serde_json::from_value(
        json!({"object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "d"}}}),
    )
    .expect("a Work")
}

/// Of an object that we wrote with `operation`; without one it does not say who wrote it.
fn metadata(owners: &[Owner], revision: &str, operation: &str) -> ObjectMeta {
    let annotations: BTreeMap<String, String> = owners.iter().map(|o| (o.key(), o.value())).collect();
    let manager = format!("{}-{}", names::SITE_MANAGER, names::hub_label(HUB));
    let metadata = json!({"name": "a", "namespace": "d", "resourceVersion": revision, "annotations": annotations,
        "managedFields": [{"manager": manager, "operation": operation}]});
    let mut metadata: ObjectMeta = serde_json::from_value(metadata).expect("metadata");
    metadata.managed_fields = metadata.managed_fields.filter(|_| !operation.is_empty());
    metadata
}

async fn remove(there: &[Owner], seen: &[Owner], revision: &str) -> (Removed, Vec<String>) {
    let (applier, asked) = site(there);
    let spec = spec();
    let tombstone = Tombstone { hub: HUB.into(), epoch: 1, ..Default::default() };
    let seen = applier.sight(&metadata(seen, revision, "Apply"));
    let sight = |_: &Key| Some(seen.clone());
    let removed = applier.remove(&owner("a"), &spec, &tombstone, 1, &sight).await.expect("no refusal");
    let asked = asked.lock().clone();
    (removed, asked)
}

#[tokio::test]
async fn what_is_as_it_was_seen_is_deleted_with_one_call() {
    let ours = [owner("a")];
    assert_eq!(remove(&ours, &ours, "2").await, (Removed::Gone, vec!["DELETE".to_owned()]));
}

#[tokio::test]
async fn what_somebody_else_wants_by_now_stays() {
    let both = [owner("a"), owner("b")];
    let (removed, asked) = remove(&both, &[owner("a")], "1").await;
    assert_eq!(removed, Removed::Gone, "of this Work nothing is left to do");
    assert_eq!(asked, ["DELETE", "GET", "PATCH"], "refused, looked at, and only our name taken off");
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

/// A site where `b` gives the object up between our look and our patch.
fn site_that_changes() -> (Applier, Arc<Mutex<Vec<String>>>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = asked.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let log = log.clone();
        async move {
            let method = request.method().to_string();
            let body = request.into_body().collect_bytes().await.expect("a body");
            let conflict =
                method == "PATCH" && String::from_utf8_lossy(&body).contains(r#""resourceVersion":"2""#);
            let changed = log.lock().iter().any(|earlier| earlier == "PATCH");
            log.lock().push(method);
            let owners = if changed { vec![owner("a")] } else { vec![owner("a"), owner("b")] };
            let mut found = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": metadata(&owners, if changed { "3" } else { "2" }, "Apply")});
            if conflict {
                found = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "Conflict", "message": "it changed", "code": 409});
            }
            let code = if conflict { 409 } else { 200 };
            http::Response::builder().status(code).body(Body::from(found.to_string().into_bytes()))
        }
    });
    let client = Client::new(service, "d");
    (Applier::new(client.clone(), client, HUB), asked)
}

#[tokio::test]
async fn of_two_that_give_up_an_object_at_once_the_later_one_deletes_it() {
    let (applier, asked) = site_that_changes();
    let tombstone = Tombstone { hub: HUB.into(), epoch: 1, ..Default::default() };
    applier.remove(&owner("a"), &spec(), &tombstone, 1, &|_| None).await.expect("no refusal");
    assert_eq!(asked.lock()[..4], ["GET", "PATCH", "GET", "DELETE"]);
}
