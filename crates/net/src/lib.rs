//! The network of a site, as one node makes it.
//!
//! - [`PodNetwork`]: a bridge in the node's network namespace, an address and a pair of links for every pod;
//! - [`Addresses`]: which pod has which address, a pure table;
//! - [`ServiceProxy`]: service addresses and node ports, translated by nftables rules that are replaced as a whole;
//! - [`Overlay`]: pods reach pods on other nodes of the site;
//! - [`Plugins`]: in place of all that, the network plugins of a cluster the node was joined to;
//! - [`DnsServer`] over a [`Zone`]: names of services and pods, answered on the node;
//! - [`listen()`]: ports on addresses that the machine may not have yet.
//!
//! Everything talks to the kernel by netlink directly: no `ip`, `nft` or `iptables` program is needed. Everything
//! happens in the network namespace of the calling process, so several nodes can live on one machine.

mod address;
mod cni;
mod dns;
mod link;
mod listen;
mod netlink;
mod nft;
mod overlay;
mod pods;
mod proxy;
mod service;

pub use address::{Addresses, Exhausted, Subnet, SubnetError};
pub use cni::{CniError, Plugins, PodIdentity};
pub use dns::{DnsError, DnsServer, Zone};
pub use listen::listen;
pub use nft::probe;
pub use overlay::{Overlay, Peer};
pub use pods::{PodNetwork, PodNetworkError, inside, loopback_up};
pub use proxy::ServiceProxy;
pub use service::HostPort;
