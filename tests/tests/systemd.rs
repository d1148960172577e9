//! The units of `packaging/systemd` under a real systemd, booted in namespaces of its own. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Process, cargo_binary, require, wait_for};
use tombolo_tests::book::{commands, root};
use tombolo_tests::site::is_root;

const SYSTEMD: &str = "/usr/lib/systemd/systemd";
const PATIENCE: Duration = Duration::from_secs(60);
const HUB: &str = "--kubeconfig /var/lib/tombolo/hub/admin.kubeconfig";
const SITE: &str = "--kubeconfig /var/lib/tombolo/site/admin.kubeconfig";

/// Makes a machine of its own around the first process: what units write goes into `$DIR`, and services of the machine
/// that would touch the kernel or devices of the host are masked.
const INIT: &str = r#"
set -e
ip link set lo up
ip link add uplink type veth peer name nowhere
ip addr add 192.0.2.10/24 dev uplink
ip link set uplink up
ip link set nowhere up
ip route add default dev uplink
mount -t proc proc /proc
mkdir -p $DIR/lib $DIR/etc $DIR/etc.work
mount -t overlay -o lowerdir=/etc,upperdir=$DIR/etc,workdir=$DIR/etc.work overlay /etc
mount --bind $DIR/lib /var/lib
mount -t tmpfs tmpfs /var/log
mount --bind $DIR/bin /usr/local/bin
rm -rf /etc/systemd/system
mkdir -p /etc/systemd/system /etc/tombolo
for name in udevd udev-trigger sysctl modules-load tmpfiles-setup-dev tmpfiles-setup sysusers random-seed update-utmp \
    machine-id-commit networkd resolved timesyncd logind; do
    ln -s /dev/null /etc/systemd/system/systemd-$name.service
done
printf '[Unit]\nDescription=Nothing but what is asked for\nDefaultDependencies=no\n' >/etc/systemd/system/quiet.target
mount -t tmpfs tmpfs /run
groups=$(ls /sys/fs/cgroup)
mount -t tmpfs tmpfs /sys/fs/cgroup
for group in $groups; do
    mkdir /sys/fs/cgroup/$group
    case $group in
        systemd) mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd ;;
        unified) mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified ;;
        *) mount -t cgroup -o $group cgroup /sys/fs/cgroup/$group ;;
    esac
done
mkdir -p $DIR/tmp
mount --bind $DIR/tmp /tmp
# As systemd finds it on a machine: what it mounts for a unit is seen by that unit.
mount --make-rshared /
exec env -i PATH=$PATH container=tombolo $SYSTEMD --system --unit=quiet.target --log-target=null --show-status=no
"#;

/// A machine that runs systemd. Everything on it ends with it.
struct Booted {
    _dir: tempfile::TempDir,
    group: String,
    outside: Process,
    /// systemd's number outside.
    pid: u32,
}

