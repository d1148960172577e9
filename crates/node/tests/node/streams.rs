//! Logs, commands, copies and forwarded ports, with today's kubectl and with 1.30.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tombolo_testkit::{Fixture, Kubectl, require};

use crate::machine::{BUSYBOX, Site, upstream};

crate::tests![
    kubectl_reaches_into_a_pod,
    a_terminal_and_an_attached_input_work,
    logs_follow_and_show_the_previous_container,
    a_container_is_added_to_look_into_a_running_pod,
];

async fn kubectl_reaches_into_a_pod() {
    let Some(site) = Site::start("streams").await else { return };
    let script = "mkdir -p /www && echo served > /www/index.html && busybox httpd -f -p 8080 -h /www";
    site.create(
        "web",
        json!({"containers": [{"name": "main", "command": ["sh", "-c", script],
        "readinessProbe": {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1}}]}),
    )
    .await;
    site.ready("web").await;
    let mut programs = vec![Fixture::Kubectl];
    programs.extend(require(&[Fixture::KubectlOld]).then_some(Fixture::KubectlOld));
    for program in programs {
        let kubectl = Kubectl::with(program, &upstream().expect("running").kubeconfig);
        let namespace = site.namespace.clone();
        let work = move || {
            let run = |args: &[&str], input: &str| {
                kubectl.output_with_input(&[&["-n", &namespace], args].concat(), input)
            };
            assert_eq!(run(&["exec", "web", "--", "echo", "a b"], "").expect("exec"), "a b\n");
            let piped = run(&["exec", "-i", "web", "--", "cat"], "through\nthe pipe\n").expect("stdin");
            assert_eq!(piped, "through\nthe pipe\n");
            let big = "x".repeat(300_000);
            assert!(run(&["exec", "-i", "web", "--", "cat"], &big).expect("large") == big);
            let failed = run(&["exec", "web", "--", "sh", "-c", "exit 3"], "").expect_err("code").to_string();
            assert!(failed.contains("exit code 3"), "{failed}");
            let missing =
                run(&["exec", "web", "--", "no-such-program"], "").expect_err("missing").to_string();
            assert!(missing.contains("executable file not found"), "{missing}");

            let folder = tempfile::tempdir().expect("folder");
            let (there, back) = (folder.path().join("there.txt"), folder.path().join("back.txt"));
            std::fs::write(&there, "carried\n").expect("file");
            run(&["cp", &there.to_string_lossy(), "web:/tmp/file.txt"], "").expect("cp in");
            run(&["cp", "web:/tmp/file.txt", &back.to_string_lossy()], "").expect("cp out");
            assert_eq!(std::fs::read_to_string(&back).expect("back"), "carried\n");

            for _ in 0..2 {
                let answer = forwarded(&kubectl, &namespace, "web");
                assert!(answer.ends_with("served\n"), "{answer:?}");
            }
        };
        tokio::task::spawn_blocking(work).await.expect("kubectl works");
    }
    site.tear_down().await;
}

/// The last of three pages that port 8080 of a pod gives through `kubectl port-forward`.
pub fn forwarded(kubectl: &Kubectl, namespace: &str, pod: &str) -> String {
    let mut forward = kubectl
        .command(&["-n", namespace, "port-forward", &format!("pod/{pod}"), ":8080"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("port-forward");
    let mut line = String::new();
    // Kept open: kubectl goes on printing and would die of a closed pipe.
    let mut printed = BufReader::new(forward.stdout.take().expect("stdout"));
    printed.read_line(&mut line).expect("line");
    // "Forwarding from 127.0.0.1:41234 -> 8080"
    let address = line.split_whitespace().nth(2).unwrap_or_else(|| panic!("unexpected: {line:?}")).to_owned();
    let mut answer = String::new();
    for _ in 0..3 {
        answer.clear();
        let mut stream = TcpStream::connect(&address).expect("connect");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("request");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
        stream.read_to_string(&mut answer).expect("answer");
    }
    let _ = forward.kill();
    let _ = forward.wait();
    answer
}

async fn logs_follow_and_show_the_previous_container() {
    let Some(site) = Site::start("logs").await else { return };
    site.create("count", json!({"restartPolicy": "OnFailure", "containers": [{"name": "main",
        "command": ["sh", "-c", "if [ -e /keep/x ]; then echo second; sleep 1; echo third; else echo first; touch /keep/x; exit 1; fi"],
        "volumeMounts": [{"name": "keep", "mountPath": "/keep"}]}], "volumes": [{"name": "keep", "emptyDir": {}}]}))
        .await;
    site.until("count", "restarted", |pod| {
        let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
        statuses.is_some_and(|s| s[0].restart_count == 1)
    })
    .await;
    assert_eq!(site.run(&["logs", "-f", "count"]).await.expect("follow"), "second\nthird\n");
    assert_eq!(site.run(&["logs", "--previous", "count"]).await.expect("previous"), "first\n");
    let pod = site.until("count", "done", |pod| crate::machine::phase(pod) == "Succeeded").await;
    let status = &pod.status.expect("status").container_statuses.expect("containers")[0];
    assert_eq!(status.state.as_ref().and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code), Some(0));
    assert_eq!(status.last_state.as_ref().and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code), Some(1));
    site.tear_down().await;
}

