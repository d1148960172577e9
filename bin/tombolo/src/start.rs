//! What `serve`, `site` and `hub` have in common: a store, an API server on a port, an administrator's kubeconfig.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use http::Request;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tombolo_apiserver::{Body, CLIENT_LIFE, Config, Identity, Server, is_due};
use tombolo_store::{EmbeddedOptions, EmbeddedStore, EtcdOptions, EtcdStore, MemoryStore, Store};

use crate::etcd::EtcdArgs;

/// Several clusters may share one etcd; all of ours is below this.
const ETCD_PREFIX: &str = "/tombolo";
/// How long running requests may take to finish when the process is asked to end.
const DRAIN: Duration = Duration::from_secs(5);
/// How soon a clock that was set right is noticed.
const CLOCK_LOOK: Duration = Duration::from_secs(10);

#[derive(clap::Args, Clone, Debug)]
pub struct ServerArgs {
    /// Folder for everything this process keeps
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Address and port to serve on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:6443", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// Where objects are kept: embedded, memory, or etcd=URL[,URL]
    #[arg(long, default_value = "embedded", value_name = "STORE")]
    pub store: StoreChoice,
    #[command(flatten)]
    pub etcd: EtcdArgs,
    /// More names or addresses for the serving certificate
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub tls_san: Vec<String>,
    /// Run inside this network namespace
    #[arg(long, hide = true)]
    pub netns: Option<String>,
}

impl ServerArgs {
    /// Where what hubs want of this cluster is kept. Not where several processes share a store: what one of them kept may
    /// be behind what another one did since.
    pub fn ties_dir(&self) -> Option<PathBuf> {
        (self.store == StoreChoice::Embedded).then(|| self.data_dir.join("ties"))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    Embedded,
    Memory,
    Etcd(Vec<String>),
}

impl FromStr for StoreChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "embedded" => Ok(Self::Embedded),
            "memory" => Ok(Self::Memory),
            _ => match text.strip_prefix("etcd=") {
                Some(urls) if !urls.is_empty() => {
                    Ok(Self::Etcd(urls.split(',').map(str::to_owned).collect()))
                }
                _ => Err("write embedded, memory, or etcd=URL[,URL]".into()),
            },
        }
    }
}

