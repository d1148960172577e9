//! Images from archives and registries: layers, whiteouts, credentials, damage.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use base64::Engine;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Pod, Secret};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tombolo_node::image::{Registries, Store};
use tombolo_node::runtime::PullSecret;

use crate::machine::Site;

crate::tests![
    an_archive_is_imported_with_its_whiteouts_and_damage_is_found,
    a_registry_with_a_token_is_pulled_from,
    a_pod_needs_its_pull_secret_and_an_image_on_disk_outlives_its_registry
];

pub fn sha(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

fn append(builder: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) {
    append_with(builder, path, 0o644, content);
}

fn append_with(builder: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_cksum();
    builder.append_data(&mut header, path, content).expect("entry");
}

fn tar_of(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        append(&mut builder, path, content.as_bytes());
    }
    builder.into_inner().expect("tar")
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("gzip");
    encoder.finish().expect("gzip")
}

/// Two layers: the second hides a file and a folder's old content.
fn layers() -> [Vec<u8>; 2] {
    let first = tar_of(&[("etc/old", "1"), ("etc/keep", "2"), ("opt/a", "3")]);
    let second = tar_of(&[("etc/.wh.old", ""), ("opt/.wh..wh..opq", ""), ("opt/b", "4")]);
    [first, second]
}

fn config(layers: &[Vec<u8>]) -> Vec<u8> {
    let ids: Vec<String> = layers.iter().map(|l| sha(l)).collect();
    json!({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["sh"], "Env": ["A=b"]}, "rootfs": {"type": "layers", "diff_ids": ids}})
        .to_string()
        .into_bytes()
}

async fn an_archive_is_imported_with_its_whiteouts_and_damage_is_found() {
    let dir = tempfile::tempdir().expect("folder");
    let store = Store::open(dir.path().join("images")).expect("store");
    let layers = layers();
    let archive = |config: &[u8]| {
        let manifest = json!([{"Config": "config.json", "RepoTags": ["example.com/team/app:v1"], "Layers": ["l1.tar", "l2.tar"]}]).to_string();
        let mut builder = tar::Builder::new(Vec::new());
        for (path, bytes) in [
            ("manifest.json", manifest.as_bytes()),
            ("config.json", config),
            ("l1.tar", &layers[0]),
            ("l2.tar", &layers[1]),
        ] {
            append(&mut builder, path, bytes);
        }
        let file = dir.path().join("image.tar");
        std::fs::write(&file, builder.into_inner().expect("tar")).expect("file");
        file
    };
    let mut wrong: Value = serde_json::from_slice(&config(&layers)).expect("json");
    wrong["rootfs"]["diff_ids"][1] = sha(b"something else").into();
    let error = store.import(&archive(wrong.to_string().as_bytes()), None).expect_err("damaged").to_string();
    assert!(error.contains("damaged"), "{error}");
    assert!(store.list().is_empty(), "nothing half imported");

    let images = store.import(&archive(&config(&layers)), None).expect("import");
    assert_eq!(images[0].1, ["example.com/team/app:v1"]);
    let image = store.get("example.com/team/app:v1").expect("found by name");
    assert_eq!(image.config.env, Some(vec!["A=b".to_owned()]));
    let top = &store.layers(&image)[0];
    use std::os::unix::fs::FileTypeExt;
    assert!(top.join("etc/old").symlink_metadata().expect("whiteout").file_type().is_char_device());
    assert_eq!(xattr::get(top.join("opt"), "trusted.overlay.opaque").expect("xattr"), Some(b"y".to_vec()));
    let again = Store::open(dir.path().join("images")).expect("reopen");
    assert_eq!(again.get("example.com/team/app:v1"), Some(image.clone()));
    again.remove("example.com/team/app:v1").expect("remove");
    assert!(again.list().is_empty() && !top.exists(), "layers go with the last image");
}

/// A registry that wants a token, and the token only for the right password.
pub async fn registry(blobs: HashMap<String, Vec<u8>>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("address");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (blobs, log) = (blobs.clone(), log.clone());
            let answer = move |request: Request<hyper::body::Incoming>| {
                let path = request.uri().path().to_owned();
                log.lock().expect("log").push(path.clone());
                let auth = request
                    .headers()
                    .get("authorization")
                    .and_then(|v| v.to_str().ok())
                    .unwrap_or("")
                    .to_owned();
                let mut response = Response::new(Full::new(Bytes::new()));
                if path == "/token" {
                    // "robot:secret"
                    if auth == "Basic cm9ib3Q6c2VjcmV0" {
                        *response.body_mut() = Full::new(Bytes::from("{\"token\":\"t0ken\"}"));
                    } else {
                        *response.status_mut() = StatusCode::UNAUTHORIZED;
                    }
                } else if auth != "Bearer t0ken" {
                    *response.status_mut() = StatusCode::UNAUTHORIZED;
                    let challenge = format!(
                        "Bearer realm=\"http://{address}/token\",service=\"test\",scope=\"repository:app:pull\""
                    );
                    response.headers_mut().insert("www-authenticate", challenge.parse().expect("header"));
                } else {
                    match blobs.get(path.rsplit('/').next().unwrap_or_default()) {
                        Some(bytes) => *response.body_mut() = Full::new(Bytes::from(bytes.clone())),
                        None => *response.status_mut() = StatusCode::NOT_FOUND,
                    }
                }
                async move { Ok::<_, std::convert::Infallible>(response) }
            };
            let service = hyper::service::service_fn(answer);
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address.to_string(), asked)
}

