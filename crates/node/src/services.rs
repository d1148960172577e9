//! Follows the services of the site: keeps address translation, names and environment variables in step.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tombolo_net::{DnsServer, ServiceProxy, Zone};

use crate::context::Context;
use crate::disk;

/// Changes that come together are applied together.
const SETTLE: Duration = Duration::from_millis(20);
const RETRY: Duration = Duration::from_secs(2);
/// What is on disk follows at most this often: endpoints come and go with every probe.
const KEEP: Duration = Duration::from_secs(10);

/// What is kept on disk, so that services work after a reboot without the API.
#[derive(Default, Serialize, Deserialize)]
struct Kept {
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
}

pub(crate) struct Follow {
    pub ctx: Arc<Context>,
    pub proxy: Option<ServiceProxy>,
    pub zone: watch::Sender<Arc<Zone>>,
    pub shutdown: CancellationToken,
}

impl Follow {
    fn file(&self) -> PathBuf {
        self.ctx.data_dir.join("services.json")
    }

    pub async fn run(mut self) {
        let services: Api<Service> = Api::all(self.ctx.client.clone());
        let slices: Api<EndpointSlice> = Api::all(self.ctx.client.clone());
        let services = watcher(services, watcher::Config::default());
        let slices = watcher(slices, watcher::Config::default());
        tokio::pin!(services, slices);
        let kept: Kept =
            fs::read(self.file()).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
        let mut known = Table::new(kept.services);
        let mut known_slices = Table::new(kept.slices);
        let mut host_ports = self.ctx.host_ports.subscribe();
        let mut due: Option<tokio::time::Instant> = Some(tokio::time::Instant::now());
        let mut keep: Option<tokio::time::Instant> = None;
        let mut kept_at: Option<tokio::time::Instant> = None;
        loop {
            let now = tokio::time::Instant::now();
            let soon = now + SETTLE;
            tokio::select! {
                () = self.shutdown.cancelled() => {
                    if keep.is_some() {
                        self.keep(&known, &known_slices).await;
                    }
                    return;
                }
                Some(event) = services.next() => {
                    if known.event(event).await {
                        due = due.or(Some(soon));
                    }
                }
                Ok(()) = host_ports.changed() => due = due.or(Some(soon)),
                Some(event) = slices.next() => {
                    if known_slices.event(event).await {
                        due = due.or(Some(soon));
                    }
                }
                () = tokio::time::sleep_until(due.unwrap_or(soon)), if due.is_some() => {
                    due = match self.apply(&known, &known_slices) {
                        Ok(()) => {
                            keep = keep.or(Some(kept_at.map_or(now, |at| now.max(at + KEEP))));
                            None
                        }
                        Err(error) => {
                            tracing::warn!(%error, "service rules could not be set; trying again");
                            Some(tokio::time::Instant::now() + RETRY)
                        }
                    };
                }
                () = tokio::time::sleep_until(keep.unwrap_or(soon)), if keep.is_some() => {
                    self.keep(&known, &known_slices).await;
                    (keep, kept_at) = (None, Some(now));
                }
            }
        }
    }

    fn apply(&mut self, services: &Table<Service>, slices: &Table<EndpointSlice>) -> std::io::Result<()> {
        let services: Vec<Service> = services.objects.values().cloned().collect();
        let slices: Vec<EndpointSlice> = slices.objects.values().cloned().collect();
        let zone = Zone::build(&self.ctx.cluster_domain, &services, &slices);
        self.zone.send_if_modified(|old| {
            let differs = **old != zone;
            if differs {
                *old = Arc::new(zone);
            }
            differs
        });
        *self.ctx.services.write() = Arc::new(services.clone());
        if let Some(proxy) = &mut self.proxy {
            let host_ports: Vec<_> = self.ctx.host_ports.borrow().values().flatten().cloned().collect();
            proxy.apply(&services, &slices, &host_ports)?;
        }
        Ok(())
    }

    async fn keep(&self, services: &Table<Service>, slices: &Table<EndpointSlice>) {
        let services = services.objects.values().cloned().collect();
        let slices = slices.objects.values().cloned().collect();
        let (file, kept) = (self.file(), Kept { services, slices });
        let write = move || disk::replace_if_changed(&file, &serde_json::to_vec(&kept)?, 0o644);
        if let Ok(Err(error)) = tokio::task::spawn_blocking(write).await {
            tracing::warn!(%error, "services could not be kept for a start without the API");
        }
    }
}

/// Objects by name; during a new list the old ones stay until it is complete.
struct Table<K> {
    objects: BTreeMap<String, K>,
    listing: BTreeMap<String, K>,
}

impl<K: ResourceExt + Clone> Table<K> {
    fn new(objects: Vec<K>) -> Table<K> {
        let objects = objects.into_iter().map(|o| (key(&o), slim(o))).collect();
        Table { objects, listing: BTreeMap::new() }
    }

    /// True if the objects changed.
    async fn event(&mut self, event: Result<watcher::Event<K>, watcher::Error>) -> bool {
        match event {
            Ok(watcher::Event::Init) => self.listing.clear(),
            Ok(watcher::Event::InitApply(object)) => drop(self.listing.insert(key(&object), slim(object))),
            Ok(watcher::Event::InitDone) => {
                self.objects = std::mem::take(&mut self.listing);
                return true;
            }
            Ok(watcher::Event::Apply(object)) => {
                self.objects.insert(key(&object), slim(object));
                return true;
            }
            Ok(watcher::Event::Delete(object)) => return self.objects.remove(&key(&object)).is_some(),
            Err(error) => {
                tracing::debug!(%error, "a watch on services broke");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        false
    }
}

fn key<K: ResourceExt>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// What no rule needs is not kept: it changes often and fills memory and disk.
fn slim<K: ResourceExt>(mut object: K) -> K {
    let meta = object.meta_mut();
    meta.managed_fields = None;
    meta.annotations = None;
    meta.resource_version = None;
    object
}

/// Answers names on the node's bridge; where the port is taken, pods use the machine's own servers instead.
pub(crate) async fn serve_names(
    address: IpAddr,
    zone: watch::Receiver<Arc<Zone>>,
    shutdown: CancellationToken,
) {
    let upstream: Vec<IpAddr> = crate::resolver::host_resolv_conf()
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver ")?.trim().parse().ok())
        .collect();
    loop {
        match DnsServer::start(SocketAddr::new(address, 53), zone.clone(), upstream.clone()).await {
            Ok(server) => {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = server.run() => {}
                }
            }
            Err(error) => tracing::warn!(%error, "names of the site are not answered; trying again"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}
