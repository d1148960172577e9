//! `tombolo node`: a light node for an existing control plane, a Tombolo site's or a real Kubernetes'.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::ExposeSecret;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tombolo_net::Subnet;
use tombolo_node::gateway::{self, ClientPair};
use tombolo_node::join::{self, JoinOptions, Membership};
use tombolo_node::{Listen, Network, Node, NodeConfig, PortCertificate, RuntimeChoice};

use super::site::{KUBELET_PORT, runtime};
use crate::client::Target;
use crate::registries::RegistryArgs;

/// Run a light node that joins an existing control plane
#[derive(clap::Args)]
#[command(after_help = "Examples (the first line is what `tombolo token create --node` printed at the site):
  tombolo node --data-dir /var/lib/tombolo/node --join https://site:6443 --token abcdef.0123456789abcdef --name camera-7
  tombolo node --data-dir /var/lib/tombolo/node --kubeconfig node.kubeconfig --name camera-7")]
pub struct Args {
    /// Folder for everything this node keeps
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// The cluster to join, with --token; needed once, then remembered
    #[arg(long, value_name = "URL", conflicts_with = "kubeconfig")]
    join: Option<String>,
    /// The bootstrap token to join with
    #[arg(long, value_name = "TOKEN", conflicts_with = "kubeconfig")]
    token: Option<String>,
    /// Hash of the cluster's CA; without it the token's signature in cluster-info counts
    #[arg(long, value_name = "sha256:HEX", requires = "join")]
    ca_hash: Option<String>,
    /// The node's name
    #[arg(long, default_value_t = super::join::host_name())]
    name: String,
    /// What makes the containers: embedded, or cri=SOCKET
    #[arg(long, default_value = "embedded", value_parser = runtime, value_name = "RUNTIME")]
    runtime: RuntimeChoice,
    /// Addresses of this node's pods; waits for the cluster to assign some if left out
    #[arg(long, value_name = "CIDR")]
    pod_cidr: Option<Subnet>,
    /// The address that other nodes and the control plane reach this node at; found out if left out
    #[arg(long, value_name = "ADDR")]
    address: Option<IpAddr>,
    /// Port of the kubelet API
    #[arg(long, value_name = "PORT", default_value_t = KUBELET_PORT)]
    kubelet_port: u16,
    /// With --kubeconfig: ask the cluster to sign the certificate of the kubelet port; somebody must approve the request
    #[arg(long)]
    server_tls_bootstrap: bool,
    /// Do not dial the gateway of a real Kubernetes (`tombolo gateway`), although it has one
    #[arg(long)]
    no_gateway: bool,
    /// Leave services to another proxy
    #[arg(long)]
    no_service_proxy: bool,
    /// Who connects pods: the node itself (own) or the cluster's network plugins (cni). Left out: cni in a cluster joined
    /// with --kubeconfig whose plugins are configured on this machine
    #[arg(long, value_enum, value_name = "own|cni")]
    network: Option<NetworkChoice>,
    /// Where the cluster's network plugins are configured
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_configurations: PathBuf,
    /// Where the cluster's network plugins are; may be given several times
    #[arg(long, value_name = "DIR", default_values = ["/opt/cni/bin", "/usr/lib/cni"])]
    cni_programs: Vec<PathBuf>,
    /// The cluster's name server for pods; the node answers names itself if left out and --network is own
    #[arg(long, value_name = "ADDR")]
    cluster_dns: Vec<IpAddr>,
    #[command(flatten)]
    registries: RegistryArgs,
    /// Run inside this network namespace
    #[arg(long, hide = true)]
    pub netns: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum NetworkChoice {
    Own,
    Cni,
}

/// What the node shows to a gateway, as it is now.
type Pair = Box<dyn Fn() -> Option<ClientPair> + Send>;

impl Args {
    fn network(&self, joined: bool) -> Network {
        let is_configuration = |entry: &std::fs::DirEntry| {
            let end = entry.path().extension().map(|end| end.to_string_lossy().into_owned());
            matches!(end.as_deref(), Some("conf" | "conflist" | "json"))
        };
        let configured = || {
            let mut entries = std::fs::read_dir(&self.cni_configurations).into_iter().flatten().flatten();
            entries.any(|entry| is_configuration(&entry))
        };
        let plugins = match self.network {
            Some(choice) => choice == NetworkChoice::Cni,
            None => !joined && self.pod_cidr.is_none() && configured(),
        };
        if !plugins {
            return Network::Own;
        }
        Network::Plugins {
            configurations: self.cni_configurations.clone(),
            programs: self.cni_programs.clone(),
        }
    }
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    // Before a token is used up for a node that cannot run.
    tombolo_node::check_privileges()?;
    let stop = CancellationToken::new();
    let registries = args.registries.registries_for(&args.runtime)?;
    let (mut config, membership, pair) = match &target.kubeconfig {
        Some(_) => {
            let (config, pair) = of_kubeconfig(&args, target).await?;
            (config, None, Some(pair))
        }
        None => {
            let (config, membership) = joined(&args).await?;
            // A cluster that takes tunnels itself needs no gateway.
            let pair = membership.cluster.tunnel.is_none().then(|| current_pair(&membership));
            (config, Some(membership), pair)
        }
    };
    let pair = pair.filter(|_| !args.no_gateway);
    config.network = args.network(membership.is_some());
    config.cluster_dns = args.cluster_dns;
    config.runtime = args.runtime;
    config.registries = registries;
    config.pod_cidr = args.pod_cidr;
    config.addresses = args.address.into_iter().collect();
    config.service_proxy = !args.no_service_proxy;
    config.shutdown = stop.clone();
    // Before the node asks for anything: with an outdated certificate it may ask for a new one only.
    if let Some(membership) = &membership {
        tokio::spawn(membership.clone().keep_fresh());
    }
    let (client, (reached_at, place)) = (config.client.clone(), watch::channel(None));
    config.reached_at = pair.is_some().then_some(place);
    let node = Node::start(config).await.context("the node cannot run here")?;
    if let (Some(pair), Some(kubelet)) = (pair, node.tls_server()) {
        tokio::spawn(gateway::keep(client, pair, kubelet, reached_at));
    }
    if let Some(membership) = membership {
        tokio::spawn(membership.keep_tunnel(node.stream_server()));
    }
    println!("tombolo node {} runs; its containers outlive this process", args.name);
    crate::notify::ready();
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    stop.cancel();
    node.stopped().await;
    Ok(())
}

/// A node with the rights of a kubeconfig. A certificate that is this node's own is kept fresh; of others the operator takes
/// care.
async fn of_kubeconfig(args: &Args, target: &Target) -> Result<(NodeConfig, Pair)> {
    let connected = target.connect().await?;
    let identity = identity(args, &connected.config)?;
    let client = identity.as_ref().map_or(connected.client, |identity| identity.client.clone());
    let mut config = NodeConfig::new(client, &args.name, &args.data_dir);
    // Without the cluster's CA nobody could be told from a stranger on this port, so it stays closed.
    let ca = authorities(&connected.config);
    let certificate = match args.server_tls_bootstrap {
        true => PortCertificate::Requested,
        false => PortCertificate::Own,
    };
    config.listen = ca.map(|ca| listen(args, ca, certificate));
    if config.listen.is_none() {
        tracing::warn!(
            "the kubeconfig has no certificate-authority-data, so the kubelet port stays closed: no logs, no exec"
        );
    }
    let user = connected.config.auth_info;
    match identity {
        None => Ok((config, Box::new(move || client_pair(&user)))),
        Some(identity) => {
            tokio::spawn(identity.clone().keep_fresh());
            Ok((config, current_pair(&identity)))
        }
    }
}

/// The certificates that vouch for the cluster, PEM.
fn authorities(config: &kube::Config) -> Option<String> {
    let blocks = |all: &Vec<Vec<u8>>| -> Vec<_> {
        all.iter().map(|der| pem::Pem::new("CERTIFICATE", der.clone())).collect()
    };
    config.root_cert.as_ref().map(|all| pem::encode_many(&blocks(all)))
}

/// What a membership shows, as it is now.
fn current_pair(membership: &Membership) -> Pair {
    let membership = membership.clone();
    Box::new(move || membership.pair().map(|pem| ClientPair { certificate: pem.clone(), key: pem }))
}

/// The kubeconfig's identity, if it is this node's own and the cluster is dialed in the plain way.
fn identity(args: &Args, config: &kube::Config) -> Result<Option<Membership>> {
    let plain = config.proxy_url.is_none()
        && config.tls_server_name.is_none()
        && !config.accept_invalid_certs
        && config.cluster_url.path() == "/";
    let (true, Some(ca), Some(pair)) = (plain, authorities(config), client_pair(&config.auth_info)) else {
        return Ok(None);
    };
    let pair = join::Pair { certificate: &pair.certificate, key: &pair.key };
    if !pair.is_of_node(&args.name) {
        return Ok(None);
    }
    let options = JoinOptions {
        data_dir: args.data_dir.clone(),
        name: args.name.clone(),
        url: Some(config.cluster_url.to_string()),
        ..JoinOptions::default()
    };
    Ok(Some(Membership::of_node(&options, &ca, &pair)?))
}

/// The certificate and key of a kubeconfig, if it has them.
fn client_pair(user: &kube::config::AuthInfo) -> Option<ClientPair> {
    let text = |data: Option<&str>, file: Option<&String>| match (data, file) {
        (Some(data), _) => String::from_utf8(STANDARD.decode(data).ok()?).ok(),
        (None, file) => std::fs::read_to_string(file?).ok(),
    };
    let key = user.client_key_data.as_ref().map(|key| key.expose_secret());
    Some(ClientPair {
        certificate: text(user.client_certificate_data.as_deref(), user.client_certificate.as_ref())?,
        key: text(key, user.client_key.as_ref())?,
    })
}

/// A node that joined by itself; keeps trying while the cluster cannot be reached.
async fn joined(args: &Args) -> Result<(NodeConfig, Membership)> {
    let options = JoinOptions {
        data_dir: args.data_dir.clone(),
        name: args.name.clone(),
        url: args.join.clone(),
        token: args.token.clone(),
        ca_hash: args.ca_hash.clone(),
    };
    let mut pause = Duration::from_secs(1);
    let membership = loop {
        match Membership::open(&options).await {
            Ok(membership) => break membership,
            Err(error) if error.may_pass() => {
                tracing::warn!(%error, "cannot join yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(30));
            }
            Err(error) => return Err(error.into()),
        }
    };
    let mut config = NodeConfig::new(membership.client.clone(), &args.name, &args.data_dir);
    let cluster = &membership.cluster;
    let network = |text: &Option<String>| text.as_ref().and_then(|cidr| cidr.parse::<Subnet>().ok());
    config.cluster_cidr = network(&cluster.pod_cidr);
    config.service_cidr = network(&cluster.service_cidr);
    // A site that says where its pods are has no network plugin but ours.
    config.overlay = config.cluster_cidr.is_some();
    let ca = membership.credentials.ca().to_owned();
    config.listen = Some(listen(args, ca, PortCertificate::Requested));
    Ok((config, membership))
}

fn listen(args: &Args, client_ca: String, certificate: PortCertificate) -> Listen {
    let address = args.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    Listen { address: SocketAddr::new(address, args.kubelet_port), client_ca: Some(client_ca), certificate }
}
