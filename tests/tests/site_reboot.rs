//! The power goes and comes back, and there is no network: everything that runs here is here again within seconds. A reboot
//! is emulated: all processes are killed, cgroups, network namespace, links and run-time folders are gone, and the kernel
//! has another boot id. The site's own address comes only after its containers run. Needs root.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Kubectl, cargo_binary, require, wait_for};
use tombolo_tests::machine::Machine;
use tombolo_tests::site::{IMAGE, is_root, link_up};

const PATIENCE: Duration = Duration::from_secs(120);
/// The goal is three seconds, for a program built for use. One built for tests is several times slower.
const READY_AGAIN: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 3 });
const PODS: usize = 10;
const ADDRESS: &str = "10.81.0.1/24";

const APPLICATION: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {index.html: "ahoy"}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 10
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: IMAGE
        command: [sh, -c, "cp /settings/index.html /scratch/; echo $HOSTNAME >> /data/starts; exec httpd -f -p 8080 -h /scratch"]
        readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
        livenessProbe: {tcpSocket: {port: 8080}, periodSeconds: 5}
        volumeMounts:
        - {name: settings, mountPath: /settings}
        - {name: scratch, mountPath: /scratch}
        - {name: data, mountPath: /data}
      volumes:
      - {name: settings, configMap: {name: settings}}
      - {name: scratch, emptyDir: {}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
"#;

#[test]
fn after_a_power_cut_ten_pods_are_ready_within_seconds_without_a_network() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    let mut machine = Machine::new("ttr", Some(ADDRESS))?;
    let outcome = story(&mut machine);
    machine.end(outcome)
}

/// Starts the site in a boot of its own: another boot id, and nothing in memory.
fn boot(machine: &mut Machine, number: u32) -> Result<()> {
    let id = machine.dir().join("boot_id");
    std::fs::write(&id, format!("{number:08x}-0000-4000-8000-000000000000\n"))?;
    let script = format!(
        "mount --bind {} /proc/sys/kernel/random/boot_id && mkdir -p /run/tombolo && mount -t tmpfs none /run/tombolo && exec \"$@\"",
        id.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "boot"]).arg(cargo_binary("tombolo"));
    command.args(machine.site_args("10.81.0.1:6443"));
    machine.start(command)
}

fn story(machine: &mut Machine) -> Result<()> {
    boot(machine, 1)?;
    machine.until_ready()?;
    machine.import_image()?;
    let (kubectl, volumes) = (machine.kubectl(), machine.data().join("volumes"));
    wait_for("the application", PATIENCE, || kubectl.apply(&APPLICATION.replace("IMAGE", IMAGE)))?;
    wait_for("ten pods", PATIENCE, || ready(&kubectl, 0))?;
    page(machine.space())?;

    // It comes back with nothing but loopback: whoever gives this machine its address is not there yet.
    machine.cut_power()?;
    let began = Instant::now();
    boot(machine, 2)?;
    wait_for("ten containers to run without an address", PATIENCE, || {
        machine.alive()?;
        let again = starts(&volumes).iter().filter(|starts| starts.lines().count() == 2).count();
        ensure!(again == PODS, "{again} started again");
        Ok(())
    })?;
    link_up(machine.space(), ADDRESS)?;
    machine.until_ready()?;
    wait_for("ten pods to be back", PATIENCE, || ready(&kubectl, 1))?;
    let took = began.elapsed();
    wait_for("a page through the Service", Duration::from_secs(5), || page(machine.space()))?;
    println!("    {PODS} pods were ready {:.2} s after the process started", took.as_secs_f64());
    ensure!(took <= READY_AGAIN, "it took {took:?}; at most {READY_AGAIN:?} is allowed here");
    // What a pod wrote to its volume before is still there.
    let starts = kubectl.run(&["exec", "web-3", "--", "cat", "/data/starts"])?;
    ensure!(starts.matches("web-3").count() == 2, "{starts}");
    Ok(())
}

/// What every pod wrote to its volume when it started.
fn starts(volumes: &Path) -> Vec<String> {
    let folders = std::fs::read_dir(volumes).into_iter().flatten().flatten();
    folders.filter_map(|folder| std::fs::read_to_string(folder.path().join("starts")).ok()).collect()
}

/// All pods are ready, and their containers were restarted this often: what the API remembers is not enough.
fn ready(kubectl: &Kubectl, restarts: usize) -> Result<()> {
    let line = r#"jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[*].restartCount}{"\n"}{end}"#;
    let pods = kubectl.run(&["get", "pods", "-o", line])?;
    let good = pods.lines().filter(|pod| *pod == format!("True {restarts}")).count();
    ensure!(good == PODS, "{good} are ready: {pods}");
    Ok(())
}

fn page(space: &str) -> Result<()> {
    let output = Command::new("ip")
        .args(["netns", "exec", space, "curl", "-sf", "-m", "2", "http://10.81.0.1:30080/index.html"])
        .output()
        .context("could not start curl")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success() && text.contains("ahoy"), "the Service says {text:?}");
    Ok(())
}
