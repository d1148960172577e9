//! The tunnels that end at this replica of the hub.
//!
//! A tunnel is admitted only for a site that the hub knows, with a certificate of the site's present identity. One that was
//! removed is told so.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::forward::Forward;
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::watch;
use tombolo_agent::Removal;
use tombolo_api::names;
use tombolo_tunnel::{
    BoxIo, Class, Connection, Io, PeerIdentity, Preamble, SessionId, TunnelError, identity_of,
};

/// The site at the other end of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SitePeer {
    pub site: String,
    pub user: String,
    pub groups: Vec<String>,
}

/// Serves the hub's API on a stream that a site opened, in the name of that site.
pub type Serve = Arc<dyn Fn(BoxIo, SitePeer) + Send + Sync>;

#[derive(Clone)]
pub struct TunnelHub {
    inner: Arc<Inner>,
}

struct Inner {
    serve: Serve,
    interval: Duration,
    live: Mutex<HashMap<String, Live>>,
    sessions: Mutex<HashMap<SessionId, (String, Connection)>>,
    admission: watch::Sender<Option<Arc<Admission>>>,
    changes: watch::Sender<u64>,
    forward: OnceLock<Forward>,
}

#[derive(Clone)]
struct Live {
    connection: Connection,
    since: Instant,
}

/// Who may tie itself to this hub.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// Site to the identity that its certificates must carry.
    pub sites: HashMap<String, String>,
    /// Identities of sites that were removed, with what to tell them.
    pub removed: HashMap<String, Removal>,
}

/// A site that is tied to this replica now.
#[derive(Clone, Debug)]
pub struct Tied {
    pub site: String,
    pub rtt: Option<Duration>,
    /// How long ago it was last heard.
    pub heard: Duration,
    /// When this tie was made.
    pub since: Instant,
    pub carrier: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("site {0} is not tied to this hub now")]
    NotTied(String),
    #[error("{0}")]
    Elsewhere(String),
    #[error("site {site}: {source}")]
    Tunnel {
        site: String,
        #[source]
        source: TunnelError,
    },
}

impl From<OpenError> for TunnelError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::NotTied(site) => {
                TunnelError::Closed(format!("site {site} is not tied to this hub now"))
            }
            OpenError::Elsewhere(why) => TunnelError::Closed(why),
            OpenError::Tunnel { source, .. } => source,
        }
    }
}

/// How long a newcomer waits for the hub to know its sites after a start.
const ADMISSION_WAIT: Duration = Duration::from_secs(20);
const PREAMBLE_WAIT: Duration = Duration::from_secs(20);

impl TunnelHub {
    /// `interval`: how often sites send a heartbeat; a third of the lease or less.
    pub fn new(serve: Serve, interval: Duration) -> Self {
        Self {
            inner: Arc::new(Inner {
                serve,
                interval,
                live: Mutex::default(),
                sessions: Mutex::default(),
                admission: watch::Sender::new(None),
                changes: watch::Sender::new(0),
                forward: OnceLock::new(),
            }),
        }
    }

