use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tombolo_apiserver::{Config, Identity, Server};
use tombolo_store::{
    Deleted, Durability, Expect, MemoryStore, Page, Range, Record, Store, StoreError, Watch,
};

use crate::client::{Answer, Client};

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, node_port: Option<u16>) -> Value {
    let mut port = json!({"port": 80});
    if let Some(number) = node_port {
        port["nodePort"] = number.into();
    }
    json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "selector": {"app": "a"}, "ports": [port]}})
}

async fn with_ports(first: u16, last: u16) -> Client {
    with_ports_in(MemoryStore::new(), first, last).await
}

async fn with_ports_in(store: impl Store, first: u16, last: u16) -> Client {
    let mut config = Config::new(Arc::new(store));
    config.node_ports = first..=last;
    let server = Server::start(config).await.unwrap();
    Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() }
}

/// Lets others go first before it writes, now and then and each time in another order.
struct Interleaving {
    store: MemoryStore,
    writes: AtomicU64,
}

impl Interleaving {
    async fn pause(&self) {
        let write = self.writes.fetch_add(1, Ordering::Relaxed);
        for _ in 0..write.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 {
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl Store for Interleaving {
    async fn get(&self, key: &str) -> Result<Option<Record>, StoreError> {
        self.store.get(key).await
    }
    async fn put(&self, key: &str, value: Bytes, on: Expect, kept: Durability) -> Result<u64, StoreError> {
        self.pause().await;
        self.store.put(key, value, on, kept).await
    }
    async fn delete(&self, key: &str, on: Expect, kept: Durability) -> Result<Deleted, StoreError> {
        self.pause().await;
        self.store.delete(key, on, kept).await
    }
    async fn range(&self, range: Range<'_>) -> Result<Page, StoreError> {
        self.store.range(range).await
    }
    async fn count(&self, prefix: &str) -> Result<usize, StoreError> {
        self.store.count(prefix).await
    }
    async fn watch(&self, prefix: &str, after: u64) -> Result<Watch, StoreError> {
        self.store.watch(prefix, after).await
    }
    async fn revision(&self) -> Result<u64, StoreError> {
        self.store.revision().await
    }
    async fn compact(&self, revision: u64) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }
    async fn backup(&self, folder: &Path) -> Result<u64, StoreError> {
        self.store.backup(folder).await
    }
    async fn close(&self) -> Result<(), StoreError> {
        self.store.close().await
    }
}

async fn with_interleaved_writes() -> Client {
    let store = Interleaving { store: MemoryStore::new(), writes: AtomicU64::new(0) };
    with_ports_in(store, 30000, 30100).await
}

/// All at once, on several threads.
async fn together(client: &Client, objects: Vec<Value>) -> Vec<Answer> {
    let tasks: Vec<_> = objects
        .into_iter()
        .map(|object| {
            let client = client.clone();
            tokio::spawn(async move { client.post(SERVICES, object).await })
        })
        .collect();
    futures::future::join_all(tasks).await.into_iter().map(|answer| answer.unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_port_that_many_ask_for_at_once_has_one_owner() {
    let client = with_ports(30000, 30100).await;
    for round in 0..20 {
        let port = 30000 + round;
        let objects = (0..10).map(|n| service(&format!("s-{round}-{n}"), Some(port))).collect();
        let answers = together(&client, objects).await;
        let won: Vec<_> = answers.iter().filter(|a| a.code == 201).collect();
        assert_eq!(won.len(), 1, "port {port}: {:?}", answers.iter().map(|a| &a.text).collect::<Vec<_>>());
        assert!(
            answers
                .iter()
                .filter(|a| a.code != 201)
                .all(|a| a.text.contains("provided port is already allocated"))
        );
        // Whoever lost left nothing behind: the port is free as soon as its owner is gone.
        let owner = won[0].body["metadata"]["name"].as_str().unwrap();
        client.delete(&format!("{SERVICES}/{owner}")).await.expect(200);
        client.post(SERVICES, service(&format!("next-{round}"), Some(port))).await.expect(201);
    }
}

/// Each charge of the quota is a write that others of the same moment lose and repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn services_that_race_for_a_quota_keep_their_ports() {
    let client = with_interleaved_writes().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let hard = json!({"services": "1000"});
    client.post(quotas, json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).await.expect(201);
    client.merge(&format!("{quotas}/q/status"), json!({"status": {"hard": hard}})).await.expect(200);
    let ports = 30000..30040;
    for four in ports.clone().step_by(4) {
        let objects = (four..four + 4).map(|port| service(&format!("s-{port}"), Some(port))).collect();
        together(&client, objects).await.iter().for_each(|answer| assert_eq!(answer.code, 201));
    }
    for port in ports {
        let answer = client.post(SERVICES, service(&format!("thief-{port}"), Some(port))).await;
        assert_eq!(answer.code, 422, "{port} is taken: {}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ports_given_out_at_once_differ_and_none_is_lost() {
    let client = with_ports(30000, 30009).await;
    for round in 0..5 {
        let objects = (0..20).map(|n| service(&format!("s-{round}-{n}"), None)).collect();
        let answers = together(&client, objects).await;
        let ports: BTreeSet<u64> = answers
            .iter()
            .filter(|a| a.code == 201)
            .map(|a| a.body["spec"]["ports"][0]["nodePort"].as_u64().unwrap())
            .collect();
        assert_eq!(
            answers.iter().filter(|a| a.code == 201).count(),
            ports.len(),
            "a port was given out twice"
        );
        assert_eq!(ports.len(), 10, "round {round}: all ports are given out, {ports:?}");
        for answer in answers.iter().filter(|a| a.code == 201) {
            let name = answer.body["metadata"]["name"].as_str().unwrap();
            client.delete(&format!("{SERVICES}/{name}")).await.expect(200);
        }
    }
}

#[tokio::test]
async fn of_many_that_create_one_service_those_that_fail_leave_the_winner_what_it_holds() {
    let client = with_interleaved_writes().await;
    for round in 0..60 {
        let (port, address) = (30000 + round, format!("10.96.7.{}", round + 1));
        let fixed = |name: &str| {
            let mut object = service(name, Some(port));
            object["spec"]["clusterIP"] = address.as_str().into();
            object
        };
        let name = format!("s-{round}");
        let answers = together(&client, vec![fixed(&name); 10]).await;
        assert_eq!(answers.iter().filter(|a| a.code == 201).count(), 1);
        assert!(answers.iter().all(|a| matches!(a.code, 201 | 409)), "{:?}", answers[0].text);
        let refused = client.post(SERVICES, service("thief", Some(port))).await.expect(422);
        assert!(refused["message"].as_str().unwrap().contains("port is already allocated"), "{refused}");
        let mut thief = service("thief", None);
        thief["spec"]["clusterIP"] = address.as_str().into();
        let refused = client.post(SERVICES, thief).await.expect(422);
        assert!(refused["message"].as_str().unwrap().contains("IP is already allocated"), "{refused}");
        // And they leave nothing behind.
        client.delete(&format!("{SERVICES}/{name}")).await.expect(200);
        client.post(SERVICES, fixed(&format!("next-{round}"))).await.expect(201);
    }
}

#[tokio::test]
async fn a_service_that_is_deleted_and_made_again_at_once_keeps_what_it_holds() {
    let client = with_interleaved_writes().await;
    for round in 0..60 {
        let port = 30000 + round;
        let name = format!("s-{round}");
        client.post(SERVICES, service(&name, Some(port))).await.expect(201);
        let deleting = {
            let (client, path) = (client.clone(), format!("{SERVICES}/{name}"));
            tokio::spawn(async move { client.delete(&path).await.expect(200) })
        };
        while client.post(SERVICES, service(&name, Some(port))).await.code != 201 {
            tokio::task::yield_now().await;
        }
        deleting.await.unwrap();
        client.post(SERVICES, service("thief", Some(port))).await.expect(422);
    }
}

#[tokio::test]
async fn the_ports_of_one_service_differ() {
    let client = with_ports(30000, 30002).await;
    for round in 0..20 {
        let mut object = service(&format!("s-{round}"), None);
        object["spec"]["ports"] = json!([
            {"name": "a", "port": 1}, {"name": "b", "port": 2}, {"name": "c", "port": 3, "nodePort": 30001},
        ]);
        let made = client.post(SERVICES, object).await.expect(201);
        let ports = made["spec"]["ports"].as_array().unwrap();
        let numbers: BTreeSet<u64> = ports.iter().map(|p| p["nodePort"].as_u64().unwrap()).collect();
        assert_eq!(numbers.len(), 3, "{ports:?}");
        client.delete(&format!("{SERVICES}/s-{round}")).await.expect(200);
    }
}

#[tokio::test]
async fn of_many_that_change_one_service_those_that_fail_leave_the_winner_what_it_holds() {
    let client = with_interleaved_writes().await;
    for round in 0..50 {
        let (before, port) = (30000 + 2 * round, 30001 + 2 * round);
        let path = format!("{SERVICES}/s-{round}");
        client.post(SERVICES, service(&format!("s-{round}"), Some(before))).await.expect(201);
        // Away and back: what one lets go another takes.
        let changes = [port, before, port, before, port].map(|port| {
            let (client, path) = (client.clone(), path.clone());
            let ports = json!({"spec": {"ports": [{"port": 80, "nodePort": port}]}});
            tokio::spawn(async move { client.merge(&path, ports).await })
        });
        for answer in futures::future::join_all(changes).await {
            answer.unwrap().expect(200);
        }
        let held = client.get(&path).await.expect(200)["spec"]["ports"][0]["nodePort"].clone();
        let held = held.as_u64().unwrap() as u16;
        client.post(SERVICES, service("thief", Some(held))).await.expect(422);
    }
}
