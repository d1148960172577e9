//! `tombolo hub`: the Kubernetes API over a fleet.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use tokio_util::sync::CancellationToken;
use tombolo_api::names;
use tombolo_apiserver::{
    ConnectError, Identity, Io, PodConnector, PodStream, Server, UpgradeHandler, Upstream,
};
use tombolo_fleet::{Approval, FleetConfig, PodRoute, Serve, TunnelHub};
use tombolo_tunnel::{Class, PeerIdentity};
use tombolo_workload::{Ca, Options};

use crate::{start, ties};

/// A file in a data folder that was made from a backup. What the store says of workloads that may run at most once is not
/// to be believed before they have stopped everywhere.
pub const RESTORED: &str = "restored";

/// Run a hub: one Kubernetes API over many sites
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tombolo hub --data-dir /var/lib/tombolo/hub --listen 0.0.0.0:6443 --tls-san hub.example.com"
)]
pub struct Args {
    #[command(flatten)]
    pub start: start::ServerArgs,
    /// Silence after which a site counts as lost, in seconds
    #[arg(long, default_value_t = 40, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(5..))]
    lease_seconds: u64,
    /// How long a site's certificate is valid (30s, 10m, 12h, 30d); it is renewed after two thirds of that
    #[arg(long, default_value = "30d", value_name = "TIME", value_parser = super::token::duration)]
    certificate_life: Duration,
    /// A person approves each site with `tombolo sites approve`, token or not
    #[arg(long)]
    approve_sites: bool,
    /// Where sites reach this hub, if not at the address it listens on
    #[arg(long, value_name = "https://HOST:PORT")]
    url: Option<String>,
}

pub async fn run(mut args: Args) -> Result<()> {
    args.start.tls_san.extend(args.url.as_deref().and_then(host_of));
    let mut config = start::configure(&args.start).await?;
    let lease = Duration::from_secs(args.lease_seconds);
    // Tunnels need the server, and the server needs the tunnels: the cell is filled before anything can connect.
    let server_cell: Arc<std::sync::OnceLock<Server>> = Arc::default();
    let serve: Serve = {
        let cell = server_cell.clone();
        Arc::new(move |io, peer| {
            let Some(server) = cell.get().cloned() else { return };
            tokio::spawn(async move { server.serve_stream(io, Identity::new(peer.user, peer.groups)).await });
        })
    };
    let tunnels = TunnelHub::new(serve, tombolo_fleet::heartbeat_interval(lease));
    config.pods = Some(Arc::new(PodsAtSites { tunnels: tunnels.clone(), server: server_cell.clone() }));
    config.upgrades.insert(names::TUNNEL_PATH.to_owned(), Arc::new(TunnelUpgrade(tunnels.clone())));
    config.upgrades.insert(names::FORWARD_PATH.to_owned(), Arc::new(ForReplicas(tunnels.clone())));
    config.written_by_programs =
        &[("", "pods"), ("", "events"), ("coordination.k8s.io", "leases"), (names::GROUP, "works")];
    config.made_by_programs = &[("", "pods", names::MIRROR_LABEL)];
    let server = Server::start(config).await?;
    server_cell.set(server.clone()).map_err(|_| anyhow::anyhow!("the hub's server is set once"))?;

    let stop = CancellationToken::new();
    let ca = server.ca();
    let options = Options {
        signer: Some(Ca { cert_pem: ca.certificate.clone(), key_pem: ca.key.clone() }),
        root_ca: Some(ca.certificate.clone()),
        ..Options::hub(stop.clone())
    };
    tokio::spawn(tombolo_workload::run(start::client(&server, "system:tombolo:controllers"), options));

    let address = start::listen(&server, &args.start).await?;
    let quic_port = listen_quic(
        &server,
        &tunnels,
        SocketAddr::new(args.start.listen.ip(), address.port()),
        &args.start.tls_san,
    );
    let url = args.url.clone().unwrap_or_else(|| format!("https://{address}"));
    let mut fleet = FleetConfig::new(
        start::client(&server, "system:tombolo:fleet"),
        ca.certificate.clone(),
        ca.key.clone(),
        url.clone(),
        tunnels,
    );
    fleet.whole = start::client_with_managers(&server, "system:tombolo:fleet");
    fleet.lease = lease;
    fleet.certificate_life = args.certificate_life;
    fleet.own_url = Some(format!("https://{address}"));
    fleet.approval = if args.approve_sites { Approval::Person } else { Approval::Token };
    fleet.quic_port = quic_port;
    fleet.elect = matches!(args.start.store, start::StoreChoice::Etcd(_));
    // Of several replicas, another one may have written its own address.
    let told = if fleet.elect { String::new() } else { url };
    fleet.replica = address.to_string();
    let mark = args.start.data_dir.join(RESTORED);
    fleet.restored = (!fleet.elect && mark.exists()).then_some(mark);
    fleet.shutdown = stop.clone();
    if fleet.elect {
        let tls = replica_tls(&server);
        fleet.tunnels.set_forward(tombolo_fleet::forward(fleet.client.clone(), fleet.replica.clone(), tls));
    }
    let ending = stop.clone();
    let fleet = tokio::spawn(async move {
        if let Err(error) = tombolo_fleet::run(fleet).await {
            tracing::error!(%error, "the fleet's controllers ended");
            ending.cancel();
        }
    });
    let own = start::client(&server, "system:tombolo:site");
    until_joinable(&own, &told).await?;
    let identity = identity(&own).await?;
    tokio::spawn(ties::run(own, server.clone(), identity, args.start.ties_dir(), stop.clone()));
    start::ready(&server, "hub", address, &args.start)?;
    // A replica that leads gives that up while the API still answers.
    let last = async move { drop(fleet.await) };
    start::run_with_last_words(&server, stop, last).await
}

