//! The relay: one TUN device per host, one thread per device, and one clock that delivers when it is time.

use std::collections::{BinaryHeap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::{Link, Namespace, NamespaceError};

/// Packets in flight over the whole WAN; what comes on top is dropped, as by a router with a full queue.
const IN_FLIGHT: usize = 50_000;
/// Leaves room for a tunnel's own headers below the usual 1500.
const MTU: u16 = 1400;

#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error("cannot create the WAN device of {host}")]
    Device { host: String, source: std::io::Error },
}

/// A WAN between namespaces. Hosts are known by their address. Ends with the process or when dropped.
pub struct Relay {
    shared: Arc<Shared>,
}

struct Shared {
    hosts: Mutex<HashMap<Ipv4Addr, Arc<SyncDevice>>>,
    links: Mutex<Links>,
    queue: Mutex<BinaryHeap<Packet>>,
    arrived: Condvar,
    serial: AtomicU64,
    carried: AtomicU64,
    ended: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct Links {
    default: Link,
    between: HashMap<(Ipv4Addr, Ipv4Addr), Link>,
    random: u64,
    /// Bytes by source and destination.
    delivered: HashMap<(Ipv4Addr, Ipv4Addr), u64>,
}

struct Packet {
    due: Instant,
    /// Keeps packets that are due at the same moment in order.
    serial: u64,
    to: Ipv4Addr,
    bytes: Vec<u8>,
}

impl Relay {
    /// `seed` makes losses repeatable.
    pub fn start(default: Link, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            hosts: Mutex::default(),
            links: Mutex::new(Links { default, random: seed | 1, ..Links::default() }),
            queue: Mutex::default(),
            arrived: Condvar::new(),
            serial: AtomicU64::new(0),
            carried: AtomicU64::new(0),
            ended: false.into(),
        });
        let clock = shared.clone();
        std::thread::spawn(move || clock.deliver());
        Self { shared }
    }

    /// Plugs a namespace into the WAN, with device `wan0` and this address in a /24.
    pub fn plug(&self, namespace: &Namespace, address: Ipv4Addr) -> Result<(), RelayError> {
        let device = namespace.run(move || device("wan0", address))?;
        self.add(namespace.name(), address, device)
    }

    /// Plugs the caller's own namespace in, with a device of this name.
    pub fn plug_here(&self, name: &str, address: Ipv4Addr) -> Result<(), RelayError> {
        self.add("this machine", address, device(name, address))
    }

    fn add(
        &self,
        host: &str,
        address: Ipv4Addr,
        device: std::io::Result<SyncDevice>,
    ) -> Result<(), RelayError> {
        let device = device.map_err(|source| RelayError::Device { host: host.to_owned(), source })?;
        let device = Arc::new(device);
        self.shared.hosts.lock().insert(address, device.clone());
        let shared = self.shared.clone();
        std::thread::spawn(move || shared.collect(&device));
        Ok(())
    }

    /// How the link between two hosts behaves from now on. Packets in flight are not touched, unless it is cut.
    pub fn set(&self, a: Ipv4Addr, b: Ipv4Addr, link: Link) {
        self.shared.links.lock().between.insert(ordered(a, b), link);
    }

    /// Bytes of IP packets that hosts have sent so far, those that were lost included.
    pub fn carried(&self) -> u64 {
        self.shared.carried.load(Ordering::Relaxed)
    }

    /// Bytes of IP packets that went from one host to another so far; what was lost or cut off is not among them.
    pub fn delivered(&self, from: Ipv4Addr, to: Ipv4Addr) -> u64 {
        self.shared.links.lock().delivered.get(&(from, to)).copied().unwrap_or(0)
    }

    /// Cuts or mends all links of one host.
    pub fn cut(&self, host: Ipv4Addr, cut: bool) {
        let others: Vec<_> =
            self.shared.hosts.lock().keys().copied().filter(|other| *other != host).collect();
        let mut links = self.shared.links.lock();
        for other in others {
            let link = links.get(host, other);
            links.between.insert(ordered(host, other), Link { up: !cut, ..link });
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.hosts.lock().clear();
        self.shared.arrived.notify_all();
    }
}

fn device(name: &str, address: Ipv4Addr) -> std::io::Result<SyncDevice> {
    DeviceBuilder::new().name(name).ipv4(address, 24, None).mtu(MTU).build_sync()
}

fn ordered(a: Ipv4Addr, b: Ipv4Addr) -> (Ipv4Addr, Ipv4Addr) {
    (a.min(b), a.max(b))
}

impl Links {
    fn get(&self, a: Ipv4Addr, b: Ipv4Addr) -> Link {
        self.between.get(&ordered(a, b)).copied().unwrap_or(self.default)
    }

    /// A xorshift generator: losses need to look random, no more.
    fn loses(&mut self, share: f64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64 <= share && share > 0.0
    }
}

impl Shared {
    /// Reads what one host sends, until its device is gone.
    fn collect(&self, device: &SyncDevice) {
        let mut buffer = vec![0; 65_536];
        while let Ok(length) = device.recv(&mut buffer) {
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let Some((from, to)) = addresses(&buffer[..length]) else { continue };
            self.carried.fetch_add(length as u64, Ordering::Relaxed);
            let link = {
                let mut links = self.links.lock();
                let link = links.get(from, to);
                if !link.up || links.loses(link.loss) {
                    continue;
                }
                *links.delivered.entry((from, to)).or_default() += length as u64;
                link
            };
            let serial = self.serial.fetch_add(1, Ordering::Relaxed);
            let packet =
                Packet { due: Instant::now() + link.delay, serial, to, bytes: buffer[..length].to_vec() };
            let mut queue = self.queue.lock();
            if queue.len() < IN_FLIGHT {
                queue.push(packet);
                self.arrived.notify_one();
            }
        }
    }

    /// Delivers each packet when it is due.
    fn deliver(&self) {
        let mut queue = self.queue.lock();
        while !self.ended.load(Ordering::Relaxed) {
            let now = Instant::now();
            match queue.peek().map(|packet| packet.due) {
                Some(due) if due <= now => {
                    let Some(packet) = queue.pop() else { continue };
                    parking_lot::MutexGuard::unlocked(&mut queue, || {
                        let device = self.hosts.lock().get(&packet.to).cloned();
                        if let Some(device) = device {
                            // A host that does not read loses its packets, as on any network.
                            let _ = device.send(&packet.bytes);
                        }
                    });
                }
                Some(due) => {
                    self.arrived.wait_for(&mut queue, due - now);
                }
                None => {
                    self.arrived.wait_for(&mut queue, Duration::from_millis(500));
                }
            }
        }
    }
}

/// Source and destination of an IPv4 packet; others are not carried.
fn addresses(packet: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    if packet.len() < 20 || packet[0] >> 4 != 4 {
        return None;
    }
    let part = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    Some((part(12), part(16)))
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Packet {}

impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The heap gives the largest first, so the earliest must be the largest.
impl Ord for Packet {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.serial).cmp(&(self.due, self.serial))
    }
}
