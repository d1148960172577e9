//! The little HTTP a registry needs: GET over TLS, with redirects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use thiserror::Error;
use tokio::net::TcpStream;

const CONNECT: Duration = Duration::from_secs(15);
const ANSWER: Duration = Duration::from_secs(60);
const REDIRECTS: usize = 5;
/// Where distributions keep the authorities they trust.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

#[derive(Debug, Error)]
pub enum HttpError {
    #[error("{0} is not an address of a registry")]
    Address(String),
    #[error("connect to {host}: {source}")]
    Connect { host: String, source: std::io::Error },
    #[error("connect to {0}: no answer")]
    Timeout(String),
    #[error("talk to {host}: {source}")]
    Talk { host: String, source: hyper::Error },
    #[error("too many redirects")]
    Redirects,
    #[error("authorities: {0}")]
    Roots(String),
}

/// A client that trusts the machine's authorities and those given.
#[derive(Clone)]
pub(super) struct Http {
    tls: tokio_rustls::TlsConnector,
}

impl Http {
    pub fn new(extra: &[String]) -> Result<Http, HttpError> {
        let mut roots = rustls::RootCertStore::empty();
        let own = std::env::var("SSL_CERT_FILE").ok();
        let bundle = own
            .into_iter()
            .chain(BUNDLES.iter().map(|b| (*b).to_owned()))
            .find_map(|path| std::fs::read(path).ok());
        for certificate in CertificateDer::pem_slice_iter(&bundle.unwrap_or_default()).flatten() {
            // A machine's bundle may contain what this library does not understand; the rest counts.
            let _ = roots.add(certificate);
        }
        for pem in extra {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(|e| HttpError::Roots(e.to_string()))?;
                roots.add(certificate).map_err(|e| HttpError::Roots(e.to_string()))?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| HttpError::Roots(e.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Http { tls: tokio_rustls::TlsConnector::from(Arc::new(config)) })
    }

    /// GET, following redirects; credentials go to the first host only.
    pub async fn get(
        &self,
        url: &str,
        headers: &[(header::HeaderName, String)],
    ) -> Result<Response<Incoming>, HttpError> {
        let mut url = url.to_owned();
        let mut headers = headers.to_vec();
        for _ in 0..REDIRECTS {
            let response = self.once(&url, &headers).await?;
            let target = response.headers().get(header::LOCATION).and_then(|l| l.to_str().ok());
            match target.filter(|_| response.status().is_redirection()) {
                None => return Ok(response),
                Some(target) if target.starts_with('/') => {
                    let end = url
                        .find("://")
                        .and_then(|at| url[at + 3..].find('/').map(|e| at + 3 + e))
                        .unwrap_or(url.len());
                    url = format!("{}{target}", &url[..end]);
                }
                Some(target) => {
                    url = target.to_owned();
                    headers.retain(|(name, _)| *name != header::AUTHORIZATION);
                }
            }
        }
        Err(HttpError::Redirects)
    }

    async fn once(
        &self,
        url: &str,
        headers: &[(header::HeaderName, String)],
    ) -> Result<Response<Incoming>, HttpError> {
        let uri: Uri = url.parse().map_err(|_| HttpError::Address(url.to_owned()))?;
        let host = uri.host().ok_or_else(|| HttpError::Address(url.to_owned()))?.to_owned();
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let connect =
            tokio::time::timeout(CONNECT, TcpStream::connect((host.trim_matches(['[', ']']), port)));
        let failed = |source| HttpError::Connect { host: host.clone(), source };
        let stream = connect.await.map_err(|_| HttpError::Timeout(host.clone()))?.map_err(failed)?;
        let mut request = Request::builder()
            .uri(uri.path_and_query().map_or("/", |p| p.as_str()))
            .header(header::HOST, uri.authority().map_or(host.as_str(), |a| a.as_str()))
            .header(header::USER_AGENT, concat!("tombolo/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Empty::<Bytes>::new()).map_err(|_| HttpError::Address(url.to_owned()))?;
        let talk = |source| HttpError::Talk { host: host.clone(), source };
        let exchange = async {
            let response = if secure {
                let name =
                    ServerName::try_from(host.clone()).map_err(|_| HttpError::Address(url.to_owned()))?;
                let stream = self.tls.connect(name, stream).await.map_err(failed)?;
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(talk)?;
                tokio::spawn(connection);
                sender.send_request(request).await
            } else {
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(talk)?;
                tokio::spawn(connection);
                sender.send_request(request).await
            };
            response.map_err(talk)
        };
        tokio::time::timeout(ANSWER, exchange).await.map_err(|_| HttpError::Timeout(host.clone()))?
    }
}

/// A whole body, up to a limit.
pub(super) async fn read(response: Response<Incoming>, limit: usize) -> Result<Bytes, HttpError> {
    let host = "the registry".to_owned();
    let limited = http_body_util::Limited::new(response.into_body(), limit);
    match tokio::time::timeout(ANSWER, limited.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) => Err(HttpError::Connect { host, source: std::io::Error::other(error.to_string()) }),
        Err(_) => Err(HttpError::Timeout(host)),
    }
}
