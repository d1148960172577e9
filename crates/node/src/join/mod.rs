//! Becoming a node of a cluster with a bootstrap token, and staying one.
//!
//! ```text
//!   token ──> cluster-info (signed with the token, or pinned by hash) ──> CA
//!   token + CA ──> signing request ──> certificate system:node:NAME ──> renewed at two thirds of its life
//! ```
//!
//! It is the way kubeadm's nodes go, so it works for a Tombolo site and for a cluster that kubeadm made.
//!
//! Invariants:
//! - The private key never leaves the data folder, and key and certificate are replaced together (one file, renamed).
//! - The CA is believed only with proof: its hash, or a signature made with the token.
//! - A clock that is certainly wrong, or a certificate that ran out during a long sleep, does not lock the node out:
//!   see [`verify`] for this side and `docs/decisions/0005-nodes-join-and-return.md` for the site's.

mod credentials;
mod dial;
mod discover;
mod renew;
mod request;
mod verify;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use credentials::{Credentials, Pair};
pub use discover::{ca_hash, sign_cluster_info};
pub(crate) use renew::{is_due, unix_now};
pub(crate) use request::serving_certificate;

/// The folder of an identity that a kubeconfig gave.
const GIVEN: &str = "kubeconfig";

/// What the operator says about the cluster to join.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    pub data_dir: PathBuf,
    pub name: String,
    /// `https://host:port`; remembered after the first time.
    pub url: Option<String>,
    pub token: Option<String>,
    /// `sha256:<hex>` of the CA's public key. Without it the signature in `cluster-info` counts.
    pub ca_hash: Option<String>,
}

/// What a node knows about its cluster besides the CA. Kept beside the credentials.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cluster {
    pub url: String,
    /// A Tombolo site says where its pods and services have their addresses; another cluster does not.
    pub pod_cidr: Option<String>,
    pub service_cidr: Option<String>,
    /// Path on the API port on which the site takes tunnels from nodes.
    pub tunnel: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("`{0}` is no address of a cluster; it looks like https://site.example:6443")]
    Address(String),
    #[error(
        "this node has not joined a cluster yet: give --join URL and --token TOKEN (`tombolo token create --node` at the site prints both)"
    )]
    NotJoined,
    #[error("`{0}` is no token; it looks like abcdef.0123456789abcdef")]
    Token(String),
    #[error("cannot reach {url}: {source}")]
    Unreachable {
        url: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the cluster does not say who it is (ConfigMap kube-public/cluster-info): {0}")]
    NoClusterInfo(String),
    #[error(
        "cluster-info is not signed with token {0}: the token is unknown or has expired there, or somebody is in between. Make a new token, or give --ca-hash"
    )]
    NotSigned(String),
    #[error(
        "the CA at {url} has the hash {found}, not {wanted}: this is not the cluster you meant, or its CA was replaced"
    )]
    WrongCa { url: String, wanted: String, found: String },
    #[error("the signing request was denied: {0}")]
    Denied(String),
    #[error("cannot make a key or request: {0}")]
    Key(#[from] rcgen::Error),
    #[error("{what} ({path}): {source}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("TLS: {0}")]
    Tls(String),
    #[error("the cluster answered: {0}")]
    Api(Box<kube::Error>),
}

impl From<kube::Error> for JoinError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl JoinError {
    /// Whether a later try may end differently without anybody doing something.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Api(error) => !matches!(&**error, kube::Error::Api(s) if s.code == 401 || s.code == 403),
            _ => false,
        }
    }
}

/// A node's place in a cluster: credentials that keep themselves fresh, and a client that uses them.
#[derive(Clone)]
pub struct Membership {
    pub cluster: Cluster,
    pub credentials: Credentials,
    pub client: kube::Client,
    name: String,
}

impl Membership {
    /// Takes up a stored membership, or joins. With stored credentials nothing here needs the network, so that a node
    /// that is cut off starts.
    pub async fn open(options: &JoinOptions) -> Result<Self, JoinError> {
        let dir = options.data_dir.join("cluster");
        let io =
            |what| move |source| JoinError::File { what, path: options.data_dir.join("cluster"), source };
        std::fs::create_dir_all(&dir).map_err(io("cannot create the folder"))?;
        let stored = load(&dir);
        if let (Some(mut cluster), Some(credentials)) = (stored, Credentials::load(&dir)?) {
            if let Some(url) = &options.url {
                cluster.url = discover::checked(url)?;
            }
            return Self::with(options, cluster, credentials);
        }
        let url = discover::checked(options.url.as_deref().ok_or(JoinError::NotJoined)?)?;
        let token = options.token.as_deref().ok_or(JoinError::NotJoined)?;
        let (ca, cluster) = discover::discover(&url, token, options.ca_hash.as_deref()).await?;
        let bearer = discover::with_token(&url, &ca, token)?;
        let key = rcgen::KeyPair::generate()?;
        let certificate = request::client_certificate(&bearer, &options.name, &key).await?;
        let credentials = Credentials::store(&dir, &ca, &key.serialize_pem(), &certificate)?;
        let text = serde_json::to_vec_pretty(&cluster).map_err(|e| io("cluster.json")(e.into()))?;
        credentials::replace(&dir.join("cluster.json"), &text, 0o644)?;
        tracing::info!(node = options.name, cluster = url, "joined");
        Self::with(options, cluster, credentials)
    }

    /// Takes up the identity that a kubeconfig gives, and keeps it fresh from then on in a file of its own.
    pub fn of_node(options: &JoinOptions, ca: &str, pair: &Pair<'_>) -> Result<Self, JoinError> {
        let url = discover::checked(options.url.as_deref().ok_or(JoinError::NotJoined)?)?;
        let dir = options.data_dir.join(GIVEN);
        let what = "cannot create the folder";
        std::fs::create_dir_all(&dir).map_err(|source| JoinError::File {
            what,
            path: dir.clone(),
            source,
        })?;
        let credentials = Credentials::newest(&dir, ca, pair)?;
        Self::with(options, Cluster { url, ..Cluster::default() }, credentials)
    }

    fn with(options: &JoinOptions, cluster: Cluster, credentials: Credentials) -> Result<Self, JoinError> {
        let client = dial::client(&cluster.url, credentials.clone())?;
        Ok(Self { cluster, credentials, client, name: options.name.clone() })
    }

    /// The certificate and key that are current, PEM in one text.
    pub fn pair(&self) -> Option<String> {
        self.credentials.pair()
    }

    /// Renews the certificate when it is due, until the task is dropped.
    pub async fn keep_fresh(self) {
        renew::run(&self.client, &self.credentials, &self.name).await;
    }

    /// Keeps a tunnel to the site, on which the site reaches the kubelet API wherever this node is. Returns at once where
    /// the cluster takes none.
    pub async fn keep_tunnel(self, kubelet: crate::StreamServer) {
        if let Some(path) = self.cluster.tunnel.clone() {
            dial::keep_tunnel(&self.cluster.url, &path, &self.credentials, kubelet).await;
        }
    }
}

fn load(dir: &Path) -> Option<Cluster> {
    serde_json::from_slice(&std::fs::read(dir.join("cluster.json")).ok()?).ok()
}
