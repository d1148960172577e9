//! A client for tests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tombolo_apiserver::{Body, Config, Identity, Server};
use tombolo_store::MemoryStore;

#[derive(Clone)]
pub struct Client {
    pub server: Server,
    pub identity: Option<Identity>,
    pub headers: Vec<(String, String)>,
}

pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub text: String,
    pub warnings: Vec<String>,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.text);
        self.body
    }
}

impl Client {
    pub async fn new() -> Self {
        let server = Server::start(Config::new(Arc::new(MemoryStore::new()))).await.unwrap();
        Self { server, identity: Some(Identity::system("admin")), headers: Vec::new() }
    }

    pub fn acting(&self, user: &str, groups: &[&str]) -> Self {
        Self { identity: Some(Identity::new(user, groups.iter().copied())), ..self.clone() }
    }

    pub fn with_header(&self, name: &str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.push((name.into(), value.into()));
        client
    }

    pub async fn raw(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: impl Into<Bytes>,
    ) -> http::Response<Body> {
        let mut request = Request::builder().method(method).uri(path).header("user-agent", "test/1");
        if !kind.is_empty() {
            request = request.header("content-type", kind);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        self.server.handle(request.body(Body::from(body.into())).unwrap(), self.identity.clone()).await
    }

    pub async fn send(&self, method: Method, path: &str, kind: &str, body: impl Into<Bytes>) -> Answer {
        let response = self.raw(method, path, kind, body).await;
        let code = response.status().as_u16();
        let warnings =
            response.headers().get_all("warning").iter().map(|v| v.to_str().unwrap().to_owned()).collect();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Answer { code, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null), text, warnings }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, "", "").await
    }

    pub async fn post(&self, path: &str, object: Value) -> Answer {
        self.send(Method::POST, path, "application/json", object.to_string()).await
    }

    pub async fn put(&self, path: &str, object: Value) -> Answer {
        self.send(Method::PUT, path, "application/json", object.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, "", "").await
    }

    pub async fn merge(&self, path: &str, patch: Value) -> Answer {
        self.send(Method::PATCH, path, "application/merge-patch+json", patch.to_string()).await
    }

    pub async fn apply(&self, path: &str, manager: &str, object: Value) -> Answer {
        let join = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{join}fieldManager={manager}");
        self.send(Method::PATCH, &path, "application/apply-patch+yaml", object.to_string()).await
    }

    /// A config map of the default namespace.
    pub async fn config_map(&self, name: &str, labels: Value) -> Value {
        let object = json!({"metadata": {"name": name, "labels": labels}, "data": {"a": "b"}});
        self.post("/api/v1/namespaces/default/configmaps", object).await.expect(201)
    }

    pub async fn watch(&self, path: &str) -> Events {
        let response = self.raw(Method::GET, path, "", "").await;
        assert_eq!(response.status(), 200);
        Events { body: response.into_body(), buffer: Vec::new() }
    }
}

/// The lines of a watch.
pub struct Events {
    body: Body,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event; panics if there is none within a generous while.
    pub async fn next(&mut self) -> Value {
        tokio::time::timeout(Duration::from_secs(20), self.line())
            .await
            .expect("no event came")
            .expect("the watch ended")
    }

    /// The next event, or `None` when the watch has ended.
    pub async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}

/// `(type, name)` of an event.
pub fn brief(event: &Value) -> (String, String) {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
}
