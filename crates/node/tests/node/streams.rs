//! Logs, commands, copies and forwarded ports, with today's kubectl and with 1.30.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tombolo_testkit::{Fixture, Kubectl, require};

use crate::machine::{Site, upstream};

crate::tests![kubectl_reaches_into_a_pod, logs_follow_and_show_the_previous_container];

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
                kubectl.run_with_input(&[&["-n", &namespace], args].concat(), input)
            };
            assert!(run(&["exec", "web", "--", "echo", "a b"], "").expect("exec").starts_with("a b\n"));
            // kubectl 1.30 complains on stderr about an empty first message of kube-apiserver's.
            let piped = run(&["exec", "-i", "web", "--", "cat"], "through\nthe pipe\n").expect("stdin");
            assert!(piped.starts_with("through\nthe pipe\n"), "{piped}");
            let big = "x".repeat(300_000);
            assert!(run(&["exec", "-i", "web", "--", "cat"], &big).expect("large").starts_with(&big));
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

            let mut forward = kubectl
                .command(&["-n", &namespace, "port-forward", "pod/web", ":8080"])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("port-forward");
            let mut line = String::new();
            // Kept open: kubectl goes on printing and would die of a closed pipe.
            let mut printed = BufReader::new(forward.stdout.take().expect("stdout"));
            printed.read_line(&mut line).expect("line");
            // "Forwarding from 127.0.0.1:41234 -> 8080"
            let address =
                line.split_whitespace().nth(2).unwrap_or_else(|| panic!("unexpected: {line:?}")).to_owned();
            for _ in 0..3 {
                let mut stream = TcpStream::connect(&address).expect("connect");
                stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("request");
                stream.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).expect("answer");
                assert!(answer.ends_with("served\n"), "{answer:?}");
            }
            let _ = forward.kill();
            let _ = forward.wait();
        };
        tokio::task::spawn_blocking(work).await.expect("kubectl works");
    }
    site.tear_down().await;
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
