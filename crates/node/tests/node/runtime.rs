//! The embedded runtime without an API server.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tombolo_node::runtime::{ContainerPhase, ContainerSpec, ExecRequest, Runtime, SandboxSpec};

use crate::machine::{self, Machine, eventually};

crate::tests![a_container_runs_logs_answers_exec_and_its_end_is_recorded];

async fn a_container_runs_logs_answers_exec_and_its_end_is_recorded() {
    let machine = Machine::new("runtime");
    let runtime = machine.runtime().await;
    let uid = "11111111-0000-0000-0000-000000000001".to_owned();
    let sandbox = SandboxSpec {
        uid: uid.clone(),
        name: "p".into(),
        namespace: "d".into(),
        hostname: "p".into(),
        ..Default::default()
    };
    let state = runtime.start_sandbox(&sandbox).await.expect("sandbox");
    assert_eq!(state.addresses.len(), 1);
    let log = machine.dir().join("pods").join(&uid).join("logs/main/0.log");
    let spec = ContainerSpec {
        pod: uid.clone(),
        name: "main".into(),
        image: machine::BUSYBOX.into(),
        command: vec!["sh".into(), "-c".into(), "echo hello; echo oops >&2; sleep 1000".into()],
        log: log.clone(),
        ..Default::default()
    };
    runtime.start_container(&spec).await.expect("container");
    let pod = runtime.pod(&uid).await.expect("state");
    let id = pod.containers[0].id.clone();
    assert!(matches!(pod.containers[0].phase, ContainerPhase::Running { .. }));

    let request = ExecRequest { command: vec!["hostname".into()], stdout: true, ..Default::default() };
    let mut session = runtime.exec(&uid, &id, &request).await.expect("exec");
    let mut text = String::new();
    session.stdout.take().expect("stdout").read_to_string(&mut text).await.expect("read");
    assert_eq!((text.as_str(), session.done.await), ("p\n", Ok(Ok(0))));

    eventually(Duration::from_secs(5), || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.contains("stdout F hello") && text.contains("stderr F oops")
    })
    .await;

    runtime.signal(&uid, &id, 9).await.expect("kill");
    let mut changes = runtime.changes();
    loop {
        let pod = runtime.pod(&uid).await.expect("state");
        if let ContainerPhase::Exited { code, .. } = pod.containers[0].phase {
            assert_eq!(code, 137);
            break;
        }
        changes.recv().await.expect("a change");
    }
    runtime.stop_sandbox(&uid).await.expect("stop");
    runtime.remove_pod(&uid).await.expect("remove");
    tombolo_net::PodNetwork::destroy("tbrruntime", &[]).expect("bridge");
    machine.assert_clean();
}
