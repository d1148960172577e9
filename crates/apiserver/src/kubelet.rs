//! The way to pods when nothing else is configured: the kubelet API on the pod's node.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::bootstrap::keys::{CLIENT_LIFE, InTime, KeyError, Keys};
use crate::pods::{ConnectError, NodeStreams, PodConnector, PodStream, Upstream};
use crate::registry::write;

const PORT: u16 = 10250;
/// A machine that does not answer for this long is told to be unreachable.
const PATIENCE: Duration = Duration::from_secs(10);

/// Dials kubelets with a client certificate of its own.
pub struct Kubelet {
    connector: InTime<tokio_rustls::TlsConnector>,
    streams: Option<Arc<dyn NodeStreams>>,
}

impl Kubelet {
    pub fn new(keys: &Keys, streams: Option<Arc<dyn NodeStreams>>) -> Result<Self, KeyError> {
        let keys = keys.clone();
        Ok(Self { connector: InTime::new(CLIENT_LIFE, move || connector(&keys))?, streams })
    }

    pub async fn to_node(
        &self,
        node: &Value,
        port: Option<&str>,
        path_and_query: String,
    ) -> Result<Upstream, ConnectError> {
        let addresses = node.pointer("/status/addresses").and_then(Value::as_array);
        let of_kind = |kind: &str| {
            let found = addresses.into_iter().flatten().find(|a| a["type"] == kind)?;
            found["address"].as_str()
        };
        let name = write::name_of(node);
        let own = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
        let own = own.map_or(PORT, |port| port as u16);
        let port = port.and_then(|p| p.parse().ok()).unwrap_or(own);
        if let Some(streams) = self.streams.as_ref().filter(|_| port == own)
            && let Some(stream) = streams.open(name).await
        {
            return Ok(Upstream { stream, path_and_query, headers: HeaderMap::new() });
        }
        let Some(address) =
            of_kind("InternalIP").or_else(|| of_kind("ExternalIP")).or_else(|| of_kind("Hostname"))
        else {
            return Err(ConnectError::Unreachable(format!("node {name} has no address yet")));
        };
        let unreachable = |e: std::io::Error| {
            ConnectError::Unreachable(format!("cannot reach node {name} at {address}:{port}: {e}"))
        };
        let stream = dial(address, port).await.map_err(unreachable)?;
        let server = ServerName::try_from(address.to_owned())
            .map_err(|e| ConnectError::Unreachable(format!("node {name} has the address {address}: {e}")))?;
        let secured = tokio::time::timeout(PATIENCE, self.connector.get().connect(server, stream)).await;
        let stream =
            secured.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(unreachable)?;
        Ok(Upstream { stream: Box::new(stream), path_and_query, headers: HeaderMap::new() })
    }
}

fn connector(keys: &Keys) -> Result<tokio_rustls::TlsConnector, KeyError> {
    let client = keys.client_certificate("kube-apiserver-kubelet-client", &["system:masters"])?;
    let damaged = |e: &dyn std::fmt::Display| KeyError::Damaged(e.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = CertificateDer::pem_slice_iter(client.certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| damaged(&e))?;
    let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes()).map_err(|e| damaged(&e))?;
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| damaged(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKubelet(provider)))
        .with_client_auth_cert(chain, key)
        .map_err(|e| damaged(&e))?;
    Ok(Arc::new(config).into())
}

