//! One site with two nodes in two network namespaces, real containers and kubectl: a small application through what happens
//! to applications. Needs root.

use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, real_node_possible, require, wait_for};
use tombolo_tests::site::{FIRST, IMAGE, Runtime, SECOND, TwoNodes, is_root};

const PATIENCE: Duration = Duration::from_secs(120);

const APPLICATION: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: ahoy}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {password: s3cret}
---
apiVersion: v1
kind: Service
metadata: {name: store}
spec: {clusterIP: None, selector: {app: store}, ports: [{port: 7000}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: store}
spec:
  serviceName: store
  selector: {matchLabels: {app: store}}
  template:
    metadata: {labels: {app: store}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: store
        image: IMAGE
        command: [sh, -c, "exec httpd -f -p 7000 -h /data"]
        readinessProbe: {tcpSocket: {port: 7000}, periodSeconds: 1}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Service
metadata: {name: back}
spec: {selector: {app: back}, ports: [{port: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: back}
spec:
  replicas: 2
  selector: {matchLabels: {app: back}}
  template:
    metadata: {labels: {app: back}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, effect: NoExecute, operator: Exists, tolerationSeconds: 2}
      - {key: node.kubernetes.io/not-ready, effect: NoExecute, operator: Exists, tolerationSeconds: 2}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: back}}}
      containers:
      - name: back
        image: IMAGE
        env: [{name: VERSION, value: one}, {name: GREETING, valueFrom: {configMapKeyRef: {name: settings, key: greeting}}}]
        command:
        - sh
        - -c
        - echo started; mkdir /www; echo "$GREETING $VERSION $(cat /keys/password) $HOSTNAME" > /www/index.html; exec httpd -f -p 8080 -h /www
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: keys, mountPath: /keys}]
      volumes: [{name: keys, secret: {secretName: keys}}]
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {type: NodePort, selector: {app: front}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: front}
spec:
  replicas: 2
  selector: {matchLabels: {app: front}}
  template:
    metadata: {labels: {app: front}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/unreachable, effect: NoExecute, operator: Exists, tolerationSeconds: 2}
      - {key: node.kubernetes.io/not-ready, effect: NoExecute, operator: Exists, tolerationSeconds: 2}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: front}}}
      containers:
      - name: front
        image: IMAGE
        # Asks the name server for the back end, and the back end for its page.
        command:
        - sh
        - -c
        - |
          mkdir -p /www/cgi-bin
          cat > /www/cgi-bin/page <<'END'
          #!/bin/sh
          echo "Content-type: text/plain"; echo
          back=$(nslookup back.default.svc.cluster.local | awk '/^Address/ {a = $2} END {print a}')
          printf 'GET /index.html HTTP/1.0\r\n\r\n' | nc -w 3 $back 8080 | tail -n 1
          END
          chmod +x /www/cgi-bin/page
          exec httpd -f -p 8080 -h /www
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
"#;

#[test]
fn an_application_lives_on_two_nodes_with_the_embedded_runtime() -> Result<()> {
    story(Runtime::Embedded)
}

#[test]
fn an_application_lives_on_two_nodes_with_containerd() -> Result<()> {
    if !real_node_possible() {
        eprintln!("SKIPPED: containerd is missing; `cargo xtask fixtures` installs it");
        return Ok(());
    }
    story(Runtime::Containerd)
}

