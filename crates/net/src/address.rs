//! Which pod has which address: a pure table over one subnet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::str::FromStr;

use thiserror::Error;

/// An IPv4 network, written `10.42.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subnet {
    base: u32,
    prefix: u8,
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not an IPv4 network such as 10.42.0.0/24 (prefix 1 to 30)")]
pub struct SubnetError(String);

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Subnet, SubnetError> {
        let parsed = text.split_once('/').and_then(|(address, prefix)| {
            let prefix: u8 = prefix.parse().ok().filter(|prefix| (1..=30).contains(prefix))?;
            let address: Ipv4Addr = address.parse().ok()?;
            Some(Subnet { base: u32::from(address) & mask(prefix), prefix })
        });
        parsed.ok_or_else(|| SubnetError(text.to_owned()))
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address(), self.prefix)
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX << (32 - u32::from(prefix))
}

impl Subnet {
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.base)
    }

    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// The node's own address in the network: the first one.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 1)
    }

    pub fn contains(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask(self.prefix) == self.base
    }

    fn last(&self) -> u32 {
        (self.base | !mask(self.prefix)) - 1
    }
}

/// Addresses given to pods. An address that was given back is the last to be given again, so that a stale
/// connection does not reach a stranger.
#[derive(Debug)]
pub struct Addresses {
    subnet: Subnet,
    by_owner: BTreeMap<String, Ipv4Addr>,
    used: BTreeSet<u32>,
    next: u32,
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error("no free pod address left in {0}: delete pods or give the node a larger --pod-cidr")]
pub struct Exhausted(Subnet);

impl Addresses {
    pub fn new(subnet: Subnet) -> Addresses {
        Addresses { subnet, by_owner: BTreeMap::new(), used: BTreeSet::new(), next: subnet.base + 2 }
    }

    /// Remembers an address a pod already has (found on disk after a restart). False if it is taken or not ours.
    pub fn claim(&mut self, owner: &str, address: Ipv4Addr) -> bool {
        let number = u32::from(address);
        if self.by_owner.get(owner) == Some(&address) {
            return true;
        }
        let ours =
            self.subnet.contains(address) && number > self.subnet.base + 1 && number <= self.subnet.last();
        if !ours || self.used.contains(&number) {
            return false;
        }
        self.release(owner);
        self.used.insert(number);
        self.by_owner.insert(owner.to_owned(), address);
        self.next = self.next.max(number + 1);
        true
    }

    /// The owner's address, a new one if it has none.
    pub fn allocate(&mut self, owner: &str) -> Result<Ipv4Addr, Exhausted> {
        if let Some(address) = self.by_owner.get(owner) {
            return Ok(*address);
        }
        let (first, last) = (self.subnet.base + 2, self.subnet.last());
        let from = if self.next > last { first } else { self.next };
        let free = (from..=last)
            .chain(first..from)
            .find(|n| !self.used.contains(n))
            .ok_or(Exhausted(self.subnet))?;
        self.next = free + 1;
        self.used.insert(free);
        self.by_owner.insert(owner.to_owned(), Ipv4Addr::from(free));
        Ok(Ipv4Addr::from(free))
    }

    pub fn release(&mut self, owner: &str) {
        if let Some(address) = self.by_owner.remove(owner) {
            self.used.remove(&u32::from(address));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_two_pods_ever_share_an_address(steps in proptest::collection::vec((0u8..12, any::<bool>()), 0..200)) {
            let subnet: Subnet = "10.1.0.0/28".parse().expect("valid");
            let mut addresses = Addresses::new(subnet);
            let mut model: BTreeMap<String, Ipv4Addr> = BTreeMap::new();
            for (pod, take) in steps {
                let owner = format!("pod{pod}");
                if take {
                    let got = addresses.allocate(&owner).expect("12 pods fit into 13 addresses");
                    prop_assert!(subnet.contains(got) && got != subnet.gateway());
                    prop_assert!(model.iter().all(|(other, address)| *other == owner || *address != got));
                    model.insert(owner, got);
                } else {
                    addresses.release(&owner);
                    model.remove(&owner);
                }
            }
        }
    }

    #[test]
    fn a_full_subnet_says_so() {
        let mut addresses = Addresses::new("10.1.0.0/30".parse().expect("valid"));
        assert_eq!(addresses.allocate("a"), Ok(Ipv4Addr::new(10, 1, 0, 2)));
        assert!(addresses.allocate("b").is_err());
        addresses.release("a");
        assert!(addresses.allocate("b").is_ok());
    }

    #[test]
    fn an_address_found_on_disk_is_kept() {
        let mut addresses = Addresses::new("10.1.0.0/24".parse().expect("valid"));
        assert!(addresses.claim("a", Ipv4Addr::new(10, 1, 0, 9)));
        assert!(!addresses.claim("b", Ipv4Addr::new(10, 1, 0, 9)));
        assert!(!addresses.claim("b", Ipv4Addr::new(10, 2, 0, 9)));
        assert_eq!(addresses.allocate("a"), Ok(Ipv4Addr::new(10, 1, 0, 9)));
    }
}
