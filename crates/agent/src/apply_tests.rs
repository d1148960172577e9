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

async fn remove(there: &[Owner], seen: &[Owner], revision: &str) -> (Removed, Vec<String>) {
    let (applier, asked) = site(there);
    let spec: WorkSpec = serde_json::from_value(
        json!({"object": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "d"}}}),
    )
    .expect("a Work");
    let tombstone = Tombstone { hub: HUB.into(), epoch: 1, ..Default::default() };
    let annotations: BTreeMap<String, String> = seen.iter().map(|o| (o.key(), o.value())).collect();
    let sight = |_: &Key| Some((Owners::of(Some(&annotations)), revision.to_owned()));
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
