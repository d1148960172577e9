//! The node is killed at random moments while pods come and go: nothing may leak, and the API shows the truth.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::machine::{Machine, SMALL_SUBNET, Site, condition};

crate::tests![killed_at_random_moments_the_node_leaks_nothing, wiped_while_pods_start_nothing_is_left];

fn lines(program: &str, args: &[&str]) -> Vec<String> {
    let output = Command::new(program).args(args).output().expect(program);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// The node as a process of its own, so that it can be killed for real.
pub struct Victim(Child);

impl Victim {
    pub fn start(site: &Site) -> Victim {
        let program = std::env::current_exe().expect("the test program");
        let mut command = Command::new(program);
        command.arg("run-node").arg(site.kubeconfig()).arg(site.machine.dir()).arg(site.machine.subnet);
        Victim(command.stdin(Stdio::null()).spawn().expect("a node process"))
    }

    pub fn kill(mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn killed_at_random_moments_the_node_leaks_nothing() {
    // So few addresses that those of one round would be missed in the next.
    let mut machine = Machine::new("churn");
    machine.subnet = SMALL_SUBNET;
    let Some(mut site) = Site::start_on(machine, "churn").await else { return };
    let rules = || lines("nft", &["list", "ruleset"]);
    // Those of the API server's own Service.
    let complete = || rules().iter().any(|rule| rule.contains("dnat to"));
    crate::machine::eventually(Duration::from_secs(30), complete).await;
    let rules_at_first = rules();
    site.halt().await;
    // The same moments in every run; TOMBOLO_CHURN is a seed for others.
    let seed = std::env::var("TOMBOLO_CHURN").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("    seed {seed}");
    let mut random: u64 = seed;
    let mut next = move |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    const ROUNDS: usize = 8;
    for round in 0..ROUNDS {
        let victim = Victim::start(&site);
        for index in 0..3 {
            site.create(
                &format!("p{round}-{index}"),
                json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]}),
            )
            .await;
        }
        if round > 0 {
            for index in 0..2 {
                let name = format!("p{}-{index}", round - 1);
                let _ = site.pods().delete(&name, &DeleteParams::default()).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50 + next(1500))).await;
        victim.kill();
    }
    site.boot().await;
    let start = Instant::now();
    loop {
        let pods = site.pods().list(&ListParams::default()).await.expect("pods").items;
        let settled = pods
            .iter()
            .all(|pod| pod.metadata.deletion_timestamp.is_none() && condition(pod, "Ready") == Some("True"));
        if settled && pods.len() == ROUNDS + 2 {
            break;
        }
        let odd = |pod: &&k8s_openapi::api::core::v1::Pod| {
            pod.metadata.deletion_timestamp.is_some() || condition(pod, "Ready") != Some("True")
        };
        let shown = || serde_json::to_string_pretty(&pods.iter().filter(odd).collect::<Vec<_>>());
        assert!(start.elapsed() < Duration::from_secs(120), "not settled: {:?}", shown());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let folders = || std::fs::read_dir(site.machine.dir().join("pods")).expect("pods").count();
    crate::machine::eventually(Duration::from_secs(60), || folders() == 10).await;
    let links = lines("ip", &["-o", "link"]);
    let pod_links = links.iter().filter(|line| line.contains(": tmb")).count();
    assert_eq!(pod_links, 10, "one link per pod:\n{links:#?}");
    let dir = site.machine.dir().to_string_lossy().into_owned();
    let shims = std::fs::read_dir("/proc").expect("proc").flatten().filter(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(&format!("{dir}/bin/shim"))
    });
    assert_eq!(shims.count(), 10, "one shim per pod");
    assert_eq!(pod_cgroups(&site), 10, "one cgroup per pod");
    // All other addresses are free: three more pods, and the network is full.
    for index in 0..3 {
        let name = format!("more-{index}");
        site.create(&name, json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]})).await;
        site.ready(&name).await;
    }
    let pods = site.pods().list(&ListParams::default()).await.expect("pods").items;
    let addresses: std::collections::BTreeSet<_> =
        pods.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect();
    assert_eq!(addresses.len(), 13, "an address for each: {addresses:?}");
    for pod in site.pods().list(&ListParams::default()).await.expect("pods").items {
        site.delete(&pod.metadata.name.unwrap_or_default()).await;
    }
    crate::machine::eventually(Duration::from_secs(60), || folders() == 0).await;
    assert_eq!(pod_cgroups(&site), 0, "cgroups are left");
    assert_eq!(rules(), rules_at_first, "rules are left");
    let links = lines("ip", &["-o", "link"]);
    assert!(!links.iter().any(|line| line.contains(": tmb")), "links are left:\n{links:#?}");
    site.tear_down().await;
}

/// Of the controller that has most.
fn pod_cgroups(site: &Site) -> usize {
    let groups = tombolo_testkit::control_groups(site.machine.dir());
    let pods = |group: &std::path::PathBuf| {
        let folders = std::fs::read_dir(group).into_iter().flatten().flatten();
        folders.filter(|entry| entry.file_name().to_string_lossy().starts_with("pod")).count()
    };
    groups.iter().map(pods).max().unwrap_or(0)
}

/// The owner gives the machine to another use at a bad moment: the node is killed while it starts pods, and nobody starts
/// it again.
async fn wiped_while_pods_start_nothing_is_left() {
    let Some(mut site) = Site::start("wipe").await else { return };
    site.halt().await;
    for round in 0..6_u64 {
        let victim = Victim::start(&site);
        for index in 0..6 {
            let name = format!("w{round}-{index}");
            site.create(&name, json!({"containers": [{"name": "main", "command": ["sleep", "1000"]}]})).await;
        }
        // Until the first is being started, and then a little further each time.
        let pods = site.machine.dir().join("pods");
        crate::machine::eventually(Duration::from_secs(30), || {
            std::fs::read_dir(&pods).is_ok_and(|pods| pods.count() > 0)
        })
        .await;
        tokio::time::sleep(Duration::from_millis(round * 40)).await;
        victim.kill();
        tombolo_node::Node::destroy(site.machine.dir()).await.expect("destroy");
        site.machine.assert_clean();
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        site.pods().delete_collection(&now, &Default::default()).await.expect("deleted");
    }
    site.tear_down().await;
}

/// `run-node KUBECONFIG DIR SUBNET`: what the victim is.
pub async fn run_node(kubeconfig: &str, dir: &str, subnet: &str) {
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig).expect("kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("config");
    let client = kube::Client::try_from(config).expect("client");
    let _node = crate::machine::start_node(
        client,
        std::path::Path::new(dir),
        subnet,
        &Machine::program(),
        &tombolo_node::Network::Own,
        &Default::default(),
        &Default::default(),
    )
    .await;
    std::future::pending::<()>().await;
}
