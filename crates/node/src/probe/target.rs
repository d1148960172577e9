//! What a network probe talks to: an HTTP path, a TCP port or a gRPC health service.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) enum Target {
    Http { address: String, port: u16, path: String, tls: bool, headers: Vec<(String, String)> },
    Tcp { address: String, port: u16 },
    Grpc { address: String, port: u16, service: String },
}

/// A port by number, or by the name the container gives it.
fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => text.parse().ok().or_else(|| {
            let named = container.ports.iter().flatten().find(|p| p.name.as_deref() == Some(text));
            named.map(|p| p.container_port)
        }),
    };
    number.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0).ok_or_else(|| format!("no port {port:?}"))
}

impl Target {
    pub fn of(probe: &Probe, container: &Container, address: &str) -> Result<Target, String> {
        if let Some(get) = &probe.http_get {
            return Target::http(get, container, address);
        }
        if let Some(tcp) = &probe.tcp_socket {
            let address = tcp.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| address.to_owned());
            return Ok(Target::Tcp { address, port: port(&tcp.port, container)? });
        }
        if let Some(grpc) = &probe.grpc {
            let port = u16::try_from(grpc.port).map_err(|_| format!("no port {}", grpc.port))?;
            return Ok(Target::Grpc {
                address: address.to_owned(),
                port,
                service: grpc.service.clone().unwrap_or_default(),
            });
        }
        Err("the probe says neither exec, httpGet, tcpSocket nor grpc".into())
    }

    pub fn http(get: &HTTPGetAction, container: &Container, address: &str) -> Result<Target, String> {
        let headers = get.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
        let path = get.path.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "/".into());
        Ok(Target::Http {
            address: get.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| address.to_owned()),
            port: port(&get.port, container)?,
            path: if path.starts_with('/') { path } else { format!("/{path}") },
            tls: get.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            headers,
        })
    }

    /// One try.
    pub async fn check(&self, limit: Duration) -> Result<(), String> {
        let (address, port) = match self {
            Target::Http { address, port, .. }
            | Target::Tcp { address, port }
            | Target::Grpc { address, port, .. } => (address, *port),
        };
        let connect = TcpStream::connect((address.as_str(), port));
        let stream = tokio::time::timeout(limit, connect)
            .await
            .map_err(|_| format!("dial tcp {address}:{port}: i/o timeout"))?;
        let stream = stream.map_err(|error| format!("dial tcp {address}:{port}: connect: {error}"))?;
        match self {
            Target::Tcp { .. } => Ok(()),
            Target::Http { tls: false, .. } => self.get(stream).await,
            Target::Http { tls: true, .. } => {
                let stream = tls(stream, address).await?;
                self.get(stream).await
            }
            Target::Grpc { service, .. } => grpc(stream, &format!("{address}:{port}"), service).await,
        }
    }

    async fn get(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<(), String> {
        let Target::Http { address, port, path, headers, .. } = self else { return Ok(()) };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        tokio::spawn(connection);
        let mut request =
            Request::builder().method(Method::GET).uri(path.as_str()).header("connection", "close");
        let given = |name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        if !given("host") {
            request = request.header("host", format!("{address}:{port}"));
        }
        if !given("user-agent") {
            request = request.header("user-agent", "kube-probe/1.36");
        }
        if !given("accept") {
            request = request.header("accept", "*/*");
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(name.as_str(), value.as_str());
        }
        let request = request.body(Full::<Bytes>::default()).map_err(|e| e.to_string())?;
        let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let code = response.status().as_u16();
        if (200..400).contains(&code) {
            Ok(())
        } else {
            Err(format!("HTTP probe failed with statuscode: {code}"))
        }
    }
}

/// TLS to a program in a pod: its certificate is nobody's business, as for every kubelet.
async fn tls(stream: TcpStream, address: &str) -> Result<tokio_rustls::client::TlsStream<TcpStream>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    let name = rustls_pki_types::ServerName::try_from(address.to_owned()).map_err(|e| e.to_string())?;
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|e| e.to_string())
}

#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &rustls_pki_types::CertificateDer<'_>,
        _: &[rustls_pki_types::CertificateDer<'_>],
        _: &rustls_pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &rustls_pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &rustls_pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// `grpc.health.v1.Health/Check`: one message with one string in, one with one number out.
async fn grpc(stream: TcpStream, authority: &str, service: &str) -> Result<(), String> {
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|e| format!("error: failed to connect gRPC service: {e}"))?;
    tokio::spawn(connection);
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.push(length as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let mut body = vec![0u8];
    body.extend_from_slice(&(message.len() as u32).to_be_bytes());
    body.extend_from_slice(&message);
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.36")
        .body(Full::<Bytes>::from(body))
        .map_err(|e| e.to_string())?;
    let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
    let head_status = response.headers().get("grpc-status").cloned();
    let collected = response.into_body().collect().await.map_err(|e| e.to_string())?;
    let status = head_status.or_else(|| collected.trailers().and_then(|t| t.get("grpc-status").cloned()));
    if let Some(code) = status.and_then(|s| s.to_str().ok().map(str::to_owned)).filter(|code| code != "0") {
        return Err(format!("error: health rpc failed with gRPC status {code}"));
    }
    let bytes = collected.to_bytes();
    // Field 1 of the answer; 1 means SERVING.
    match bytes.get(5..) {
        Some([0x08, 1, ..]) => Ok(()),
        Some([0x08, other, ..]) => Err(format!(
            "service unhealthy (responded with {})",
            if *other == 2 { "NOT_SERVING" } else { "UNKNOWN" }
        )),
        _ => Err("service unhealthy (responded with \"UNKNOWN\")".into()),
    }
}