async fn a_container_is_added_to_look_into_a_running_pod() {
    let Some(mut site) = Site::start("debug").await else { return };
    site.create("web", json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]})).await;
    let before = site.ready("web").await;
    let script = "echo looking; while [ ! -e /tmp/go ]; do sleep 0.1; done";
    site.run(&["debug", "web", "--image", BUSYBOX, "-c", "looker", "--", "sh", "-c", script])
        .await
        .expect("kubectl debug");
    let added = |pod: &k8s_openapi::api::core::v1::Pod| {
        let statuses = pod.status.as_ref().and_then(|s| s.ephemeral_container_statuses.clone());
        statuses.and_then(|all| all.first()?.state.clone())
    };
    site.until("web", "looked into", |pod| added(pod).is_some_and(|state| state.running.is_some())).await;
    assert_eq!(site.run(&["logs", "web", "-c", "looker"]).await.expect("logs"), "looking\n");
    // It is in the pod: the same host name, the same network.
    assert_eq!(site.run(&["exec", "web", "-c", "looker", "--", "hostname"]).await.expect("exec"), "web\n");
    // It sees what the container runs that it was added to look into, and only that.
    let script = "sleep 2000";
    let look =
        ["debug", "web", "--image", BUSYBOX, "-c", "inside", "--target", "main", "--", "sh", "-c", script];
    site.run(&look).await.expect("kubectl debug --target");
    let running = |pod: &k8s_openapi::api::core::v1::Pod| {
        let statuses = pod.status.as_ref().and_then(|s| s.ephemeral_container_statuses.clone());
        statuses
            .unwrap_or_default()
            .iter()
            .any(|s| s.name == "inside" && s.state.as_ref().is_some_and(|s| s.running.is_some()))
    };
    site.until("web", "looked into from inside", running).await;
    let first = ["exec", "web", "-c", "inside", "--", "cat", "/proc/1/cmdline"];
    assert_eq!(
        site.run(&first).await.expect("exec"),
        "sleep\x001000\x00",
        "the first process is the other's"
    );
    site.halt().await;
    site.boot().await;
    // Once ended, it stays so; the pod does not mind.
    site.run(&["exec", "web", "-c", "looker", "--", "touch", "/tmp/go"]).await.expect("touch");
    let pod = site.until("web", "left alone", |pod| added(pod).is_some_and(|s| s.terminated.is_some())).await;
    let id = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.status.as_ref().and_then(|s| s.container_statuses.clone()).map(|all| all[0].container_id.clone())
    };
    assert_eq!(id(&before), id(&pod), "the pod's own container runs on");
    assert_eq!(crate::machine::condition(&pod, "Ready"), Some("True"));
    site.tear_down().await;
}

async fn a_terminal_and_an_attached_input_work() {
    let Some(site) = Site::start("attach").await else { return };
    site.create(
        "reader",
        json!({"restartPolicy": "Never", "containers": [{"name": "main", "stdin": true, "stdinOnce": true,
            "command": ["sh", "-c", "while read line; do echo got $line; done; echo end"]}]}),
    )
    .await;
    site.ready("reader").await;
    let (output, status, code) = websocket(&site, "reader", "exit 3", false).await;
    assert_eq!((output.as_str(), code), ("", Some(1000)), "a close without a code is an error to clients");
    assert_eq!(status["details"]["causes"][0]["message"], "3", "{status}");
    let (output, status, _) =
        websocket(&site, "reader", "[ -t 0 ] && [ -t 1 ] && echo terminal; sleep 1; busybox stty size", true)
            .await;
    assert_eq!((output.as_str(), &status["status"]), ("terminal\r\n40 100\r\n", &json!("Success")));
    let (kubectl, namespace) = (site.kubectl(), site.namespace.clone());
    let attach = move || kubectl.run_with_input(&["-n", &namespace, "attach", "-i", "reader"], "one\ntwo\n");
    let seen = tokio::task::spawn_blocking(attach).await.expect("ran").expect("attach");
    assert!(seen.contains("got one") && seen.contains("got two"), "{seen}");
    // The input ended with its first client, so the program came to its end.
    site.until("reader", "done", |pod| crate::machine::phase(pod) == "Succeeded").await;
    assert_eq!(site.run(&["logs", "reader"]).await.expect("logs"), "got one\ngot two\nend\n");
    site.tear_down().await;
}

/// Runs a script the way today's kubectl does when nobody translates: a WebSocket straight to the node.
/// Returns the output, the final status and the code the connection was closed with.
async fn websocket(
    site: &Site,
    pod: &str,
    script: &str,
    tty: bool,
) -> (String, serde_json::Value, Option<u16>) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let server = site.stream_server();
    tokio::spawn(async move { server.serve(far).await });
    let script: String = script.bytes().map(|b| format!("%{b:02x}")).collect();
    let flags = if tty { "&tty=1&input=1" } else { "&error=1" };
    let uri = format!(
        "ws://node/exec/{}/{pod}/main?command=sh&command=-c&command={script}&output=1{flags}",
        site.namespace
    );
    let mut request = uri.into_client_request().expect("request");
    request.headers_mut().insert("sec-websocket-protocol", "v5.channel.k8s.io".parse().expect("header"));
    let (mut socket, response) = tokio_tungstenite::client_async(request, near).await.expect("handshake");
    assert_eq!(response.headers()["sec-websocket-protocol"], "v5.channel.k8s.io");
    if tty {
        let size = [&[4u8][..], br#"{"Width":100,"Height":40}"#].concat();
        socket.send(Message::binary(size)).await.expect("resize");
    }
    let (mut output, mut status, mut code) = (String::new(), serde_json::Value::Null, None);
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Binary(data) if data.first() == Some(&1) => {
                output.push_str(&String::from_utf8_lossy(&data[1..]))
            }
            Message::Binary(data) if data.first() == Some(&3) => {
                status = serde_json::from_slice(&data[1..]).expect("status")
            }
            Message::Close(frame) => code = frame.map(|f| f.code.into()),
            _ => {}
        }
    }
    (output, status, code)
}