impl Booted {
    fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let group = format!("tombolo-booted-{}", std::process::id());
        let init = dir.path().join("init");
        std::fs::write(&init, INIT)?;
        std::fs::create_dir(dir.path().join("bin"))?;
        let program = dir.path().join("bin/tombolo");
        let strip = Command::new("strip").arg("-o").arg(&program).arg(cargo_binary("tombolo")).output()?;
        ensure!(strip.status.success(), "{}", String::from_utf8_lossy(&strip.stderr));
        // Copies: a checkout below /tmp is not seen there.
        for unit in std::fs::read_dir(root().join("packaging/systemd"))? {
            let unit = unit?;
            std::fs::copy(unit.path(), dir.path().join("bin").join(unit.file_name()))?;
        }
        // The groups of this machine are the root of its own view of them.
        let enter = format!(
            r#"set -e
            for root in /sys/fs/cgroup/*/; do
                mkdir -p ${{root}}{group}
                if [ -e $root/cpuset.cpus ]; then
                    cat $root/cpuset.cpus >${{root}}{group}/cpuset.cpus
                    cat $root/cpuset.mems >${{root}}{group}/cpuset.mems
                fi
                echo $$ >${{root}}{group}/cgroup.procs
            done
            exec unshare --mount --pid --cgroup --ipc --uts --net --fork --kill-child --propagation slave bash {}"#,
            init.display()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &enter]).env("DIR", dir.path()).env("SYSTEMD", SYSTEMD);
        let outside = Process::start("systemd", command, dir.path())?;
        let mut booted = Self { _dir: dir, group, outside, pid: 0 };
        let children = format!("/proc/{0}/task/{0}/children", booted.outside.pid());
        booted.pid = wait_for("systemd to start", PATIENCE, || {
            booted.outside.alive()?;
            let pid = std::fs::read_to_string(&children)?.trim().parse()?;
            let program = std::fs::read_link(format!("/proc/{pid}/exe"))?;
            ensure!(program == Path::new(SYSTEMD), "{}: {}", program.display(), booted.outside.log());
            Ok(pid)
        })?;
        wait_for("systemd to answer", PATIENCE, || booted.sh("systemctl list-units >/dev/null"))?;
        Ok(booted)
    }

    /// Types a line there; a failure is an error with what it printed.
    fn sh(&self, line: &str) -> Result<String> {
        let kubectl = Fixture::Kubectl.must();
        let tools = kubectl.parent().context("a program is in a folder")?.display().to_string();
        let path = format!("/usr/local/bin:{tools}:/usr/sbin:/usr/bin:/sbin:/bin");
        let output = Command::new("nsenter")
            .args(["-t", &self.pid.to_string(), "-a", "bash", "-c", line])
            .env("PATH", path)
            .env_remove("KUBECONFIG")
            .output()?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{line}: {out}{err}");
        Ok(out.trim_end().to_owned())
    }

    /// Installs a unit with its flags, and starts it: when that is done, it answers.
    fn enable(&self, name: &str, environment: &str) -> Result<()> {
        self.sh(&format!(
            "install -m 644 /usr/local/bin/tombolo-{name}.service /etc/systemd/system/ && install -D -m 600 /dev/stdin /etc/tombolo/{name}.env <<< '{environment}' \
             && systemctl daemon-reload && systemctl start tombolo-{name} && systemctl is-active tombolo-{name}"
        ))
        .with_context(|| self.journal(name))
        .map(drop)
    }

    fn journal(&self, name: &str) -> String {
        self.sh(&format!(
            "systemctl status tombolo-{name}; journalctl -u tombolo-{name} --no-pager | tail -30; true"
        ))
        .unwrap_or_else(|error| error.to_string())
    }

    fn property(&self, name: &str, property: &str) -> Result<String> {
        self.sh(&format!("systemctl show -P {property} tombolo-{name}"))
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        self.outside.kill();
        // The first process of a machine takes all others with it; their groups are empty then.
        for entry in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let folder = entry.path().join(&self.group);
            let gone = wait_for("a group to be empty", Duration::from_secs(10), || remove_group(&folder));
            assert!(gone.is_ok() || std::thread::panicking(), "{gone:?}");
        }
    }
}

/// Groups below first.
fn remove_group(folder: &Path) -> Result<()> {
    let below: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.is_dir())
        .collect();
    below.iter().try_for_each(|folder| remove_group(folder))?;
    if folder.exists() { Ok(std::fs::remove_dir(folder)?) } else { Ok(()) }
}

/// The commands of a page, typed one after the other at a machine where they mean what they say.
fn type_page(machine: &Booted, page: &str) -> Result<()> {
    let text = std::fs::read_to_string(root().join(page))?;
    let typed = commands(&text);
    ensure!(!typed.is_empty(), "{page} has no commands");
    for typed in typed {
        // Only its folders are this machine's own.
        let command = typed.command.replace("/backup/", "/var/lib/backup/");
        machine
            .sh(&format!("cd /var/lib/new && {command}"))
            .with_context(|| format!("{page}, line {}", typed.line))?;
    }
    Ok(())
}

#[test]
fn the_units_run_under_systemd_and_containers_outlive_them() -> Result<()> {
    if !require(&[Fixture::Kubectl]) || !is_root() {
        return Ok(());
    }
    if !Path::new(SYSTEMD).exists() {
        assert!(std::env::var_os("CI").is_none(), "systemd is missing in CI");
        eprintln!("SKIPPED: no systemd here");
        return Ok(());
    }
    let machine = Booted::start()?;
    hub(&machine)?;
    site(&machine)?;
    node(&machine)?;
    agent(&machine)
}

/// It has no rights but to its folder and port; the pages about backups and upgrades hold for it.
fn hub(machine: &Booted) -> Result<()> {
    machine.enable("hub", "TOMBOLO_HUB_ARGS=--listen 192.0.2.10:6443 --lease-seconds 5")?;
    // No waiting: it was started when it answered.
    machine.sh(&format!("tombolo {HUB} token create"))?;
    let pid = machine.property("hub", "MainPID")?;
    let user = machine.sh(&format!("stat -c %u /proc/{pid}"))?;
    ensure!(user != "0", "the hub runs as root");
    machine.sh(&format!("kubectl {HUB} create configmap kept --from-literal=a=1"))?;
    // The program that the machine is upgraded to.
    machine.sh("mkdir /var/lib/new && cp /usr/local/bin/tombolo /var/lib/new/")?;
    for page in ["docs/operate/backup.md", "docs/operate/upgrade.md"] {
        type_page(machine, page)?;
        machine.sh(&format!("kubectl {HUB} get configmap kept")).with_context(|| machine.journal("hub"))?;
    }
    Ok(())
}

/// Its containers are not its own: they go on while it is restarted, stopped or killed.
fn site(machine: &Booted) -> Result<()> {
    machine.enable("site", "TOMBOLO_SITE_ARGS=--name harbour --listen 192.0.2.10:7443")?;
    let kubectl = |line: &str| machine.sh(&format!("kubectl {SITE} {line}"));
    kubectl("create deployment web --image=tombolo.dev/hello:1 --replicas=2")?;
    kubectl("rollout status deploy/web --timeout=60s").with_context(|| machine.journal("site"))?;
    let pods = "get pods -o jsonpath='{range .items[*]}{.metadata.uid} {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}'";
    let before = kubectl(pods)?;
    // Programs of containers, by their numbers.
    let programs = || machine.sh("pgrep -x hello | sort");
    let running = programs()?;
    ensure!(before.lines().count() == 2 && running.lines().count() == 2, "{before}\n{running}");
    for line in [
        "systemctl restart tombolo-site",
        "systemctl stop tombolo-site; systemctl is-active tombolo-site; systemctl start tombolo-site",
        "systemctl kill --kill-whom=main -s KILL tombolo-site",
    ] {
        let first = machine.property("site", "MainPID")?;
        machine.sh(line)?;
        ensure!(programs()? == running, "after `{line}` other containers run:\n{}", machine.journal("site"));
        wait_for("another process of the site", PATIENCE, || {
            let now = machine.property("site", "MainPID")?;
            ensure!(now != first && machine.property("site", "ActiveState")? == "active", "still {now}");
            Ok(())
        })?;
        kubectl("wait --for=condition=Ready pods --all --timeout=60s")
            .with_context(|| machine.journal("site"))?;
        ensure!(kubectl(pods)? == before && programs()? == running, "after `{line}`: {}", kubectl(pods)?);
    }
    Ok(())
}

/// A second machine of the site, as far as the network goes. The token is needed once.
fn node(machine: &Booted) -> Result<()> {
    machine.sh(
        "ip netns add camera && ip link add camera0 type veth peer name eth0 netns camera \
         && ip addr add 198.51.100.1/24 dev camera0 && ip link set camera0 up && ip -n camera link set lo up \
         && ip -n camera addr add 198.51.100.2/24 dev eth0 && ip -n camera link set eth0 up \
         && ip -n camera route add default via 198.51.100.1 \
         && mkdir /etc/systemd/system/tombolo-node.service.d \
         && printf '[Service]\\nNetworkNamespacePath=/run/netns/camera\\n' >/etc/systemd/system/tombolo-node.service.d/place.conf",
    )?;
    let line = machine.sh(&format!("tombolo {SITE} token create --node"))?;
    let join = line.split_once("--join").context("a line for nodes")?.1;
    machine.enable("node", &format!("TOMBOLO_NODE_ARGS=--name camera-7 --join{join}"))?;
    let ready = format!("kubectl {SITE} wait --for=condition=Ready node/camera-7 --timeout=60s");
    machine.sh(&ready).with_context(|| machine.journal("node"))?;
    let first = machine.property("node", "MainPID")?;
    machine.sh(
        "echo 'TOMBOLO_NODE_ARGS=--name camera-7' >/etc/tombolo/node.env && systemctl restart tombolo-node",
    )?;
    ensure!(machine.property("node", "MainPID")? != first, "it was not restarted");
    machine.sh(&ready).with_context(|| machine.journal("node"))?;
    machine
        .sh("systemctl stop tombolo-node && tombolo wipe --netns camera --data-dir /var/lib/tombolo/node")
        .map(drop)
}

/// Ties the site's cluster to the hub, with a kubeconfig that only root may read, as a user that systemd makes up.
fn agent(machine: &Booted) -> Result<()> {
    let ticket = machine.sh(&format!("tombolo {HUB} token create -o json"))?;
    let ticket: serde_json::Value = serde_json::from_str(&ticket)?;
    let part = |key: &str| ticket[key].as_str().unwrap_or_default().to_owned();
    machine.sh("install -m 600 /var/lib/tombolo/site/admin.kubeconfig /etc/tombolo/member.kubeconfig")?;
    let environment = format!(
        "TOMBOLO_AGENT_ARGS=--hub {} --name madrid\nTOMBOLO_TOKEN={}\nTOMBOLO_CA_HASH={}",
        part("url"),
        part("token"),
        part("caHash")
    );
    machine.enable("agent", &environment)?;
    let heard = format!("kubectl {HUB} wait --for=condition=Ready site/madrid --timeout=5s");
    wait_for("madrid to be heard", PATIENCE, || machine.sh(&heard))
        .with_context(|| machine.journal("agent"))?;
    // What it keeps is its own: it needs neither token nor hash again.
    machine.sh(&format!(
        "echo 'TOMBOLO_AGENT_ARGS=--hub {} --name madrid' >/etc/tombolo/agent.env",
        part("url")
    ))?;
    machine.sh("systemctl restart tombolo-agent")?;
    let user = machine.property("agent", "MainPID")?;
    ensure!(machine.sh(&format!("stat -c %u /proc/{user}"))? != "0", "the agent runs as root");
    wait_for("madrid to be heard again", PATIENCE, || machine.sh(&heard))
        .with_context(|| machine.journal("agent"))?;
    machine.sh("systemctl stop tombolo-agent tombolo-site tombolo-hub && tombolo wipe --data-dir /var/lib/tombolo/site")?;
    ensure!(machine.sh("pgrep -x hello || echo none")? == "none", "containers are left");
    Ok(())
}