fn story(runtime: Runtime) -> Result<()> {
    if !require(&[Fixture::Kubectl, Fixture::KubectlOld]) || !is_root() {
        return Ok(());
    }
    let mut site = TwoNodes::start(runtime)?;
    let kubectl = site.kubectl();
    kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE))?;
    for what in ["statefulset/store", "deployment/back", "deployment/front"] {
        kubectl.run(&["rollout", "status", what, "--timeout=120s"])?;
    }
    nodes_share_the_pods(&site)?;
    let scheme = match runtime {
        Runtime::Embedded => "tombolo://",
        Runtime::Containerd => "containerd://",
    };
    let runtimes = kubectl.run(&[
        "get",
        "nodes",
        "-o",
        "jsonpath={.items[*].status.nodeInfo.containerRuntimeVersion}",
    ])?;
    ensure!(runtimes.split_whitespace().filter(|r| r.starts_with(scheme)).count() == 2, "{runtimes}");
    let ids = kubectl.run(&[
        "get",
        "pods",
        "-o",
        "jsonpath={.items[*].status.containerStatuses[*].containerID}",
    ])?;
    ensure!(ids.split_whitespace().all(|id| id.starts_with(scheme)), "{ids}");

    // A page through every node's port, made with the name server, a ConfigMap and a Secret; from pods of both nodes.
    for node in [FIRST, SECOND] {
        let pods = names(&site, "app=back")?;
        wait_for("answers of both back ends", PATIENCE, || {
            let mut seen: Vec<String> = (0..12).filter_map(|_| page(&site, node).ok()).collect();
            seen.sort();
            seen.dedup();
            ensure!(seen.iter().all(|page| page.starts_with("ahoy one s3cret ")), "{seen:?}");
            ensure!(
                pods.iter().all(|pod| seen.iter().any(|page| page.ends_with(pod))),
                "{seen:?} of {pods:?}"
            );
            Ok(())
        })?;
    }

    // Logs and exec of a pod on the second node go through the tunnel that the node dialed.
    let far = pod_on(&site, "app=back", "second")?;
    ensure!(kubectl.run(&["logs", &far])?.contains("started"));
    ensure!(kubectl.run(&["exec", &far, "--", "cat", "/keys/password"])?.contains("s3cret"));
    ensure!(site.node_log().contains("reaches this node through its tunnel"), "{}", site.node_log());

    for release in [Fixture::Kubectl, Fixture::KubectlOld] {
        reached_into(&site, release).with_context(|| format!("with {release:?}"))?;
    }

    // What nodes and pods use, of both nodes.
    let top = wait_for("figures of both nodes", PATIENCE, || {
        let top = kubectl.run(&["top", "nodes", "--no-headers"])?;
        ensure!(top.contains("first") && top.contains("second") && !top.contains("unknown"), "{top}");
        Ok(top)
    })?;
    ensure!(top.lines().all(|line| !line.contains(" 0m ")), "machines at work use something: {top}");
    wait_for("figures of all pods", PATIENCE, || {
        let top =
            kubectl.run(&["top", "pods", "--no-headers", "-l", "app in (back,front)", "--containers"])?;
        let shown = names(&site, "app in (back,front)")?.iter().all(|pod| top.contains(pod.as_str()));
        ensure!(shown && top.lines().count() == 4 && top.contains("Mi"), "{top}");
        Ok(())
    })?;

    // Update, rollback, scale.
    kubectl.run(&["set", "env", "deployment/back", "VERSION=two"])?;
    kubectl.run(&["rollout", "status", "deployment/back", "--timeout=120s"])?;
    until_page(&site, "ahoy two ")?;
    kubectl.run(&["rollout", "undo", "deployment/back"])?;
    kubectl.run(&["rollout", "status", "deployment/back", "--timeout=120s"])?;
    until_page(&site, "ahoy one ")?;
    kubectl.run(&["scale", "deployment/back", "--replicas=4"])?;
    kubectl.run(&["rollout", "status", "deployment/back", "--timeout=120s"])?;
    ensure!(names(&site, "app=back")?.len() >= 4);

    // What the store wrote outlives its pod.
    kubectl.run(&["exec", "store-0", "--", "sh", "-c", "echo precious > /data/thing"])?;
    kubectl.run(&["delete", "pod", "store-0"])?;
    wait_for("the store to have what it wrote", PATIENCE, || {
        let thing = kubectl.run(&["exec", "store-0", "--", "cat", "/data/thing"])?;
        ensure!(thing.contains("precious"), "{thing}");
        Ok(())
    })?;

    // A node dies with its machine: its pods move, and the page stays.
    site.kill_second()?;
    kubectl.until(&["get", "node", "second"], "NotReady", PATIENCE)?;
    for app in ["back", "front"] {
        wait_for(&format!("{app} to run on the first node alone"), PATIENCE, || {
            let here = ready_on(&site, app, "first")?;
            ensure!(here >= if app == "back" { 4 } else { 2 }, "{here} are ready there");
            Ok(())
        })?;
    }
    until_page(&site, "ahoy one ")?;

    // It comes back, is trusted again, and keeps nothing that moved away.
    site.revive_second()?;
    kubectl.run(&["wait", "node/second", "--for=condition=Ready", "--timeout=60s"])?;
    wait_for("no pod to be left over", PATIENCE, || {
        let pods = kubectl.run(&["get", "pods", "-l", "app=back"])?;
        ensure!(!pods.contains("Terminating") && pods.lines().count() == 5, "{pods}");
        Ok(())
    })
}

