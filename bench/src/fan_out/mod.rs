//! One write seen by many watchers, in the two ways that watchers hold their connections.
//!
//! The watchers stand for programs on other machines, so what they do with an event must not take time from the server that is
//! measured. The kernel notes when each packet arrived; the generator rests meanwhile, and takes, decrypts and checks everything
//! afterwards.

mod alone;
mod arrivals;
mod together;
mod wire;

pub use wire::{SERVER, Wire};

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use rustls::ClientConfig;

/// No write may take longer than this to reach everybody.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the generator rests after a write. Nearly always everything has arrived by then; where not, it waits longer.
const REST: Duration = Duration::from_millis(150);

/// Room for what is read at once.
const ROOM: usize = 64 * 1024;

/// How to reach the server.
#[derive(Clone)]
pub struct Access {
    pub address: String,
    pub tls: Arc<ClientConfig>,
    pub token: Option<String>,
}

impl Access {
    fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or(&self.address, |(host, _)| host)
    }
}

/// Watchers of one path; all are established.
pub trait Watchers {
    /// A write is about to be made.
    fn expect(&mut self) -> Result<()> {
        Ok(())
    }

    /// Lets a write arrive. What this costs the generator is taken from the server, so it does next to nothing.
    fn rest(&mut self) -> Result<()>;

    /// Checks that every watcher got the whole event that names `name`; gives the moment the last one had it.
    fn last_saw(&mut self, name: &str) -> Result<SystemTime>;
}

/// Each watcher with a connection of its own, as so many nodes have: at the other end of a wire, or on loopback.
pub fn alone<'w>(
    access: &Access,
    path: &str,
    count: usize,
    wire: Option<&'w Wire>,
) -> Result<impl Watchers + use<'w>> {
    alone::Watchers::open(access, path, count, wire)
}

/// A hundred watchers on each connection, as client-go shares one between the informers of a program.
pub fn together(access: &Access, path: &str, count: usize) -> Result<impl Watchers> {
    together::Watchers::open(access, path, count)
}
