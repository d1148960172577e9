//! The server: configuration, start, and the way of one request through it.

use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header, request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tombolo_store::{Record, Store, StoreError};

use crate::admission;
use crate::auth::trace::Refusals;
use crate::auth::{self, Identity};
use crate::bootstrap;
use crate::bootstrap::keys::{KeyError, Keys, PemPair};
use crate::config::Config;
use crate::http::body::Body;
use crate::http::listener::{self, ListenError, Listening};
use crate::http::query::Query;
use crate::http::route::{self, Target};
use crate::http::serving::Serving;
use crate::http::status::{Failure, Result};
use crate::http::warnings;
use crate::kinds;
use crate::kubelet::Kubelet;
use crate::limits::Limiter;
use crate::metrics::Metrics;
use crate::mirror::Mirror;
use crate::pods::PodConnector;
use crate::registry::Registry;
use crate::routes;
use crate::upgrade::Upgrade;
use crate::usage::Usage;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot write the objects every cluster has: {0}")]
    Bootstrap(Failure),
}

/// What all requests share.
pub struct App {
    pub store: Arc<dyn Store>,
    pub config: Config,
    pub keys: Keys,
    pub registry: Registry,
    pub access: auth::Access,
    pub policies: Mirror<admission::Policies>,
    pub metrics: Arc<Metrics>,
    pub stop: CancellationToken,
    pub tracker: TaskTracker,
    pub pods: Arc<dyn PodConnector>,
    pub kubelet: Arc<Kubelet>,
    pub limiter: Limiter,
    /// Where there are nodes to ask.
    pub usage: Option<Usage>,
    pub refusals: Refusals,
}

impl App {
    pub async fn get(&self, key: &str) -> Result<Option<Record>> {
        self.store.get(key).await.map_err(|e| self.store_failure(e))
    }

    /// A built-in object, parsed.
    pub async fn object(
        &self,
        group: &str,
        version: &str,
        plural: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<serde_json::Value>> {
        let resource =
            self.registry.built_in.find(group, version, plural).expect("asked for a built-in kind");
        match self.get(&resource.key(namespace, name)).await? {
            Some(record) => {
                resource.decode(&record.value, record.revision).map(Some).map_err(Failure::internal)
            }
            None => Ok(None),
        }
    }

    pub fn store_failure(&self, error: StoreError) -> Failure {
        match error {
            StoreError::Future { requested, current } => Failure::future_revision(requested, current),
            StoreError::Compacted { requested, compacted } => Failure::expired(format!(
                "The provided resource version is too old: {requested} ({compacted})"
            )),
            StoreError::TooLarge { limit, .. } => Failure::too_large(limit),
            StoreError::Closed => Failure::unavailable("the server is shutting down"),
            StoreError::Unavailable(why) => Failure::unavailable(format!("the store is unavailable: {why}")),
            StoreError::Full { .. } => Failure::new(507, "InternalError", error.to_string()),
            other => Failure::internal(other),
        }
    }

    /// Random bits, good enough for names and jitter; the low 62 are random.
    pub fn random(&self) -> u64 {
        uuid::Uuid::new_v4().as_u128() as u64 & (u64::MAX >> 2)
    }
}

/// One request on its way.
pub struct Call {
    pub app: Arc<App>,
    pub method: Method,
    pub path: String,
    pub raw_query: String,
    pub target: Target,
    pub query: Query,
    pub headers: HeaderMap,
    pub user: Arc<Identity>,
    /// Claims on addresses and ports, to be given back if the write is lost.
    pub claims: Vec<kinds::services::Claim>,
    /// Shown to the client as `Warning` headers.
    pub warnings: Vec<String>,
    /// Present when the connection can be taken over (exec, tunnels).
    pub upgrade: Option<Upgrade>,
}

impl Call {
    /// A request that the server makes of itself.
    pub fn internal(app: &Arc<App>, target: Target) -> Self {
        Self {
            app: app.clone(),
            method: Method::GET,
            path: String::new(),
            raw_query: String::new(),
            target,
            query: Query::default(),
            headers: HeaderMap::new(),
            user: Arc::new(Identity::system("system:apiserver")),
            claims: Vec::new(),
            warnings: Vec::new(),
            upgrade: None,
        }
    }