/// A connection to an address inside the cluster, with TLS if asked. Whose certificate it is says nothing here: pods have
/// what they like, and upstream does not look either.
pub async fn plain(
    address: &str,
    port: u16,
    tls: bool,
    path_and_query: String,
) -> Result<Upstream, ConnectError> {
    let unreachable =
        |e: &dyn std::fmt::Display| ConnectError::Unreachable(format!("cannot reach {address}:{port}: {e}"));
    let stream = dial(address, port).await.map_err(|e| unreachable(&e))?;
    let headers = HeaderMap::new();
    if !tls {
        return Ok(Upstream { stream: Box::new(stream), path_and_query, headers });
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| unreachable(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKubelet(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from(address.to_owned()).map_err(|e| unreachable(&e))?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let secured = tokio::time::timeout(PATIENCE, connector.connect(name, stream)).await;
    let stream =
        secured.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(|e| unreachable(&e))?;
    Ok(Upstream { stream: Box::new(stream), path_and_query, headers })
}

async fn dial(address: &str, port: u16) -> std::io::Result<TcpStream> {
    let connected = tokio::time::timeout(PATIENCE, TcpStream::connect((address, port))).await;
    connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}

#[async_trait]
impl PodConnector for Kubelet {
    async fn connect(&self, request: PodStream) -> Result<Upstream, ConnectError> {
        let name = write::name_of(&request.pod).to_owned();
        if request.subresource == "proxy" {
            return to_pod(&request).await;
        }
        let Some(node) = &request.node else {
            return Err(ConnectError::BadRequest(format!("pod {name} does not have a host assigned")));
        };
        self.to_node(node, None, kubelet_path(&request)).await
    }
}

/// The path of the kubelet API for a pod's subresource.
pub fn kubelet_path(request: &PodStream) -> String {
    let name = write::name_of(&request.pod);
    let namespace = &request.namespace;
    let query = crate::http::query::Query::parse(&request.query);
    let container = query.get("container").unwrap_or_default();
    let mut pairs: Vec<String> = Vec::new();
    for pair in request.query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let renamed = match (request.subresource.as_str(), key) {
            (_, "container") => continue,
            // The kubelet has its own names for the streams of exec and attach.
            ("exec" | "attach", "stdin") => "input",
            ("exec" | "attach", "stdout") => "output",
            ("exec" | "attach", "stderr") => "error",
            (_, key) => key,
        };
        let value = match (request.subresource.as_str(), key, value) {
            ("exec" | "attach", "stdin" | "stdout" | "stderr" | "tty", "true") => "1",
            ("exec" | "attach", "stdin" | "stdout" | "stderr" | "tty", "false") => continue,
            (_, _, value) => value,
        };
        pairs.push(format!("{renamed}={value}"));
    }
    let path = match request.subresource.as_str() {
        "log" => format!("/containerLogs/{namespace}/{name}/{container}"),
        "portforward" => format!("/portForward/{namespace}/{name}"),
        other => format!("/{other}/{namespace}/{name}/{container}"),
    };
    if pairs.is_empty() { path } else { format!("{path}?{}", pairs.join("&")) }
}

/// A pod's own port. The connector's path begins with `:port` when the client named one.
async fn to_pod(request: &PodStream) -> Result<Upstream, ConnectError> {
    let name = write::name_of(&request.pod);
    let address = write::text(&request.pod, "/status/podIP");
    if address.is_empty() {
        return Err(ConnectError::Unreachable(format!("pod {name} has no address yet")));
    }
    let (port, path) = match request.path.strip_prefix(':').and_then(|rest| rest.split_once('/')) {
        Some((port, path)) => (port.parse().ok(), format!("/{path}")),
        None => (None, request.path.clone()),
    };
    let first = request.pod.pointer("/spec/containers/0/ports/0/containerPort").and_then(Value::as_u64);
    let port = port.or(first.map(|p| p as u16)).unwrap_or(80);
    let query = if request.query.is_empty() { String::new() } else { format!("?{}", request.query) };
    plain(address, port, request.tls, format!("{path}{query}")).await
}

/// Kubelets serve certificates they signed themselves; upstream does not check them by default either. The client
/// certificate keeps strangers out, and the address comes from the node's own authenticated status.
#[derive(Debug)]
struct AnyKubelet(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyKubelet {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn queries_are_written_the_kubelet_s_way() {
        let request = |subresource: &str, query: &str| PodStream {
            namespace: "ns".into(),
            pod: json!({"metadata": {"name": "p"}}),
            node: None,
            subresource: subresource.into(),
            query: query.into(),
            path: String::new(),
            tls: false,
            user: crate::Identity::default(),
        };
        let path = kubelet_path(&request("exec", "container=c&command=ls&stdin=true&stdout=true&tty=false"));
        assert_eq!(path, "/exec/ns/p/c?command=ls&input=1&output=1");
        assert_eq!(
            kubelet_path(&request("log", "container=c&follow=true")),
            "/containerLogs/ns/p/c?follow=true"
        );
        assert_eq!(kubelet_path(&request("portforward", "ports=80")), "/portForward/ns/p?ports=80");
    }
}
