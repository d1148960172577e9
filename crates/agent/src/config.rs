//! What an agent is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use kube::Client;
use tokio_util::sync::CancellationToken;
use tombolo_api::SiteSpec;
use tombolo_tunnel::BoxIo;

/// Opens raw byte streams to the site's own API server, on which plain HTTP/1.1 is spoken. For a site in the same process.
#[async_trait]
pub trait SiteDial: Send + Sync {
    async fn dial(&self) -> std::io::Result<BoxIo>;
}

/// The identity that the site's owner made for the hub. The site's own RBAC, quota and pod security decide what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActingAs {
    pub user: String,
    pub groups: Vec<String>,
}

#[derive(Clone)]
pub struct AgentConfig {
    /// The site's API, with the agent's own rights.
    pub site: Client,
    /// How the hub's calls reach the site's API; through `site` when absent.
    pub site_dial: Option<Arc<dyn SiteDial>>,
    /// As whom the hub's wishes are carried out; `None`: as the agent itself.
    pub acting_as: Option<ActingAs>,
    /// `https://host:port`.
    pub hub_url: String,
    /// `sha256:<hex>` of the public key of the hub's CA, as `tombolo token create` prints it. Needed for the first join.
    pub ca_hash: Option<String>,
    /// Needed for the first join.
    pub token: Option<String>,
    pub name: String,
    pub spec: SiteSpec,
    pub labels: BTreeMap<String, String>,
    /// Name of the Secret (in `tombolo-system` of the site) that keeps key, certificate and what was seen of the hub.
    /// One per hub that the site is tied to.
    pub state: String,
    /// Folder in which Works are kept, so that an agent that starts while the hub is away knows them.
    pub keep: Option<std::path::PathBuf>,
    /// The identity of the hub that this site is, if it is one.
    pub hub_identity: Option<String>,
    pub shutdown: CancellationToken,
}