/// Ends a kubectl that goes on by itself.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const TALKER: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: talker}
spec:
  nodeName: second
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    command:
    - sh
    - -c
    - |
      if [ ! -e /state/before ]; then touch /state/before; echo first life; exit 3; fi
      for n in 1 2 3 4 5; do echo line $n; done
      mkdir /www; echo served > /www/index.html; exec httpd -f -p 8080 -h /www
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    volumeMounts: [{name: state, mountPath: /state}]
  - name: reader
    image: IMAGE
    stdin: true
    command: [sh, -c, "while read line; do echo got $line; done; sleep 100000"]
  volumes: [{name: state, emptyDir: {}}]
"#;

/// Logs, exec, attach, cp and port-forward of a pod on the second node, which is reached through its tunnel.
fn reached_into(site: &TwoNodes, release: Fixture) -> Result<()> {
    let kubectl = site.kubectl_of(release);
    let is = |args: &[&str], wanted: &str| {
        let out = kubectl.output_with_input(args, "")?;
        ensure!(out == wanted, "kubectl {}: {out:?}, not {wanted:?}", args.join(" "));
        Ok(())
    };
    kubectl.apply(&TALKER.replace("IMAGE", IMAGE))?;
    kubectl.run(&["wait", "pod/talker", "--for=condition=Ready", "--timeout=120s"])?;

    let log = ["logs", "talker", "-c", "main"];
    is(&log, "line 1\nline 2\nline 3\nline 4\nline 5\n")?;
    is(&[&log[..], &["--previous"]].concat(), "first life\n")?;
    is(&[&log[..], &["--tail=2"]].concat(), "line 4\nline 5\n")?;
    is(&[&log[..], &["--tail=1", "--since=1h"]].concat(), "line 5\n")?;
    wait_for("the lines to be older than a second", PATIENCE, || {
        is(&[&log[..], &["--since=1s"]].concat(), "")
    })?;
    let followed = site.scratch().join("followed");
    let mut follow = kubectl.command(&[&log[..], &["-f", "--tail=1"]].concat());
    let _follow = Running(follow.stdin(Stdio::null()).stdout(File::create(&followed)?).spawn()?);
    let shown = |wanted: &str| {
        wait_for("the log to be followed", PATIENCE, || {
            let text = std::fs::read_to_string(&followed)?;
            ensure!(text == wanted, "it shows {text:?}");
            Ok(())
        })
    };
    shown("line 5\n")?;
    kubectl.run(&["exec", "talker", "-c", "main", "--", "sh", "-c", "echo news > /proc/1/fd/1"])?;
    shown("line 5\nnews\n")?;

    is(&["exec", "talker", "-c", "main", "--", "cat", "/etc/hostname"], "talker\n")?;
    let input = "there\nand back\n";
    let echoed = kubectl.output_with_input(&["exec", "-i", "talker", "-c", "main", "--", "cat"], input)?;
    ensure!(echoed == input, "{echoed:?}");
    let failed = kubectl.run(&["exec", "talker", "-c", "main", "--", "sh", "-c", "exit 7"]);
    let failed = failed.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(failed.contains("exit code 7") && failed.contains("exit status: 7"), "{failed:?}");

    let attached = ["attach", "-i", "talker", "-c", "reader"];
    let mut attach = kubectl.command(&attached);
    let heard = site.scratch().join("heard");
    let attach = attach.stdin(Stdio::piped()).stdout(File::create(&heard)?).stderr(Stdio::null()).spawn()?;
    let mut attach = Running(attach);
    attach.0.stdin.as_mut().context("a pipe")?.write_all(b"one\ntwo\n")?;
    wait_for("what the reader answers", PATIENCE, || {
        let text = std::fs::read_to_string(&heard)?;
        ensure!(text.contains("got one") && text.contains("got two"), "{text:?}");
        Ok(())
    })?;
    drop(attach);

    let (there, back) = (site.scratch().join("there"), site.scratch().join("back"));
    // More than one buffer of anything on the way.
    let content: Vec<u8> = (0..1_000_000u32).flat_map(|n| n.to_le_bytes()).collect();
    std::fs::write(&there, &content)?;
    let _ = std::fs::remove_file(&back);
    kubectl.run(&["cp", "-c", "main", &there.display().to_string(), "talker:/tmp/file"])?;
    kubectl.run(&["cp", "-c", "main", "talker:/tmp/file", &back.display().to_string()])?;
    ensure!(std::fs::read(&back)? == content, "what came back is not what was sent");

    let printed = site.scratch().join("forward");
    let mut forward = kubectl.command(&["port-forward", "pod/talker", ":8080"]);
    let _forward = Running(forward.stdout(File::create(&printed)?).stderr(Stdio::null()).spawn()?);
    let address = wait_for("a port", PATIENCE, || {
        // "Forwarding from 127.0.0.1:41234 -> 8080"
        let text = std::fs::read_to_string(&printed)?;
        text.split_whitespace().nth(2).map(str::to_owned).with_context(|| format!("it says {text:?}"))
    })?;
    // More than once: a connection that ended must not take the tunnel with it.
    for _ in 0..3 {
        let output = Command::new("ip")
            .args(["netns", "exec", site.first(), "curl", "-sf", "-m", "10", &format!("http://{address}/")])
            .output()?;
        ensure!(output.stdout == b"served\n", "{:?}", String::from_utf8_lossy(&output.stdout));
    }
    kubectl.run(&["delete", "pod", "talker"]).map(drop)
}

