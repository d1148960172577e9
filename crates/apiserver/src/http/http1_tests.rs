use async_trait::async_trait;
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::task::JoinHandle;
use tombolo_store::MemoryStore;

use super::*;
use crate::config::Config;
use crate::upgrade::UpgradeHandler;

const PATIENCE: Duration = Duration::from_secs(30);
const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=1";

/// Gives back what it is sent, with a mark behind it.
struct Echo;

#[async_trait]
impl UpgradeHandler for Echo {
    async fn serve(&self, _: Identity, mut io: BoxIo) {
        let mut text = [0; 5];
        io.read_exact(&mut text).await.unwrap();
        io.write_all(&[&text[..], b"!"].concat()).await.unwrap();
        io.flush().await.unwrap();
    }
}

/// A server and a connection to it whose pipe holds `room` bytes.
async fn connect(room: usize) -> (Server, DuplexStream, JoinHandle<()>) {
    let mut config = Config::new(Arc::new(MemoryStore::new()));
    config.upgrades.insert("/echo".into(), Arc::new(Echo));
    let server = Server::start(config).await.unwrap();
    let (near, far) = tokio::io::duplex(room);
    let identity = Some(Arc::new(Identity::system("admin")));
    let serving = tokio::spawn(serve(server.clone(), Box::new(far), identity));
    (server, near, serving)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")
}

/// Reads until all of `ends` came, in this order.
async fn read_past(client: &mut DuplexStream, ends: &[&str]) -> String {
    let mut text = String::new();
    let came = |text: &str| {
        ends.iter().try_fold(text, |rest, end| Some(&rest[rest.find(end)? + end.len()..])).is_some()
    };
    let reading = async {
        let mut part = [0; 512];
        while !came(&text) {
            let count = client.read(&mut part).await.unwrap();
            assert!(count > 0, "closed after {text}");
            text.push_str(std::str::from_utf8(&part[..count]).unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("the server is silent");
    text
}

async fn create(server: &Server, name: &str, size: usize) {
    let body = serde_json::json!({"metadata": {"name": name}, "data": {"k": "x".repeat(size)}}).to_string();
    let request = Request::post("/api/v1/namespaces/default/configmaps")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .unwrap();
    let answer = server.handle(request, Some(Identity::system("admin"))).await;
    assert_eq!(answer.status(), StatusCode::CREATED);
}

async fn ends(serving: JoinHandle<()>) {
    tokio::time::timeout(PATIENCE, serving).await.expect("the connection goes on").unwrap();
}

#[tokio::test]
async fn after_a_watch_the_connection_answers_what_was_asked_behind_it() {
    let (_server, mut client, serving) = connect(64 * 1024).await;
    for _ in 0..2 {
        let both = get(&format!("{WATCH}&timeoutSeconds=1")) + &get("/version");
        client.write_all(both.as_bytes()).await.unwrap();
        let text =
            read_past(&mut client, &["\r\n\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\n", "gitVersion", "}"]).await;
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("transfer-encoding: chunked\r\n"), "{text}");
        assert!(text.contains("\r\naudit-id: ") && text.contains("\r\ndate: "), "{text}");
    }
    drop(client);
    ends(serving).await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_every_event_whole() {
    let (server, mut client, serving) = connect(100).await;
    client.write_all(get(WATCH).as_bytes()).await.unwrap();
    read_past(&mut client, &["\r\n\r\n"]).await;
    for n in 0..20 {
        create(&server, &format!("map-{n:02}"), 3000).await;
    }
    let text = read_past(&mut client, &["map-19", "}\n\r\n"]).await;
    let mut rest = text.as_str();
    let mut names = Vec::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).expect("a chunk begins with its length");
        for line in after[..length].lines() {
            let event: serde_json::Value = serde_json::from_str(line).expect("an event is whole");
            names.push(event["object"]["metadata"]["name"].as_str().unwrap().to_owned());
        }
        rest = after[length..].strip_prefix("\r\n").expect("a chunk ends with a line");
    }
    assert_eq!(names, (0..20).map(|n| format!("map-{n:02}")).collect::<Vec<_>>());
    drop(client);
    ends(serving).await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_watch() {
    let (_server, mut client, serving) = connect(64 * 1024).await;
    client.write_all(get(WATCH).as_bytes()).await.unwrap();
    read_past(&mut client, &["\r\n\r\n"]).await;
    assert!(!serving.is_finished());
    drop(client);
    ends(serving).await;
}

#[tokio::test]
async fn a_stop_ends_the_watch_and_the_connection() {
    let (server, mut client, serving) = connect(64 * 1024).await;
    client.write_all(get(WATCH).as_bytes()).await.unwrap();
    read_past(&mut client, &["\r\n\r\n"]).await;
    server.stopping().cancel();
    read_past(&mut client, &["0\r\n\r\n"]).await;
    ends(serving).await;
}

#[tokio::test]
async fn who_asks_for_an_end_after_the_watch_gets_it() {
    let (_server, mut client, serving) = connect(64 * 1024).await;
    let path = format!("{WATCH}&timeoutSeconds=1");
    let ask = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    client.write_all(ask.as_bytes()).await.unwrap();
    read_past(&mut client, &["0\r\n\r\n"]).await;
    ends(serving).await;
}

#[tokio::test]
async fn what_takes_the_connection_over_gets_what_came_behind_the_request() {
    let (_server, mut client, serving) = connect(64 * 1024).await;
    let ask = "GET /echo HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello";
    client.write_all(ask.as_bytes()).await.unwrap();
    let text = read_past(&mut client, &["\r\n\r\n", "hello!"]).await;
    assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
    ends(serving).await;
}
