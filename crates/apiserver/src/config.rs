//! What can be set when a server starts.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tombolo_store::{Durability, Store};

use crate::pods::{NodeStreams, PodConnector};
use crate::registry::resource::Resource;
use crate::registry::write;
use crate::upgrade::UpgradeHandler;

pub struct Config {
    pub store: Arc<dyn Store>,
    /// More DNS names and addresses for the serving certificate.
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    /// Where clients inside the cluster reach this server: the endpoint of Service `default/kubernetes`. The listener's
    /// own address when unset.
    pub advertise: Option<SocketAddr>,
    /// Several servers may share this store: each adds its address to the Service for as long as it lives, instead
    /// of taking the Service over.
    pub replicated: bool,
    pub service_cidr: Cidr,
    pub node_ports: RangeInclusive<u16>,
    pub cluster_domain: String,
    /// Issuer of service-account tokens, and their default audience.
    pub issuer: String,
    /// How pods are reached for logs, exec and port forwarding; the default dials the kubelet on the pod's node.
    pub pods: Option<Arc<dyn PodConnector>>,
    /// Nodes that are reached without dialing them; asked first.
    pub nodes: Option<Arc<dyn NodeStreams>>,
    /// Paths on which an authorized client may take over the connection.
    pub upgrades: HashMap<String, Arc<dyn UpgradeHandler>>,
    pub limits: Limits,
    /// How long the rules of a definition may run for one object.
    pub rule_time: Duration,
    /// How often a watch that asked for bookmarks is told how far it is.
    pub bookmark_every: Duration,
    /// Groups and resources that programs write, in numbers. Who owns which of their fields is not kept until somebody
    /// applies one: it would be a third of their bytes.
    pub written_by_programs: &'static [(&'static str, &'static str)],
    /// Groups, resources and the label of those of their objects that a program makes from what is kept elsewhere. Their writes cost no
    /// sync: after a crash the program makes good what is missing.
    pub made_by_programs: &'static [(&'static str, &'static str, &'static str)],
}

/// How much may be asked. What does not fit is answered with 429. Administrators are exempt.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Reads and writes of everybody together that are being answered at one moment.
    pub reads: usize,
    pub writes: usize,
    /// Reads, and writes, that wait for one of these to end, and for how long.
    pub waiting: usize,
    pub patience: Duration,
    /// Requests of one user, in the long run and at once.
    pub per_second: u32,
    pub burst: u32,
}

/// An IPv4 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    pub base: Ipv4Addr,
    pub bits: u8,
}

impl Config {
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            names: Vec::new(),
            addresses: Vec::new(),
            advertise: None,
            replicated: false,
            service_cidr: Cidr { base: Ipv4Addr::new(10, 96, 0, 0), bits: 16 },
            node_ports: 30000..=32767,
            cluster_domain: "cluster.local".into(),
            issuer: "https://kubernetes.default.svc.cluster.local".into(),
            pods: None,
            nodes: None,
            upgrades: HashMap::new(),
            limits: Limits {
                reads: 400,
                writes: 200,
                waiting: 5000,
                patience: Duration::from_secs(10),
                per_second: 1000,
                burst: 2000,
            },
            rule_time: Duration::from_secs(5),
            bookmark_every: Duration::from_secs(60),
            written_by_programs: &[],
            made_by_programs: &[],
        }
    }

    pub(crate) fn is_written_by_programs(&self, resource: &Resource) -> bool {
        self.written_by_programs.iter().any(|(group, plural)| resource.is(group, plural))
    }

    /// How a write of this object, or its removal, is kept.
    pub(crate) fn durability(&self, resource: &Resource, object: &Value) -> Durability {
        let labels = object.pointer("/metadata/labels");
        let made = self.made_by_programs.iter().any(|(group, plural, label)| {
            resource.is(group, plural) && labels.is_some_and(|l| l.get(label).is_some())
        });
        // That somebody wants it gone is known nowhere else; and one that came back with that wish would have it carried out again.
        if made && !write::is_deleting(object) { Durability::Volatile } else { resource.durability }
    }
}

impl Cidr {
    pub fn size(&self) -> u32 {
        1u32 << (32 - u32::from(self.bits)).min(31)
    }

    /// The address that belongs to the API server's own Service.
    pub fn first(&self) -> IpAddr {
        self.nth(1).into()
    }

    pub fn nth(&self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base).wrapping_add(n))
    }

    /// The position of an address in this network.
    pub fn index(&self, address: Ipv4Addr) -> Option<u32> {
        let offset = u32::from(address).checked_sub(u32::from(self.base))?;
        (offset < self.size()).then_some(offset)
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl std::str::FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text} is not an IPv4 network such as 10.96.0.0/16");
        let (base, bits) = text.split_once('/').ok_or_else(bad)?;
        let (base, bits) = (base.parse().map_err(|_| bad())?, bits.parse().map_err(|_| bad())?);
        if !(8..=30).contains(&bits) {
            return Err(format!("{text}: between 8 and 30 bits, please"));
        }
        Ok(Self { base, bits })
    }
}