/// Makes a folder for keys and Secrets: nobody but its owner looks into it. One that is there stays as it is.
pub fn private_folder(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

/// Opens the store and prepares the API server's configuration for it.
pub async fn configure(args: &ServerArgs) -> Result<Config> {
    let tls = args.etcd.tls(&args.store)?;
    private_folder(&args.data_dir)
        .with_context(|| format!("cannot create the folder {}", args.data_dir.display()))?;
    let store: Arc<dyn Store> = match &args.store {
        StoreChoice::Memory => Arc::new(MemoryStore::new()),
        StoreChoice::Embedded => {
            Arc::new(EmbeddedStore::open(&args.data_dir.join("store"), EmbeddedOptions::default())?)
        }
        StoreChoice::Etcd(urls) => {
            let options = EtcdOptions { endpoints: urls.clone(), prefix: ETCD_PREFIX.into(), tls };
            Arc::new(EtcdStore::connect(options).await?)
        }
    };
    crate::control::listen(&args.data_dir, store.clone())?;
    let mut config = Config::new(store);
    config.replicated = matches!(args.store, StoreChoice::Etcd(_));
    for name in &args.tls_san {
        match name.parse::<IpAddr>() {
            Ok(address) => config.addresses.push(address),
            Err(_) => config.names.push(name.clone()),
        }
    }
    if !args.listen.ip().is_unspecified() && !args.listen.ip().is_loopback() {
        config.advertise = Some(args.listen);
    }
    Ok(config)
}

/// Listens, also on an address that the machine gets later; gives the address that clients use.
pub async fn listen(server: &Server, args: &ServerArgs) -> Result<SocketAddr> {
    listen_on(server, args, tombolo_net::listen(args.listen).await).await
}

/// Listens on a port that was opened; gives the address that clients use.
pub async fn listen_on(
    server: &Server,
    args: &ServerArgs,
    opened: std::io::Result<TcpListener>,
) -> Result<SocketAddr> {
    let listening = server.listen(args.listen, opened).await?;
    let mut address = listening.address;
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    Ok(address)
}

/// Writes `admin.kubeconfig` and says so in one line: from now on everything answers.
pub fn ready(server: &Server, what: &str, address: SocketAddr, args: &ServerArgs) -> Result<()> {
    let text = server.admin_kubeconfig(&format!("https://{address}"))?;
    let path = kubeconfig_path(args);
    write_private(&path, &text)?;
    tokio::spawn(keep_kubeconfig(server.clone(), address, path.clone()));
    println!("tombolo {what} https://{address} (kubeconfig: {})", path.display());
    crate::notify::ready();
    Ok(())
}

/// Writes the administrator's kubeconfig again when its certificate comes to its end, or when the clock was wrong when it
/// was made.
async fn keep_kubeconfig(server: Server, address: SocketAddr, path: PathBuf) {
    let mut made = SystemTime::now();
    loop {
        tokio::time::sleep(CLOCK_LOOK).await;
        let now = SystemTime::now();
        if !is_due(made, CLIENT_LIFE, now) {
            continue;
        }
        let written = server
            .admin_kubeconfig(&format!("https://{address}"))
            .map_err(anyhow::Error::from)
            .and_then(|text| write_private(&path, &text));
        match written {
            Ok(()) => made = now,
            Err(error) => tracing::warn!(%error, "the administrator's kubeconfig could not be written again"),
        }
    }
}

fn kubeconfig_path(args: &ServerArgs) -> PathBuf {
    args.data_dir.join("admin.kubeconfig")
}

/// Written beside its final name and renamed, so that who waits for the file never reads half of it.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    let wrong = || format!("cannot write {}", path.display());
    let _ = fs::remove_file(&partial);
    let mut file =
        fs::File::options().write(true).create_new(true).mode(0o600).open(&partial).with_context(wrong)?;
    file.write_all(text.as_bytes()).with_context(wrong)?;
    fs::rename(&partial, path).with_context(wrong)
}

/// A client that calls the server in this process: no sockets, no TLS, and no `managedFields` in an answer unless the request
/// says so.
pub fn client(server: &Server, user: &str) -> kube::Client {
    client_in_process(server, user, true)
}

/// As [`client`], for who wants to know who wrote which field.
pub fn client_with_managers(server: &Server, user: &str) -> kube::Client {
    client_in_process(server, user, false)
}

fn client_in_process(server: &Server, user: &str, omit_managers: bool) -> kube::Client {
    let (server, identity) = (server.clone(), Identity::system(user));
    let service = tower::service_fn(move |mut request: Request<kube::client::Body>| {
        let (server, identity) = (server.clone(), identity.clone());
        let asked = request.uri().query().is_some_and(|query| query.contains("omitManagedFields="));
        if omit_managers && !asked {
            let uri = request.uri();
            let more = if uri.query().is_some() { '&' } else { '?' };
            if let Ok(uri) = format!("{uri}{more}omitManagedFields=true").parse() {
                *request.uri_mut() = uri;
            }
        }
        async move {
            Ok::<_, std::convert::Infallible>(server.handle(request.map(Body::wrap), Some(identity)).await)
        }
    });
    kube::Client::new(service, "default")
}

/// Waits for SIGTERM or Ctrl-C, then ends in order: the loops first, then the server.
pub async fn run_until_asked(server: &Server, loops: CancellationToken) -> Result<()> {
    run_with_last_words(server, loops, std::future::ready(())).await
}

/// As [`run_until_asked`]; `last` is what one of the loops still has to say to the server when it was told to end.
pub async fn run_with_last_words(
    server: &Server,
    loops: CancellationToken,
    last: impl Future<Output = ()>,
) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
        () = loops.cancelled() => {}
    }
    loops.cancel();
    last.await;
    server.shutdown(DRAIN).await?;
    Ok(())
}
