//! The pod network of one node: a bridge, and a pair of links for each pod.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::thread;

use nix::sched::{CloneFlags, setns};
use thiserror::Error;

use crate::address::Subnet;
use crate::link::Links;

/// Leaves room for the overlay's own headers on an ordinary network.
const MTU: u32 = 1450;
const POD_LINK: &str = "eth0";

#[derive(Debug, Error)]
pub enum PodNetworkError {
    #[error("{action}: {source}")]
    Io { action: String, source: io::Error },
}

fn doing(action: impl Into<String>) -> impl FnOnce(io::Error) -> PodNetworkError {
    let action = action.into();
    move |source| PodNetworkError::Io { action, source }
}

/// The bridge that the pods of this node hang on, in the network namespace of the caller.
#[derive(Clone, Debug)]
pub struct PodNetwork {
    bridge: String,
    subnet: Subnet,
}

impl PodNetwork {
    /// Makes the bridge if it is not there, gives it the gateway's address, and lets the kernel forward.
    pub fn open(bridge: &str, subnet: Subnet) -> Result<PodNetwork, PodNetworkError> {
        let mut links = Links::open().map_err(doing("open netlink"))?;
        let index = links
            .add_bridge(bridge)
            .map_err(doing(format!("create bridge {bridge} (needs CAP_NET_ADMIN)")))?;
        links
            .add_address(index, subnet.gateway(), subnet.prefix())
            .map_err(doing("give the bridge its address"))?;
        links.up(index).map_err(doing("bring the bridge up"))?;
        if let Ok(Some(lo)) = links.index("lo") {
            let _ = links.up(lo);
        }
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(doing("set net.ipv4.ip_forward"))?;
        // Pods reach each other through the node on purpose (see `attach`): it must not tell them of a shorter way.
        for link in ["all", bridge] {
            let _ = fs::write(format!("/proc/sys/net/ipv4/conf/{link}/send_redirects"), "0");
        }
        // Node ports answer on the loopback address too.
        let _ = fs::write(format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet"), "1");
        Ok(PodNetwork { bridge: bridge.to_owned(), subnet })
    }

    /// Makes a network reachable for programs on the node itself even when the machine has no default route:
    /// service addresses are translated after routing has found a way for them.
    pub fn route_services(&self, network: Subnet) -> Result<(), PodNetworkError> {
        let mut links = Links::open().map_err(doing("open netlink"))?;
        let bridge = links.index(&self.bridge).map_err(doing("find the bridge"))?.unwrap_or_default();
        links
            .add_link_route(network.address(), network.prefix(), bridge)
            .map_err(doing("route the service network"))
    }

    pub fn subnet(&self) -> Subnet {
        self.subnet
    }

    /// Connects the network namespace of process `pid`. `name` identifies the pod; the same name replaces.
    ///
    /// The pod sees only the gateway as its neighbour. Traffic between two pods of a node thus passes the node's IP
    /// stack, where service addresses are translated back, whether or not bridges are filtered on this machine.
    pub fn attach(&self, name: &str, pid: u32, address: Ipv4Addr) -> Result<(), PodNetworkError> {
        let mut links = Links::open().map_err(doing("open netlink"))?;
        let host_end = link_name(name);
        links.delete(&host_end).map_err(doing("remove the pod's old link"))?;
        let index = links.add_veth(&host_end, POD_LINK, pid, MTU).map_err(doing("create the pod's link"))?;
        let bridge = links.index(&self.bridge).map_err(doing("find the bridge"))?.unwrap_or_default();
        links.set_master(index, bridge).map_err(doing("put the pod's link on the bridge"))?;
        links.hairpin(index).map_err(doing("let the pod reach itself"))?;
        links.up(index).map_err(doing("bring the pod's link up"))?;
        let gateway = self.subnet.gateway();
        inside(pid, move || {
            let mut links = Links::open()?;
            let lo = links.index("lo")?.unwrap_or(1);
            links.up(lo)?;
            let eth = links
                .index(POD_LINK)?
                .ok_or_else(|| io::Error::other("the pod's end of the link is missing"))?;
            links.add_address(eth, address, 32)?;
            links.up(eth)?;
            links.add_link_route(gateway, 32, eth)?;
            links.add_route(Ipv4Addr::UNSPECIFIED, 0, gateway, eth, false)
        })
        .map_err(doing("configure the pod's network"))
    }

    /// Removes a pod's link. It vanishes by itself with the pod's namespace; this is for what is left.
    pub fn detach(&self, name: &str) -> Result<(), PodNetworkError> {
        let mut links = Links::open().map_err(doing("open netlink"))?;
        links.delete(&link_name(name)).map_err(doing("remove the pod's link"))
    }

    /// Removes the bridge and every pod link on this machine that is in `pods`.
    pub fn destroy(bridge: &str, pods: &[String]) -> Result<(), PodNetworkError> {
        let mut links = Links::open().map_err(doing("open netlink"))?;
        for pod in pods {
            links.delete(&link_name(pod)).map_err(doing("remove a pod's link"))?;
        }
        links.delete(bridge).map_err(doing("remove the bridge"))
    }
}

/// Brings up the loopback of a namespace that has no other network.
pub fn loopback_up(pid: u32) -> Result<(), PodNetworkError> {
    inside(pid, || {
        let mut links = Links::open()?;
        let lo = links.index("lo")?.unwrap_or(1);
        links.up(lo)
    })
    .map_err(doing("bring up the pod's loopback"))
}

/// Interface names have at most 15 characters: a prefix and a hash of the pod.
fn link_name(pod: &str) -> String {
    // FNV-1a: stable across versions, unlike the standard library's hasher.
    let hash =
        pod.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("tmb{:010x}", hash >> 24)
}

/// Runs `act` in the network namespace of process `pid`, on a thread that ends afterwards: a namespace belongs to
/// a thread, and no other work may land on this one.
pub fn inside<T: Send + 'static>(
    pid: u32,
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let namespace = fs::File::open(format!("/proc/{pid}/ns/net"))?;
    let work = move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET)?;
        act()
    };
    let thread = thread::Builder::new().name("pod-netns".into()).spawn(work)?;
    thread.join().map_err(|_| io::Error::other("the thread in the pod's network panicked"))?
}
