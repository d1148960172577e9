use super::*;
use std::sync::Arc;

use kube::client::Body;
use parking_lot::Mutex;

use crate::apply::tests::{HUB, metadata, owner, site, spec};

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
