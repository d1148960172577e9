//! Where this machine is reached: at the addresses it was given, or at one that is found out, and looked for again: a
//! machine starts its pods before whoever gives it an address is there, and moves to another network.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::machine;

/// Nothing is sent for a look, so it may be often.
const LOOK: Duration = Duration::from_secs(2);

pub(crate) struct HostAddresses {
    /// Nobody said which: the machine is asked.
    found: bool,
    current: watch::Sender<Arc<[String]>>,
}

impl HostAddresses {
    pub fn new(given: &[IpAddr]) -> Self {
        let texts = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect();
        let current = if given.is_empty() { texts(&[machine::default_address()]) } else { texts(given) };
        Self { found: given.is_empty(), current: watch::Sender::new(current) }
    }

    /// The first one is the node's InternalIP.
    pub fn now(&self) -> Arc<[String]> {
        self.current.borrow().clone()
    }

    /// Told when they are others.
    pub fn changes(&self) -> watch::Receiver<Arc<[String]>> {
        self.current.subscribe()
    }

    /// Looks again and again until `shutdown`.
    pub async fn follow(&self, shutdown: CancellationToken) {
        if !self.found {
            return;
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => self.see(machine::default_address()),
                () = shutdown.cancelled() => return,
            }
        }
    }

    /// A machine whose cable is out is still the one that was known by its last address.
    fn see(&self, address: IpAddr) {
        let new = address.to_string();
        let moved = self.current.send_if_modified(|known| {
            let other = !address.is_loopback() && known.first() != Some(&new);
            if other {
                *known = [new.clone()].into();
            }
            other
        });
        if moved {
            tracing::info!(address = new, "this machine has another address");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_comes_late_is_told_and_a_cable_that_is_pulled_is_not() {
        let loopback: IpAddr = [127, 0, 0, 1].into();
        let addresses = HostAddresses::new(&[loopback]);
        let mut changes = addresses.changes();
        addresses.see(loopback);
        assert!(!changes.has_changed().expect("open"));
        addresses.see([10, 0, 0, 7].into());
        assert!(changes.has_changed().expect("open"));
        assert_eq!(**changes.borrow_and_update(), ["10.0.0.7".to_owned()]);
        addresses.see(loopback);
        addresses.see([10, 0, 0, 7].into());
        assert!(!changes.has_changed().expect("open"));
        addresses.see([10, 0, 0, 8].into());
        assert_eq!(*addresses.now(), ["10.0.0.8".to_owned()]);
    }

    #[tokio::test]
    async fn addresses_that_were_given_stay() {
        let given = HostAddresses::new(&[[192, 0, 2, 9].into(), [192, 0, 2, 10].into()]);
        // Returns at once: there is nothing to look for.
        given.follow(CancellationToken::new()).await;
        assert_eq!(*given.now(), ["192.0.2.9".to_owned(), "192.0.2.10".to_owned()]);
    }
}
