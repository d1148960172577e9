//! A hub and one site that is tied to it, each a host of its own, with a link between them that can be cut.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use tombolo_testkit::{Host, Lan, Member, busybox_archive, wait_for};
use tombolo_wan::Link;

/// The site's name at the hub.
pub const SITE: &str = "harbour";
/// An image that sleeps, and has busybox in it.
pub const IMAGE: &str = "test.local/app:1";
/// The lease that the hub gives, in seconds.
pub const LEASE: u64 = 5;
const PATIENCE: Duration = Duration::from_secs(60);

/// Dropped in the order written: first what uses the others.
pub struct Tied {
    pub site: Member,
    pub hub: Member,
    pub site_host: Host,
    pub hub_host: Host,
    pub lan: Lan,
    _dir: tempfile::TempDir,
}

impl Tied {
    /// `prefix` and `network` as of [`Lan::start`].
    pub fn start(prefix: &str, network: u8) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut lan = Lan::start(prefix, [198, 18, network], dir.path(), Link::default())?;
        let image = busybox_archive(dir.path(), IMAGE, &["/bin/sleep", "100000"])?;
        let (hub_host, site_host) = (lan.host("hub")?, lan.host(SITE)?);
        let hub = hub_host.tombolo("hub", &["--lease-seconds", &LEASE.to_string()])?;
        let site = site_host.tombolo("site", &["--node", "--name", SITE])?;
        let data = site_host.dir.join("site").display().to_string();
        site.tombolo(&["image", "import", &image.display().to_string(), "--data-dir", &data])?;
        site.join(&hub, SITE, &[])?;
        let tied = Self { site, hub, site_host, hub_host, lan, _dir: dir };
        tied.ready()?;
        Ok(tied)
    }

    /// Waits until the hub hears the site.
    pub fn ready(&self) -> Result<()> {
        wait_for("the site to be heard", PATIENCE, || {
            let site = format!("site/{SITE}");
            self.hub.kubectl().run(&["wait", "--for=condition=Ready", &site, "--timeout=5s"])
        })
        .map(drop)
    }

    /// Cuts the link, and waits until the hub takes the site for lost.
    pub fn cut(&self) -> Result<()> {
        self.lan.cut_between(&self.hub_host, &self.site_host);
        self.hub.kubectl().until(&["get", "node", SITE], "NotReady", PATIENCE).map(drop)
    }

    /// The link is back, and the hub hears the site again.
    pub fn mend(&self) -> Result<()> {
        self.lan.mend_between(&self.hub_host, &self.site_host);
        self.ready()
    }

    /// Bytes so far: to the site, and from it.
    pub fn bytes(&self) -> (u64, u64) {
        let (hub, site) = (self.hub_host.address, self.site_host.address);
        (self.lan.relay.delivered(hub, site), self.lan.relay.delivered(site, hub))
    }

    /// All containers of the site, a line each; a restarted or replaced one has another line.
    pub fn pods(&self) -> Result<String> {
        let line = "jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}{'\\n'}{end}";
        let all = self.site.kubectl().run(&["get", "pods", "-o", line])?;
        let mut lines: Vec<&str> = all.lines().collect();
        lines.sort_unstable();
        Ok(lines.join("\n"))
    }

    /// Requests for Works that the hub has answered since it started, by verb.
    pub fn requests_for_works(&self) -> Result<BTreeMap<String, u64>> {
        let metrics = self.hub.kubectl().run(&["get", "--raw", "/metrics"])?;
        let ours = |line: &&str| line.starts_with("apiserver_request_total{") && line.contains("\"works\"");
        let mut verbs: BTreeMap<String, u64> = BTreeMap::new();
        for line in metrics.lines().filter(ours) {
            let verb = line.split("verb=\"").nth(1).and_then(|rest| rest.split('"').next());
            let count = line.split_whitespace().last().context("a number")?;
            *verbs.entry(verb.context("a verb")?.to_owned()).or_default() += count.parse::<u64>()?;
        }
        Ok(verbs)
    }
}
