//! One write seen by many watchers, in the two ways that watchers hold their connections.

mod alone;
mod together;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustls::ClientConfig;

/// No write may take longer than this to reach everybody.
const PATIENCE: Duration = Duration::from_secs(60);
/// The generator looks at its sockets so often, as a network card gathers interrupts: were it woken for each of a
/// thousand packets, the server would spend its time waking it.
const GATHER: Duration = Duration::from_micros(500);

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
    /// Waits until every watcher was sent what names `name`, or at least something, where looking closer would cost more
    /// than it may: its cost is part of what is measured.
    fn wait(&mut self, name: &str) -> Result<()>;

    /// Checks that every watcher got the whole event that names `name`; gives the moment the last one had it.
    fn last_saw(&mut self, name: &str) -> Result<Instant>;
}

/// Each watcher with a connection of its own, as so many nodes have.
pub fn alone(access: &Access, path: &str, count: usize) -> Result<impl Watchers> {
    alone::Watchers::open(access, path, count)
}

/// A hundred watchers on each connection, as client-go shares one between the informers of a program.
pub fn together(access: &Access, path: &str, count: usize) -> Result<impl Watchers> {
    together::Watchers::open(access, path, count)
}