    pub fn accept(&self) -> Option<&str> {
        self.header(header::ACCEPT)
    }

    pub fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    pub fn user_agent(&self) -> &str {
        self.header(header::USER_AGENT).unwrap_or_default()
    }

    /// A write that turns out to need another right than its verb says.
    pub async fn authorize_also(&self, verb: &'static str) -> Result<()> {
        let target = Target { verb, ..self.target.clone() };
        self.app.access.authorize(&self.app, &self.user, &target, &self.path).await
    }

    /// A create that also says what only the status's own endpoint may.
    pub async fn authorize_status(&self) -> Result<()> {
        let target = Target { verb: "update", subresource: "status".into(), ..self.target.clone() };
        self.app.access.authorize(&self.app, &self.user, &target, &self.path).await
    }
}

/// A running API server. Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct Server {
    app: Arc<App>,
}

impl Server {
    /// Opens keys, writes the objects every cluster has if they are missing, and is ready to answer.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let store = config.store.clone();
        let keys = Keys::open(&*store).await?;
        let kubelet = Arc::new(Kubelet::new(&keys, config.nodes.clone())?);
        let stop = CancellationToken::new();
        let app = Arc::new(App {
            pods: config.pods.clone().unwrap_or_else(|| kubelet.clone()),
            kubelet,
            registry: Registry::new(&stop),
            policies: Mirror::new(admission::Policies::default(), admission::sources()),
            access: auth::Access::new(&keys, &config)?,
            metrics: Metrics::new(),
            stop,
            tracker: TaskTracker::new(),
            limiter: Limiter::new(config.limits),
            usage: config.nodes.is_some().then(Usage::default),
            refusals: Refusals::default(),
            keys,
            store,
            config,
        });
        bootstrap::objects::ensure(&app).await.map_err(StartError::Bootstrap)?;
        crate::upkeep::spawn(&app);
        Ok(Self { app })
    }

    /// Answers a request in process. Without an identity the request's own credentials count.
    pub async fn handle(&self, request: Request<Body>, identity: Option<Identity>) -> Response<Body> {
        self.answer(request, identity.map(Arc::new)).await
    }

    /// Serves HTTP on any byte stream on behalf of one identity.
    pub async fn serve_stream<I>(&self, io: I, identity: Identity)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        listener::serve(self.clone(), Box::new(io), Some(Arc::new(identity))).await;
    }

    /// The certificate authority: certificate and key, PEM.
    pub fn ca(&self) -> &PemPair {
        &self.app.keys.ca
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.app.store
    }

    /// A client certificate signed by this server's CA.
    pub fn client_certificate(&self, user: &str, groups: &[&str]) -> Result<PemPair, KeyError> {
        self.app.keys.client_certificate(user, groups)
    }

    /// A serving certificate signed by this server's CA, for another listener of the same process.
    pub fn server_certificate(&self, names: &[String], addresses: &[IpAddr]) -> Result<PemPair, KeyError> {
        self.app.keys.server_certificate(names, addresses)
    }

    /// The same for as long as the process lives: it is replaced when its time is over.
    pub fn serving(&self, names: Vec<String>, addresses: Vec<IpAddr>) -> Result<Serving, KeyError> {
        Serving::new(&self.app.keys, names, addresses)
    }

    /// A kubeconfig with a fresh certificate of an administrator (group `system:masters`).
    pub fn admin_kubeconfig(&self, server_url: &str) -> Result<String, KeyError> {
        let client = self.client_certificate("kubernetes-admin", &[auth::identity::GROUP_MASTERS])?;
        Ok(bootstrap::keys::kubeconfig(
            server_url,
            &self.app.keys.ca.certificate,
            "kubernetes-admin",
            &client,
        ))
    }

    /// Serves TLS on a port that the caller opened at `address` (which may have port 0), or tried to.
    pub async fn listen(
        &self,
        address: SocketAddr,
        opened: std::io::Result<tokio::net::TcpListener>,
    ) -> Result<Listening, ListenError> {
        let bind = |source| ListenError::Bind { address, source };
        let listener = opened.map_err(bind)?;
        let local = listener.local_addr().map_err(bind)?;
        let mut names: Vec<String> =
            ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
                .map(str::to_owned)
                .to_vec();
        names.push(format!("kubernetes.default.svc.{}", self.app.config.cluster_domain));
        names.extend(self.app.config.names.iter().cloned());
        let mut addresses: Vec<IpAddr> =
            vec![[127, 0, 0, 1].into(), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)];
        addresses.extend(self.app.config.addresses.iter().copied());
        addresses.push(self.app.config.service_cidr.first());
        addresses.push(local.ip());
        addresses.sort_unstable();
        addresses.dedup();
        let serving = Arc::new(Serving::new(&self.app.keys, names, addresses)?);
        let tls = Arc::new(listener::tls_config(&self.app.keys.ca.certificate, serving)?);
        let task =
            listener::accept(self.clone(), listener, tls, self.app.stop.clone(), self.app.tracker.clone());
        self.app.tracker.spawn(task);
        let published = self.app.config.advertise.unwrap_or(local);
        bootstrap::replicas::announce(&self.app, published).await.map_err(ListenError::Publish)?;
        Ok(Listening { address: local })
    }

    pub fn stopping(&self) -> CancellationToken {
        self.app.stop.clone()
    }

    /// Stops accepting, ends watches with a last bookmark, lets running requests finish for up to `patience`,
    /// then closes the store.
    pub async fn shutdown(&self, patience: Duration) -> Result<(), StoreError> {
        self.app.stop.cancel();
        self.app.tracker.close();
        let _ = tokio::time::timeout(patience, self.app.tracker.wait()).await;
        self.app.store.close().await
    }

    pub(crate) async fn answer(
        &self,
        request: Request<Body>,
        identity: Option<Arc<Identity>>,
    ) -> Response<Body> {
        let started = Instant::now();
        let _running = self.app.metrics.running();
        let (mut parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let target = route::parse(&parts.method, parts.uri.path(), &query);
        let (verb, group, resource) = (target.verb, target.group.clone(), target.full_resource());
        let audit = audit_id(&parts);
        let upgrade = Upgrade::of(&mut parts.extensions);
        let mut call = Call {
            app: self.app.clone(),
            path: parts.uri.path().to_owned(),
            raw_query: parts.uri.query().unwrap_or_default().to_owned(),
            method: parts.method,
            target,
            query,
            headers: parts.headers,
            user: identity.clone().unwrap_or_default(),
            claims: Vec::new(),
            warnings: Vec::new(),
            upgrade,
        };
        let answered = AssertUnwindSafe(self.run(&mut call, identity, body)).catch_unwind().await;
        let mut response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(failure)) => {
                if failure.code() == 403 {
                    self.app.refusals.forbidden(&call.user.user, failure.message());
                }
                failure.response()
            }
            Err(_) => {
                tracing::error!(path = call.path, "a request handler panicked");
                Failure::internal("the handler of this request failed; the server's log says where")
                    .response()
            }
        };
        let headers = response.headers_mut();
        headers.insert("audit-id", audit);
        if !headers.contains_key(header::CACHE_CONTROL) {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        }
        for warning in warnings::headers(&call.warnings) {
            headers.append(header::WARNING, warning);
        }
        let code = response.status().as_u16();
        // Only names that exist become labels: a stranger must not be able to grow them without end.
        let (group, resource) =
            if matches!(code, 401 | 403 | 404) { ("", "") } else { (&*group, &*resource) };
        self.app.metrics.answered(verb, group, resource, code, started.elapsed().as_secs_f64());
        response
    }

    async fn run(
        &self,
        call: &mut Call,
        identity: Option<Arc<Identity>>,
        body: Body,
    ) -> Result<Response<Body>> {
        let app = self.app.clone();
        call.user = match identity {
            Some(identity) => identity,
            None => app.access.authenticate(&app, &call.headers).await?,
        };
        call.user = app.access.impersonate(&app, &call.user, &call.headers).await?;
        let _slot = app.limiter.admit(call).await?;
        app.access.authorize(&app, &call.user, &call.target, &call.path).await?;
        routes::dispatch(call, body).await
    }
}

fn audit_id(parts: &request::Parts) -> HeaderValue {
    match parts.headers.get("audit-id") {
        Some(given) => given.clone(),
        None => {
            HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).expect("a UUID is a valid header value")
        }
    }
}
