//! Follows the other nodes of the site and keeps the overlay's routes to their pods.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;
use tombolo_net::{Overlay, Peer};

use crate::context::Context;

/// Where a node is and which pods it has, if it says both.
fn peer(node: &Node) -> Option<Peer> {
    let pods = node.spec.as_ref()?.pod_cidr.as_ref()?.parse().ok()?;
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let address = addresses.iter().find(|a| a.type_ == "InternalIP")?.address.parse().ok()?;
    Some(Peer { node: address, pods })
}

/// The address of this node's end, of those of its machine.
pub(crate) fn local(addresses: &[String]) -> Option<Ipv4Addr> {
    addresses.iter().find_map(|address| address.parse().ok())
}

pub(crate) async fn follow(ctx: Arc<Context>, mut overlay: Overlay, shutdown: CancellationToken) {
    let nodes = watcher(Api::<Node>::all(ctx.client.clone()), watcher::Config::default());
    tokio::pin!(nodes);
    let mut known: BTreeMap<String, Peer> = BTreeMap::new();
    let mut listing: BTreeMap<String, Peer> = BTreeMap::new();
    let mut addresses = ctx.host_addresses.changes();
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            _ = addresses.changed() => {
                let own = local(&addresses.borrow_and_update());
                if let Some(Err(error)) = own.map(|own| overlay.move_to(own)) {
                    tracing::warn!(%error, "the network between nodes has the machine's old address");
                }
                continue;
            }
            event = nodes.next() => event,
        };
        let note = |table: &mut BTreeMap<String, Peer>, node: &Node| match peer(node)
            .filter(|_| node.name_any() != ctx.node_name)
        {
            Some(peer) => drop(table.insert(node.name_any(), peer)),
            None => drop(table.remove(&node.name_any())),
        };
        match event {
            None => return,
            // Routes stay while the API cannot be asked.
            Some(Err(error)) => {
                tracing::debug!(%error, "the watch on nodes broke");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Some(Ok(watcher::Event::Init)) => listing.clear(),
            Some(Ok(watcher::Event::InitApply(node))) => note(&mut listing, &node),
            Some(Ok(watcher::Event::InitDone)) => known = std::mem::take(&mut listing),
            Some(Ok(watcher::Event::Apply(node))) => note(&mut known, &node),
            Some(Ok(watcher::Event::Delete(node))) => drop(known.remove(&node.name_any())),
        }
        let peers: Vec<Peer> = known.values().copied().collect();
        if let Err(error) = overlay.set_peers(&peers) {
            tracing::warn!(%error, "routes to the other nodes' pods could not be set");
        }
    }
}