async fn a_registry_with_a_token_is_pulled_from() {
    let layers = layers();
    let (config, zipped) = (config(&layers), [gzip(&layers[0]), gzip(&layers[1])]);
    let manifest = json!({"schemaVersion": 2, "config": {"digest": sha(&config)}, "layers": [{"digest": sha(&zipped[0])}, {"digest": sha(&zipped[1])}]})
        .to_string()
        .into_bytes();
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let index = json!({"schemaVersion": 2, "manifests": [{"digest": "sha256:00", "platform": {"os": "windows", "architecture": arch}},
        {"digest": sha(&manifest), "platform": {"os": "linux", "architecture": arch}}]})
        .to_string()
        .into_bytes();
    let index_digest = sha(&index);
    let mut blobs =
        HashMap::from([("v1".to_owned(), index), (sha(&manifest), manifest), (sha(&config), config)]);
    blobs.extend(zipped.iter().map(|l| (sha(l), l.clone())));
    let (address, asked) = registry(blobs).await;

    let dir = tempfile::tempdir().expect("folder");
    let store = Arc::new(Store::open(dir.path().join("images")).expect("store"));
    let name = format!("{address}/app:v1");
    let secret = |password: &str| {
        vec![PullSecret { registry: address.clone(), username: "robot".into(), password: password.into() }]
    };
    let registries = Registries { insecure: vec![address.clone()], ..Registries::default() };
    let refused = registries.pull(&store, &name, &secret("wrong")).await.expect_err("refused").to_string();
    assert!(refused.contains("401") && refused.contains("imagePullSecret"), "{refused}");
    let image = registries.pull(&store, &name, &secret("secret")).await.expect("pulled");
    assert_eq!(image.digests, [format!("{address}/app@{index_digest}")]);
    assert_eq!(store.get(&name), Some(image.clone()));
    assert_eq!(store.get(&format!("{address}/app@{index_digest}")), Some(image));
    let missing = registries
        .pull(&store, &format!("{address}/app:nope"), &secret("secret"))
        .await
        .expect_err("missing")
        .to_string();
    assert!(missing.contains("no such image or tag"), "{missing}");
    asked.lock().expect("log").clear();
    registries.pull(&store, &name, &secret("secret")).await.expect("pulled again");
    let again = asked.lock().expect("log").clone();
    assert!(
        !again.iter().any(|path| zipped.iter().any(|l| path.ends_with(&sha(l)))),
        "layers are not fetched twice: {again:?}"
    );
}

async fn a_pod_needs_its_pull_secret_and_an_image_on_disk_outlives_its_registry() {
    let Some(site) = Site::start("pull").await else { return };
    let mut builder = tar::Builder::new(Vec::new());
    append_with(&mut builder, "bin/sleep", 0o755, &std::fs::read("/bin/busybox").expect("busybox"));
    let layer = builder.into_inner().expect("tar");
    let (config, zipped) = (config(std::slice::from_ref(&layer)), gzip(&layer));
    let manifest =
        json!({"schemaVersion": 2, "config": {"digest": sha(&config)}, "layers": [{"digest": sha(&zipped)}]});
    let manifest = manifest.to_string().into_bytes();
    let blobs = HashMap::from([("v1".to_owned(), manifest), (sha(&config), config), (sha(&zipped), zipped)]);
    // On threads of its own, so that it can go.
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let server = server.expect("threads");
    let (address, _) = server.spawn(registry(blobs)).await.expect("a registry");
    let image = format!("{address}/app:v1");
    let pod = |policy: &str, secret: bool| {
        let secrets = if secret { json!([{"name": "robot"}]) } else { json!([]) };
        json!({"imagePullSecrets": secrets, "containers": [{"name": "main", "image": image,
            "imagePullPolicy": policy, "command": ["/bin/sleep", "1000"]}]})
    };
    let refused = |reason: &'static str| {
        move |pod: &Pod| {
            let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
            let waiting = statuses.first().and_then(|s| s.state.clone()?.waiting);
            waiting.is_some_and(|w| w.reason.as_deref() == Some(reason))
        }
    };
    site.create("never", pod("Never", true)).await;
    site.until("never", "without its image", refused("ErrImageNeverPull")).await;
    site.create("stranger", pod("IfNotPresent", false)).await;
    let stranger = site.until("stranger", "refused", refused("ErrImagePull")).await;
    let said = serde_json::to_string(&stranger.status).expect("text");
    assert!(said.contains("401") && said.contains("imagePullSecret"), "{said}");

    let auth = base64::engine::general_purpose::STANDARD.encode("robot:secret");
    let auths = json!({"auths": {&address: {"auth": auth}}}).to_string();
    let secret = json!({"metadata": {"name": "robot"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": auths}});
    let secrets: kube::Api<Secret> = kube::Api::namespaced(site.client.clone(), &site.namespace);
    secrets
        .create(&Default::default(), &serde_json::from_value(secret).expect("secret"))
        .await
        .expect("secret");
    site.create("friend", pod("IfNotPresent", true)).await;
    site.ready("friend").await;
    // Who asks every time is asked every time: that it is on disk for another pod does not help.
    site.create("sneaky", pod("Always", false)).await;
    site.until("sneaky", "refused", refused("ErrImagePull")).await;
    site.create("always", pod("Always", true)).await;
    site.ready("always").await;

    server.shutdown_background();
    site.create("alone", pod("Always", true)).await;
    site.ready("alone").await;
    let events =
        site.run(&["get", "events", "--field-selector", "involvedObject.name=alone"]).await.expect("events");
    assert!(events.contains("the registry did not answer"), "{events}");
    for pod in ["never", "stranger", "friend", "sneaky", "always", "alone"] {
        site.delete(pod).await;
    }
    site.tear_down().await;
}
