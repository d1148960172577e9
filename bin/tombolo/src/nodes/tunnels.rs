//! Streams to the nodes of a site: to the one in this process directly, to others through the tunnels that they dialed.
//!
//! Logs and exec so reach a node that nobody can dial. A node's tunnel is whatever it dialed last.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tombolo_apiserver::{Identity, Io, NodeStreams, UpgradeHandler};
use tombolo_node::StreamServer;
use tombolo_tunnel::{Class, Connection, DEFAULT_INTERVAL, Preamble, SessionId};

/// What one copy buffer of an in-process stream holds.
const PIPE: usize = 64 * 1024;
const PREAMBLE_WAIT: Duration = Duration::from_secs(20);
/// Both halves of a tunnel are dialed at once; the second may come first and waits this long.
const OTHER_HALF: Duration = Duration::from_secs(10);
const NODES_GROUP: &str = "system:nodes";

#[derive(Clone, Default)]
pub struct NodeTunnels {
    inner: Arc<Inner>,
}

/// Told of every tunnel that a node opened.
pub type Welcome = Box<dyn Fn(String, Connection) + Send + Sync>;

#[derive(Default)]
struct Inner {
    welcome: Option<Welcome>,
    own: OnceLock<(String, StreamServer)>,
    live: Mutex<HashMap<String, (SessionId, Connection)>>,
    arrived: tokio::sync::Notify,
}

impl NodeTunnels {
    pub fn with_welcome(welcome: Welcome) -> Self {
        Self { inner: Arc::new(Inner { welcome: Some(welcome), ..Inner::default() }) }
    }

    /// The node in this process.
    pub fn set_own(&self, name: &str, node: StreamServer) {
        // A process has one node, and starts it once.
        let _ = self.inner.own.set((name.to_owned(), node));
    }

    /// A connection on which a node, known to be this one, opens half of its tunnel.
    pub async fn accept(&self, node: String, mut io: Box<dyn Io>) {
        let Ok(Ok(preamble)) = tokio::time::timeout(PREAMBLE_WAIT, Preamble::read(&mut io)).await else {
            return;
        };
        if tombolo_tunnel::answer(&mut io, Ok(())).await.is_err() {
            return;
        }
        match preamble.class {
            Class::Control => {
                self.keep(node, preamble.session, Connection::over_io(io, false, DEFAULT_INTERVAL))
            }
            Class::Bulk => {
                let added = tokio::time::timeout(OTHER_HALF, async {
                    loop {
                        let arrived = self.inner.arrived.notified();
                        if let Some(connection) = self.session(&node, preamble.session) {
                            return connection.add_bulk(io, false);
                        }
                        arrived.await;
                    }
                });
                if !matches!(added.await, Ok(Ok(()))) {
                    tracing::debug!(node, "half a tunnel came, and the other half did not");
                }
            }
        }
    }

    fn session(&self, node: &str, session: SessionId) -> Option<Connection> {
        let live = self.inner.live.lock();
        live.get(node).filter(|(known, _)| *known == session).map(|(_, connection)| connection.clone())
    }

    fn keep(&self, node: String, session: SessionId, connection: Connection) {
        tracing::info!(node, "the node opened a tunnel");
        if let Some((_, old)) = self.inner.live.lock().insert(node.clone(), (session, connection.clone())) {
            old.close("the node dialed anew");
        }
        self.inner.arrived.notify_waiters();
        if let Some(welcome) = &self.inner.welcome {
            welcome(node.clone(), connection.clone());
        }
        let tunnels = self.clone();
        tokio::spawn(async move {
            // A node calls the API directly; what it opens here is nothing to us.
            while connection.accept().await.is_some() {}
            let why = connection.closed().await;
            tracing::info!(node, why, "the node's tunnel ended");
            let mut live = tunnels.inner.live.lock();
            if live.get(&node).is_some_and(|(known, _)| *known == session) {
                live.remove(&node);
            }
        });
    }
}

#[async_trait]
impl NodeStreams for NodeTunnels {
    async fn open(&self, node: &str) -> Option<Box<dyn Io>> {
        if let Some((_, server)) = self.inner.own.get().filter(|(name, _)| name == node) {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            let server = server.clone();
            tokio::spawn(async move { server.serve(theirs).await });
            return Some(Box::new(ours));
        }
        let connection = self.inner.live.lock().get(node).map(|(_, connection)| connection.clone())?;
        match connection.open(Class::Bulk).await {
            Ok(stream) => Some(Box::new(stream)),
            Err(error) => {
                tracing::debug!(node, %error, "the node's tunnel gave no stream; it is dialed instead");
                None
            }
        }
    }
}

/// Takes the connections on which nodes open their tunnels. Only a node may, and only as itself.
pub struct NodeUpgrade(pub NodeTunnels);

#[async_trait]
impl UpgradeHandler for NodeUpgrade {
    async fn serve(&self, identity: Identity, io: Box<dyn Io>) {
        let node = identity.user.strip_prefix("system:node:").filter(|_| identity.in_group(NODES_GROUP));
        match node {
            Some(node) => self.0.accept(node.to_owned(), io).await,
            None => tracing::warn!(user = identity.user, "only nodes open tunnels here"),
        }
    }
}
