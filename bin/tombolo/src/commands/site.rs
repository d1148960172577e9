//! `tombolo site`: a small cluster in one process.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use tokio_util::sync::CancellationToken;
use tombolo_api::names;
use tombolo_apiserver::{Cidr, Server};
use tombolo_net::Subnet;
use tombolo_node::image::ImageConfig;
use tombolo_node::{Listen, Node, NodeConfig, PortCertificate, RuntimeChoice};
use tombolo_workload::{Ca, Options};

use crate::nodes::{NodeTunnels, NodeUpgrade, Published};
use crate::registries::RegistryArgs;
use crate::{nodes, start, ties};

/// Run a site: a small cluster in one process, with a node in it if asked
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo site --data-dir /var/lib/tombolo/site --name harbour --node")]
pub struct Args {
    #[command(flatten)]
    pub start: start::ServerArgs,
    /// The site's name, and its node's
    #[arg(long, default_value_t = super::join::host_name())]
    name: String,
    /// Run containers on this machine too (needs root)
    #[arg(long)]
    node: bool,
    /// What makes the containers: embedded, or cri=SOCKET
    #[arg(long, default_value = "embedded", value_parser = runtime, value_name = "RUNTIME")]
    runtime: RuntimeChoice,
    /// Addresses of pods
    #[arg(long, default_value = "10.42.0.0/16", value_name = "CIDR")]
    pod_cidr: Subnet,
    /// Addresses of services
    #[arg(long, default_value = "10.96.0.0/16", value_name = "CIDR")]
    service_cidr: Cidr,
    /// Where nodes that join reach this site, if not at the address it listens on
    #[arg(long, value_name = "https://HOST:PORT")]
    url: Option<String>,
    #[command(flatten)]
    registries: RegistryArgs,
}

pub async fn run(args: Args) -> Result<()> {
    if args.node {
        tombolo_node::check_privileges()?;
    }
    let mut config = start::configure(&args.start).await?;
    config.service_cidr = args.service_cidr;
    let tunnels = NodeTunnels::default();
    config.nodes = Some(Arc::new(tunnels.clone()));
    config.upgrades.insert(names::NODE_TUNNEL_PATH.to_owned(), Arc::new(NodeUpgrade(tunnels.clone())));
    let server = Server::start(config).await?;
    let stop = CancellationToken::new();
    // However this ends: the loops hear of it before the server is gone, and have nothing to complain about.
    let _ending = stop.clone().drop_guard();
    let controllers = start::client(&server, "system:tombolo:controllers");
    let ca = server.ca();
    let options = Options {
        signer: Some(Ca { cert_pem: ca.certificate.clone(), key_pem: ca.key.clone() }),
        root_ca: Some(ca.certificate.clone()),
        volume_dir: args.start.data_dir.join("volumes").display().to_string(),
        pod_network: Some(args.pod_cidr.to_string().parse().map_err(anyhow::Error::msg)?),
        ..Options::site(stop.clone())
    };
    tokio::spawn(tombolo_workload::run(controllers, options));
    let _node = match args.node {
        true => {
            let node = start_node(&server, &args, stop.clone()).await?;
            tunnels.set_own(&args.name, node.stream_server());
            Some(node)
        }
        false => None,
    };
    let site = start::client(&server, "system:tombolo:site");
    tokio::spawn(ties::run(site.clone(), server.clone(), None, args.start.ties_dir(), stop.clone()));
    let address = start::listen(&server, &args.start).await?;
    let (listen, given) = (args.start.listen.ip(), args.url.is_some());
    let url = move |ip| format!("https://{}", SocketAddr::new(ip, address.port()));
    let now = move || outside_address(listen).filter(|_| !given).map(url);
    let published = Published {
        ca: ca.certificate.clone(),
        url: args.url.clone().or_else(now).unwrap_or_else(|| url(address.ip())),
        now: Box::new(now),
        pod_cidr: args.pod_cidr.to_string(),
        service_cidr: args.service_cidr.to_string(),
    };
    nodes::figures::share(&site).await?;
    nodes::publish(site, published, stop.clone()).await?;
    start::ready(&server, "site", address, &args.start)?;
    start::run_until_asked(&server, stop).await
}

/// The address that other machines reach this one at, where it listens on all of them. Nothing is sent for it.
fn outside_address(listen: IpAddr) -> Option<IpAddr> {
    if !listen.is_unspecified() {
        return None;
    }
    let socket = UdpSocket::bind((listen, 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

/// The image of the sample application; it is part of this binary, so that `tombolo up` pulls nothing.
const HELLO: &str = "tombolo.dev/hello:1";
const HELLO_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hello"));
pub const KUBELET_PORT: u16 = 10250;

async fn start_node(server: &Server, args: &Args, stop: CancellationToken) -> Result<Node> {
    let listen = args.start.listen.ip();
    let mut config = NodeConfig::new(
        start::client(server, &format!("system:node:{}", args.name)),
        &args.name,
        args.start.data_dir.join("node"),
    );
    config.registries = args.registries.registries_for(&args.runtime)?;
    config.runtime = args.runtime.clone();
    config.cluster_cidr = Some(args.pod_cidr);
    // Other nodes cannot reach a node at its loopback address.
    config.overlay = !listen.is_loopback();
    config.service_cidr = Some(Subnet::from_str(&args.service_cidr.to_string())?);
    config.listen = Some(Listen {
        address: SocketAddr::new(listen, KUBELET_PORT),
        client_ca: Some(server.ca().certificate.clone()),
        certificate: PortCertificate::Given(Arc::new(server.serving(vec![args.name.clone()], vec![listen])?)),
    });
    if !listen.is_unspecified() {
        config.addresses = vec![listen];
    }
    config.shutdown = stop;
    let node = Node::start(config).await?;
    let entrypoint = Some(vec!["/hello".to_owned()]);
    node.images().add_builtin(
        HELLO,
        &[("/hello", 0o755, HELLO_PROGRAM)],
        ImageConfig { entrypoint, ..Default::default() },
    )?;
    Ok(node)
}

pub fn runtime(text: &str) -> Result<RuntimeChoice, String> {
    match text.strip_prefix("cri=") {
        Some(socket) => Ok(RuntimeChoice::Cri(socket.into())),
        None if text == "embedded" => Ok(RuntimeChoice::Embedded),
        None => Err("write embedded, or cri=SOCKET".into()),
    }
}
