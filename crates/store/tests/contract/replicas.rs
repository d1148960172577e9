//! What several replicas on one etcd may rely on.

use std::sync::Arc;

use tombolo_store::Durability::Durable;
use tombolo_store::{At, Expect, Range, Store, StoreError};

use crate::engines::EtcdServer;
use crate::writes::{create, remove, replace};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_never_answers_with_less_than_another_has_acknowledged() {
    let Some(server) = EtcdServer::start() else { return };
    let one: Arc<dyn Store> = Arc::new(server.connect("/hub").await);
    let other: Arc<dyn Store> = Arc::new(server.connect("/hub").await);
    for round in 0..50 {
        let (writer, reader) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        let revision = replace(writer, "/pods/a", &round.to_string()).await;
        let page = reader.range(Range::all("/pods/")).await.unwrap();
        assert_eq!(
            (page.records[0].revision, &*page.records[0].value),
            (revision, round.to_string().as_bytes())
        );
        assert!(page.revision >= revision);
        assert_eq!(reader.get("/pods/a").await.unwrap().unwrap().revision, revision);
        let at = reader.range(Range { at: At::AtLeast(revision), ..Range::all("/pods/") }).await;
        assert_eq!(at.unwrap().records[0].revision, revision);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_under_another_prefix_hold_up_no_reader() {
    let Some(server) = EtcdServer::start() else { return };
    let ours: Arc<dyn Store> = Arc::new(server.connect("/ours").await);
    let theirs: Arc<dyn Store> = Arc::new(server.connect("/theirs").await);
    create(&ours, "/pods/a", "one").await;
    let far = create(&theirs, "/pods/b", "two").await;
    // Nothing will ever change under our prefix to carry the cache to this revision.
    let page = ours.range(Range::all("")).await.unwrap();
    assert_eq!((page.records.len(), page.revision), (1, far));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_begun_on_one_replica_goes_on_at_another_that_started_later() {
    let Some(server) = EtcdServer::start() else { return };
    let one: Arc<dyn Store> = Arc::new(server.connect("/hub").await);
    for name in 0..6 {
        create(&one, &format!("/pods/{name}"), "before").await;
    }
    let first = one.range(Range { limit: 2, ..Range::all("/pods/") }).await.unwrap();
    remove(&one, "/pods/3").await;
    replace(&one, "/pods/4", "after").await;

    let other: Arc<dyn Store> = Arc::new(server.connect("/hub").await);
    let after = first.records.last().unwrap().key.clone();
    let range = Range { prefix: "/pods/", after: Some(&after), limit: 3, at: At::Exact(first.revision) };
    let from_etcd = other.range(range).await.unwrap();
    assert_eq!(from_etcd, one.range(range).await.unwrap());
    assert_eq!((from_etcd.records.len(), from_etcd.remaining), (3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_sees_what_another_replica_writes_across_a_restart_of_etcd() {
    let Some(mut server) = EtcdServer::start() else { return };
    let one: Arc<dyn Store> = Arc::new(server.connect("/hub").await);
    let other: Arc<dyn Store> = Arc::new(server.connect("/hub").await);
    let mut watch = one.watch("/pods/", one.revision().await.unwrap()).await.unwrap();
    let before = create(&other, "/pods/a", "before").await;
    assert_eq!(watch.next().await.unwrap().events[0].revision, before);

    server.restart();
    drop(server.connect("/hub").await);
    let after = loop {
        match other.put("/pods/a", "after".into(), Expect::Revision(before), Durable).await {
            Ok(revision) => break revision,
            Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
            // The attempt before was carried out, but its answer was lost.
            Err(StoreError::Conflict { current: Some(current), .. }) if current.value == "after" => {
                break current.revision;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(watch.next().await.unwrap().events[0].revision, after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_cannot_be_reached_is_named_in_the_error() {
    let options = tombolo_store::EtcdOptions {
        endpoints: vec!["http://127.0.0.1:1".to_owned()],
        prefix: "/hub".to_owned(),
        tls: None,
    };
    let error = tombolo_store::EtcdStore::connect(options).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(why) if why.contains("127.0.0.1:1")), "{error}");
}