/// The host of an address such as `https://hub.example.com:6443`, for certificates.
fn host_of(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    Some(uri.host()?.trim_matches(['[', ']']).to_owned())
}

/// Waits for what the first site to join will ask for: where the hub is. An earlier start may have told another address.
async fn until_joinable(hub: &kube::Client, url: &str) -> Result<()> {
    let info: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(hub.clone(), "kube-public");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let tells = |info: k8s_openapi::api::core::v1::ConfigMap| {
        info.data.unwrap_or_default().get("kubeconfig").is_some_and(|text| text.contains(url))
    };
    while !info.get_opt("cluster-info").await?.is_some_and(tells) {
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "the fleet's controllers did not start; the log says why"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Who this hub is, for the hubs above it: nothing is offered back to where it came from.
async fn identity(hub: &kube::Client) -> Result<Option<String>> {
    let configs: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(hub.clone(), "kube-system");
    let config = configs.get_opt(names::HUB_CONFIG).await?;
    Ok(config.and_then(|c| c.data?.remove("id")))
}

/// Sites that cannot use UDP come through the API port instead, so a taken port is no reason to stop.
fn listen_quic(server: &Server, tunnels: &TunnelHub, address: SocketAddr, sans: &[String]) -> Option<u16> {
    let listening = || -> Result<quinn::Endpoint> {
        // Known by the same names as the API: sites dial both.
        let mut names = vec!["localhost".to_owned()];
        let mut addresses = vec![address.ip(), [127, 0, 0, 1].into()];
        for san in sans {
            match san.parse() {
                Ok(ip) => addresses.push(ip),
                Err(_) => names.push(san.clone()),
            }
        }
        let certificate = server.server_certificate(&names, &addresses)?;
        let ca = server.ca().certificate.as_bytes();
        let tls =
            tombolo_tunnel::tls::server(certificate.certificate.as_bytes(), certificate.key.as_bytes(), ca)?;
        let secret = server.ca().key.as_bytes();
        tombolo_tunnel::quic::listen(address, tls, secret).context("cannot listen for QUIC")
    };
    match listening() {
        Ok(endpoint) => {
            let tunnels = tunnels.clone();
            tokio::spawn(async move { tunnels.listen(endpoint).await });
            Some(address.port())
        }
        Err(error) => {
            tracing::warn!(%address, error = format!("{error:#}"), "no QUIC; sites connect over TCP");
            None
        }
    }
}

/// How this replica shows itself to the others.
fn replica_tls(server: &Server) -> tombolo_fleet::ReplicaTls {
    let server = server.clone();
    Arc::new(move || {
        let own = server
            .client_certificate("system:tombolo:replica", &[names::REPLICAS_GROUP])
            .map_err(|error| error.to_string())?;
        let ca = server.ca().certificate.as_bytes();
        tombolo_tunnel::tls::client(ca, Some((own.certificate.as_bytes(), own.key.as_bytes())))
            .map_err(|error| error.to_string())
    })
}

/// Logs, exec and port forwarding of pods that run at sites, through their tunnels.
struct PodsAtSites {
    tunnels: TunnelHub,
    server: Arc<std::sync::OnceLock<Server>>,
}

impl PodsAtSites {
    /// The right on the pod is not enough: who may reach into a site is decided by the right on that site.
    async fn allowed(&self, request: &PodStream, site: &str) -> Result<(), ConnectError> {
        let unreachable = |error: String| ConnectError::Unreachable(error);
        let server = self.server.get().ok_or_else(|| unreachable("the hub is starting".into()))?;
        let verb = if request.subresource == "log" { "get" } else { "create" };
        let review = serde_json::json!({"spec": {"user": request.user.user, "groups": request.user.groups,
            "resourceAttributes": {"group": names::GROUP, "version": names::VERSION, "resource": "sites",
                "subresource": request.subresource, "name": site, "verb": verb}}});
        let review: SubjectAccessReview =
            serde_json::from_value(review).map_err(|error| unreachable(error.to_string()))?;
        let api: kube::Api<SubjectAccessReview> =
            kube::Api::all(start::client(server, "system:tombolo:fleet"));
        let answer =
            api.create(&Default::default(), &review).await.map_err(|e| unreachable(e.to_string()))?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
        let (user, what) = (&request.user.user, &request.subresource);
        tracing::warn!(user, site, what, "refused: no right on the site");
        Err(ConnectError::Forbidden(format!(
            "user {user:?} may not {verb} sites/{what} of site {site:?}; bind a ClusterRole such as tombolo:pods-at-sites"
        )))
    }
}

#[async_trait]
impl PodConnector for PodsAtSites {
    async fn connect(&self, request: PodStream) -> Result<Upstream, ConnectError> {
        let route = PodRoute::of(&request.pod).ok_or_else(|| {
            ConnectError::BadRequest(
                "this pod is at no site yet; `tombolo place` shows what runs where".into(),
            )
        })?;
        self.allowed(&request, &route.site).await?;
        let stream = self
            .tunnels
            .open(&route.site, Class::Bulk)
            .await
            .map_err(|e| ConnectError::Unreachable(e.to_string()))?;
        let query = Some(request.query.as_str());
        let path = format!("{}{}", request.subresource, request.path);
        Ok(Upstream {
            stream: Box::new(stream),
            path_and_query: route.path(&path, query),
            headers: Default::default(),
        })
    }
}

/// Sites that come over TCP upgrade a connection of the API port.
struct TunnelUpgrade(TunnelHub);

#[async_trait]
impl UpgradeHandler for TunnelUpgrade {
    async fn serve(&self, identity: Identity, io: Box<dyn Io>) {
        let peer = PeerIdentity { user: identity.user, groups: identity.groups, ..Default::default() };
        self.0.accept(peer, io).await;
    }
}

/// Other replicas of this hub, for the sites that are tied here. The hub's own RBAC lets nobody else on this path.
struct ForReplicas(TunnelHub);

#[async_trait]
impl UpgradeHandler for ForReplicas {
    async fn serve(&self, _identity: Identity, io: Box<dyn Io>) {
        self.0.serve_forwarded(io).await;
    }
}