    /// Accepts sites over QUIC until the endpoint is closed.
    pub async fn listen(&self, endpoint: quinn::Endpoint) {
        while let Some(incoming) = endpoint.accept().await {
            let hub = self.clone();
            tokio::spawn(async move {
                let Ok(connection) = incoming.await else { return };
                let certificates = connection
                    .peer_identity()
                    .and_then(|any| any.downcast::<Vec<rustls_pki_types::CertificateDer<'static>>>().ok());
                let identity = certificates.and_then(|all| all.first().and_then(identity_of));
                let Some(identity) = identity else {
                    return connection.close(1u32.into(), b"no client certificate");
                };
                match hub.admit(&identity).await {
                    Ok(peer) => hub.keep(peer, Connection::over_quic(connection, false, hub.inner.interval)),
                    Err(why) => connection.close(1u32.into(), why.as_bytes()),
                }
            });
        }
    }

    /// Accepts one half of a tunnel over an upgraded connection of the API port, for an authenticated client.
    pub async fn accept(&self, identity: PeerIdentity, mut io: impl Io) {
        let preamble = match tokio::time::timeout(PREAMBLE_WAIT, Preamble::read(&mut io)).await {
            Ok(Ok(preamble)) => preamble,
            _ => return,
        };
        let admitted = self.admit(&identity).await;
        let verdict = admitted.as_ref().map(|_| ()).map_err(String::as_str);
        if tombolo_tunnel::answer(&mut io, verdict).await.is_err() {
            return;
        }
        let Ok(peer) = admitted else { return };
        match preamble.class {
            Class::Control => {
                let connection = Connection::over_io(io, false, self.inner.interval);
                self.inner.sessions.lock().insert(preamble.session, (peer.site.clone(), connection.clone()));
                self.keep(peer, connection.clone());
                let hub = self.clone();
                tokio::spawn(async move {
                    connection.closed().await;
                    hub.inner.sessions.lock().remove(&preamble.session);
                });
            }
            Class::Bulk => {
                // Both halves are dialed at once; this one may be first.
                for _ in 0..200 {
                    let found = self.inner.sessions.lock().get(&preamble.session).cloned();
                    if let Some((site, connection)) = found {
                        if site == peer.site {
                            drop(connection.add_bulk(io, false));
                        }
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Who comes, if it may come; otherwise what to tell it.
    pub async fn admit(&self, identity: &PeerIdentity) -> Result<SitePeer, String> {
        let mut admission = self.inner.admission.subscribe();
        let known = tokio::time::timeout(ADMISSION_WAIT, admission.wait_for(Option::is_some)).await;
        let known = match known {
            Ok(Ok(known)) => known.clone().unwrap_or_default(),
            _ => return Err("the hub does not know its sites yet; try again".into()),
        };
        let site = names::site_of_user(&identity.user).ok_or_else(|| {
            format!("{} is no site; the certificate's name must be system:site:<name>", identity.user)
        })?;
        let carries = |wanted: &String| identity.groups.contains(&names::identity_group(wanted));
        if let Some(removal) = known.removed.iter().find(|(old, _)| carries(old)).map(|(_, r)| r) {
            tracing::warn!(site, serial = identity.serial, "a removed site came back and was told so");
            return Err(serde_json::to_string(removal).unwrap_or_else(|_| removal.message.clone()));
        }
        match known.sites.get(site) {
            Some(wanted) if carries(wanted) => Ok(SitePeer {
                site: site.to_owned(),
                user: identity.user.clone(),
                groups: identity.groups.clone(),
            }),
            Some(_) => {
                tracing::warn!(
                    site,
                    serial = identity.serial,
                    "a certificate of an earlier identity was refused"
                );
                Err(format!("the certificate of site {site} was revoked; join again with a new token"))
            }
            None => {
                tracing::warn!(site, serial = identity.serial, "an unknown site was refused");
                Err(format!("this hub does not know site {site}; join with `tombolo join`"))
            }
        }
    }

    fn keep(&self, peer: SitePeer, connection: Connection) {
        let site = peer.site.clone();
        tracing::info!(site, carrier = connection.carrier(), "tied");
        let live = Live { connection: connection.clone(), since: Instant::now() };
        if let Some(old) = self.inner.live.lock().insert(site.clone(), live) {
            old.connection.close("the site dialed anew");
        }
        if !self.still_admitted(&peer) {
            tracing::warn!(site, "its certificate was revoked while it came; the tunnel is closed");
            connection.close("the site's certificate was revoked");
        }
        self.changed();
        let hub = self.clone();
        tokio::spawn(async move {
            while let Some((_class, io)) = connection.accept().await {
                (hub.inner.serve)(io, peer.clone());
            }
            let why = connection.closed().await;
            tracing::info!(site, why, "no longer tied");
            let mut live = hub.inner.live.lock();
            if live.get(&site).is_some_and(|l| l.connection.is_closed()) {
                live.remove(&site);
            }
            drop(live);
            hub.changed();
        });
    }

    /// The rule may have changed since the site was let in.
    fn still_admitted(&self, peer: &SitePeer) -> bool {
        let admission = self.inner.admission.borrow();
        admission.as_ref().is_some_and(|known| {
            let wanted = known.sites.get(&peer.site).filter(|id| !known.removed.contains_key(*id));
            wanted.is_some_and(|identity| peer.groups.contains(&names::identity_group(identity)))
        })
    }

    fn changed(&self) {
        self.inner.changes.send_modify(|n| *n += 1);
    }

    /// Changes when a site is tied or no longer tied.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    /// Sites that are tied to another replica of this hub are reached through it. Set once.
    pub fn set_forward(&self, forward: Forward) {
        let _ = self.inner.forward.set(forward);
    }

    /// Opens a stream on which the site's API is served, wherever its tunnel ends.
    pub async fn open(&self, site: &str, class: Class) -> Result<BoxIo, OpenError> {
        match (self.open_here(site, class).await, self.inner.forward.get()) {
            (Err(OpenError::NotTied(site)), Some(forward)) => {
                forward(site, class).await.map_err(OpenError::Elsewhere)
            }
            (here, _) => here,
        }
    }

    /// As [`TunnelHub::open`], for tunnels that end at this replica.
    pub async fn open_here(&self, site: &str, class: Class) -> Result<BoxIo, OpenError> {
        let connection = self.inner.live.lock().get(site).map(|l| l.connection.clone());
        let connection = connection.ok_or_else(|| OpenError::NotTied(site.to_owned()))?;
        connection.open(class).await.map_err(|source| OpenError::Tunnel { site: site.to_owned(), source })
    }

    pub fn is_tied(&self, site: &str) -> bool {
        self.inner.live.lock().get(site).is_some_and(|l| !l.connection.is_closed())
    }

    /// A client for the site's API, through whatever tunnel the site has at the time.
    pub fn client(&self, site: &str) -> Client {
        let (hub, site) = (self.clone(), site.to_owned());
        tombolo_tunnel::client_with(move || {
            let (hub, site) = (hub.clone(), site.clone());
            async move { hub.open(&site, Class::Control).await }
        })
    }

    pub fn tied(&self) -> Vec<Tied> {
        let live = self.inner.live.lock();
        let one = |(site, live): (&String, &Live)| Tied {
            site: site.clone(),
            rtt: live.connection.rtt(),
            heard: live.connection.last_heard().max(live.since).elapsed(),
            since: live.since,
            carrier: live.connection.carrier(),
        };
        live.iter().filter(|(_, l)| !l.connection.is_closed()).map(one).collect()
    }

    /// Says who may come; whoever is tied and may not is cut off.
    pub fn set_admission(&self, admission: Admission) {
        let admission = Arc::new(admission);
        // First the rule, then those who came before it: who comes in between is held against the new rule in `keep`.
        let before = self.inner.admission.send_replace(Some(admission.clone()));
        let gone: Vec<Connection> = {
            let live = self.inner.live.lock();
            live.iter()
                .filter(|(site, _)| !admission.sites.contains_key(*site))
                .map(|(_, l)| l.connection.clone())
                .collect()
        };
        for connection in gone {
            connection.close("this hub no longer knows the site");
        }
        // One that was removed at another replica may still be on record here.
        for (site, removal) in
            admission.sites.iter().filter_map(|(site, id)| Some((site, admission.removed.get(id)?)))
        {
            self.cut(site, &serde_json::to_string(removal).unwrap_or_else(|_| removal.message.clone()));
        }
        // A changed identity revokes the certificates that carry the old one.
        let before = before.unwrap_or_default();
        let changed = before
            .sites
            .iter()
            .filter(|(site, old)| admission.sites.get(*site).is_some_and(|new| new != *old));
        for (site, _) in changed {
            if let Some(live) = self.inner.live.lock().get(site) {
                tracing::warn!(site, "its certificate was revoked; the tunnel is closed");
                live.connection.close("the site's certificate was revoked");
            }
        }
    }

    /// Closes a site's tunnel and tells it why.
    pub fn cut(&self, site: &str, why: &str) {
        if let Some(live) = self.inner.live.lock().get(site) {
            live.connection.close(why);
        }
    }
}
