use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tombolo_apiserver::{Config, Identity, Server};
use tombolo_store::MemoryStore;

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
    let mut config = Config::new(Arc::new(MemoryStore::new()));
    config.node_ports = first..=last;
    let server = Server::start(config).await.unwrap();
    Client { server, identity: Some(Identity::system("admin")), headers: Vec::new() }
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
