//! What the fleet's controllers are told.

use std::path::PathBuf;
use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::tunnels::TunnelHub;

/// Who approves a site that asks to join with a valid token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Approval {
    /// The token is enough.
    #[default]
    Token,
    /// A person, with `tombolo sites approve`.
    Person,
}

#[derive(Clone)]
pub struct FleetConfig {
    /// The hub's API, with all rights.
    pub client: Client,
    /// The same, and its answers have the `managedFields` that those of `client` may lack.
    pub whole: Client,
    /// Certificate and key (PEM) that sign the certificates of sites.
    pub ca_cert: String,
    pub ca_key: String,
    /// Where sites reach the hub, for the join command: `https://host:port`.
    pub url: String,
    /// Where this replica alone is reached; sites learn it in case `url` does not answer.
    pub own_url: Option<String>,
    /// UDP port of the QUIC endpoint, if there is one.
    pub quic_port: Option<u16>,
    /// Silence after which a site counts as lost.
    pub lease: Duration,
    /// How long a site's certificate is valid; it is renewed after two thirds.
    pub certificate_life: Duration,
    pub approval: Approval,
    /// Name of this replica: where other replicas reach its tunnels.
    pub replica: String,
    pub tunnels: TunnelHub,
    /// Several replicas: act only while leading.
    pub elect: bool,
    /// A file that says that the store is an old copy; removed once that can do no harm any more.
    pub restored: Option<PathBuf>,
    pub shutdown: CancellationToken,
}

impl FleetConfig {
    pub fn new(client: Client, ca_cert: String, ca_key: String, url: String, tunnels: TunnelHub) -> Self {
        Self {
            whole: client.clone(),
            client,
            ca_cert,
            ca_key,
            url,
            own_url: None,
            quic_port: None,
            lease: Duration::from_secs(40),
            certificate_life: Duration::from_secs(30 * 24 * 3600),
            approval: Approval::Token,
            replica: "hub".into(),
            tunnels,
            elect: false,
            restored: None,
            shutdown: CancellationToken::new(),
        }
    }

    /// Who chose a Service's node ports is needed to render it; of other kinds nobody asks who wrote them.
    pub fn client_for(&self, kind: &str) -> &Client {
        if kind == "Service" { &self.whole } else { &self.client }
    }
}
