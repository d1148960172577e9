//! Pods reach pods on other nodes: one VXLAN link per node, and a route to every other node's part of the network.
//!
//! Nothing is learned or asked: the hardware address of a node's end follows from its IP address, so that every
//! node can write down all others as soon as it knows their addresses.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;

use crate::address::Subnet;
use crate::link::Links;

const PORT: u16 = 4789;
const NETWORK: u32 = 0x746d62;

/// Another node: where it is and which pod addresses it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    pub node: Ipv4Addr,
    pub pods: Subnet,
}

/// This node's end of the overlay.
pub struct Overlay {
    link: String,
    local: Ipv4Addr,
    pods: Subnet,
    peers: BTreeMap<Ipv4Addr, Peer>,
}

fn hardware_address(node: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = node.octets();
    // Locally administered, unicast.
    [0x02, 0x74, a, b, c, d]
}

impl Overlay {
    /// Makes the link in the caller's network namespace, or takes the one that is there, if it is for this address.
    pub fn open(link: &str, local: Ipv4Addr, pods: Subnet) -> io::Result<Overlay> {
        let mut links = Links::open()?;
        if links.hardware_address(link)?.is_some_and(|there| there != hardware_address(local)) {
            links.delete(link)?;
        }
        let index = links.add_vxlan(link, NETWORK, local, PORT, hardware_address(local))?;
        // The subnet's first address belongs to nobody else: it is the node's name on the overlay.
        links.add_address(index, pods.address(), 32)?;
        links.up(index)?;
        Ok(Overlay { link: link.to_owned(), local, pods, peers: BTreeMap::new() })
    }

    /// The node has another address: the link is made anew for it, with the routes it had.
    pub fn move_to(&mut self, local: Ipv4Addr) -> io::Result<()> {
        if local == self.local {
            return Ok(());
        }
        let peers: Vec<Peer> = self.peers.values().copied().collect();
        *self = Overlay::open(&self.link, local, self.pods)?;
        self.set_peers(&peers)
    }

    /// Makes the routes match the peers; what is right already is not touched.
    pub fn set_peers(&mut self, peers: &[Peer]) -> io::Result<()> {
        let wanted: BTreeMap<Ipv4Addr, Peer> =
            peers.iter().filter(|p| p.node != self.local).map(|p| (p.node, *p)).collect();
        if wanted == self.peers {
            return Ok(());
        }
        let mut links = Links::open()?;
        let index = links
            .index(&self.link)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the overlay link is gone"))?;
        for gone in self.peers.values().filter(|p| wanted.get(&p.node) != Some(p)) {
            links.delete_route(gone.pods.address(), gone.pods.prefix())?;
        }
        for peer in wanted.values().filter(|p| self.peers.get(&p.node) != Some(p)) {
            let mac = hardware_address(peer.node);
            let their_end = peer.pods.address();
            links.add_neighbour(index, true, peer.node, mac)?;
            links.add_neighbour(index, false, their_end, mac)?;
            links.add_route(peer.pods.address(), peer.pods.prefix(), their_end, index, true)?;
        }
        self.peers = wanted;
        Ok(())
    }

    pub fn destroy(link: &str) -> io::Result<()> {
        Links::open()?.delete(link)
    }
}