fn page(site: &TwoNodes, node: &str) -> Result<String> {
    let url = format!("http://{node}:30080/cgi-bin/page");
    let output = Command::new("ip")
        .args(["netns", "exec", site.first(), "curl", "-sf", "-m", "5", &url])
        .output()
        .context("could not start curl")?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(output.status.success() && !text.is_empty(), "{url} does not answer");
    Ok(text)
}

fn until_page(site: &TwoNodes, wanted: &str) -> Result<()> {
    wait_for(&format!("a page that says {wanted:?}"), PATIENCE, || {
        let text = page(site, FIRST)?;
        ensure!(text.starts_with(wanted), "it says {text:?}");
        Ok(())
    })
}

fn names(site: &TwoNodes, selector: &str) -> Result<Vec<String>> {
    let out =
        site.kubectl().run(&["get", "pods", "-l", selector, "-o", "jsonpath={.items[*].metadata.name}"])?;
    Ok(out.split_whitespace().map(str::to_owned).collect())
}

fn pod_on(site: &TwoNodes, selector: &str, node: &str) -> Result<String> {
    let field = format!("--field-selector=spec.nodeName={node}");
    let out = site.kubectl().run(&["get", "pods", "-l", selector, &field, "-o", "name"])?;
    Ok(out.lines().next().with_context(|| format!("no pod of {selector} on {node}"))?.to_owned())
}

fn ready_on(site: &TwoNodes, app: &str, node: &str) -> Result<usize> {
    let (selector, field) = (format!("app={app}"), format!("--field-selector=spec.nodeName={node}"));
    let ready = r#"jsonpath={range .items[*]}{.metadata.deletionTimestamp}{.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}"#;
    let out = site.kubectl().run(&["get", "pods", "-l", &selector, &field, "-o", ready])?;
    Ok(out.lines().filter(|line| *line == "True").count())
}

fn nodes_share_the_pods(site: &TwoNodes) -> Result<()> {
    for app in ["back", "front"] {
        for node in ["first", "second"] {
            ensure!(ready_on(site, app, node)? == 1, "one pod of {app} on each node");
        }
    }
    Ok(())
}
