//! The tunnel over TCP: TLS, an HTTP upgrade, two halves tied together; and who is not let in.

mod harness;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode, header};
use http_body_util::Empty;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tombolo_agent::Removal;
use tombolo_api::names;
use tombolo_fleet::{Admission, SitePeer, TunnelHub};
use tombolo_tunnel::{BoxIo, Class, DialError, Dialer, identity_of};

struct Door {
    hub: TunnelHub,
    port: u16,
    pki: harness::Pki,
}

/// What the API server's upgrade route does, over real TLS.
async fn door() -> Door {
    let pki = harness::pki();
    let serve: tombolo_fleet::Serve = Arc::new(|mut io: BoxIo, peer: SitePeer| {
        tokio::spawn(async move {
            let mut line = [0u8; 4];
            if io.read_exact(&mut line).await.is_ok() {
                let _ = io
                    .write_all(format!("{} from {}", String::from_utf8_lossy(&line), peer.site).as_bytes())
                    .await;
                let _ = io.shutdown().await;
            }
        });
    });
    let hub = TunnelHub::new(serve, Duration::from_secs(1));
    let tls =
        tombolo_tunnel::tls::server(pki.cert.as_bytes(), pki.key.as_bytes(), pki.ca.as_bytes()).expect("TLS");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let accept = hub.clone();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, hub) = (acceptor.clone(), accept.clone());
            tokio::spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else { return };
                let identity =
                    tls.get_ref().1.peer_certificates().and_then(|c| identity_of(&c[0])).expect("mutual TLS");
                let service = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
                    let (hub, identity) = (hub.clone(), identity.clone());
                    assert_eq!(request.uri().path(), names::TUNNEL_PATH);
                    let upgrading = hyper::upgrade::on(&mut request);
                    tokio::spawn(async move {
                        if let Ok(io) = upgrading.await {
                            hub.accept(identity, TokioIo::new(io)).await;
                        }
                    });
                    let response = Response::builder()
                        .status(StatusCode::SWITCHING_PROTOCOLS)
                        .header(header::CONNECTION, "Upgrade")
                        .header(header::UPGRADE, "tombolo")
                        .body(Empty::<bytes::Bytes>::new());
                    async move { Ok::<_, Infallible>(response.expect("a response")) }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(tls), service)
                    .with_upgrades()
                    .await;
            });
        }
    });
    Door { hub, port, pki }
}

impl Door {
    fn dialer(&self, site: &str, identity: &str) -> Dialer {
        let ca_key = rcgen::KeyPair::from_pem(&self.pki.ca_key).expect("a key");
        let issuer = rcgen::Issuer::from_ca_cert_pem(&self.pki.ca, ca_key).expect("a CA");
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec![]).expect("params");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, names::site_user(site));
        params.distinguished_name.push(rcgen::DnType::OrganizationName, names::identity_group(identity));
        let cert = params.signed_by(&key, &issuer).expect("signed").pem();
        let tls = tombolo_tunnel::tls::client(
            self.pki.ca.as_bytes(),
            Some((cert.as_bytes(), key.serialize_pem().as_bytes())),
        );
        Dialer {
            host: "localhost".into(),
            port: self.port,
            quic_port: None,
            tls: Arc::new(tls.expect("TLS")),
            path: names::TUNNEL_PATH.into(),
            session: *uuid::Uuid::new_v4().as_bytes(),
        }
    }
}

fn admission() -> Admission {
    let removal = Removal { hub: "h".into(), epoch: 3, delete: true, message: "site old was removed".into() };
    Admission {
        sites: [("a".to_owned(), "i1".to_owned())].into(),
        removed: [("i0".to_owned(), removal)].into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_halves_of_a_tcp_tunnel_find_each_other() {
    let door = door().await;
    door.hub.set_admission(admission());
    let connection = door.dialer("a", "i1").dial().await.expect("let in");
    assert_eq!(connection.carrier(), "tcp");
    let mut io = connection.open(Class::Control).await.expect("open");
    io.write_all(b"ping").await.expect("write");
    let mut answer = String::new();
    io.read_to_string(&mut answer).await.expect("read");
    assert_eq!(answer, "ping from a");
    for class in [Class::Control, Class::Bulk] {
        let (opened, accepted) = tokio::join!(door.hub.open("a", class), connection.accept());
        let (mut opened, (seen, mut accepted)) = (opened.expect("open"), accepted.expect("accept"));
        assert_eq!(seen, class);
        opened.write_all(b"logs").await.expect("write");
        opened.flush().await.expect("flush");
        let mut got = [0u8; 4];
        accepted.read_exact(&mut got).await.expect("read");
        assert_eq!(&got, b"logs");
    }
    door.hub.cut("a", "told to go");
    connection.closed().await;
    assert!(door.hub.open("a", Class::Control).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_not_known_is_told_why() {
    let door = door().await;
    door.hub.set_admission(admission());
    let refused = |site: &'static str, identity: &'static str| {
        let dialer = door.dialer(site, identity);
        async move {
            match dialer.dial().await {
                Err(DialError::Refused { message, .. }) => message,
                Err(other) => panic!("{other}"),
                Ok(_) => panic!("site {site} with identity {identity} was let in"),
            }
        }
    };
    assert!(refused("stranger", "i9").await.contains("does not know site stranger"));
    assert!(refused("a", "i9").await.contains("revoked"));
    let removal = tombolo_agent::removal(&refused("a", "i0").await).expect("a removal");
    assert_eq!((removal.epoch, removal.delete), (3, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_identity_cuts_off_the_certificate_at_once() {
    let door = door().await;
    door.hub.set_admission(admission());
    let connection = door.dialer("a", "i1").dial().await.expect("let in");
    let mut revoked = admission();
    revoked.sites.insert("a".into(), "i2".into());
    door.hub.set_admission(revoked);
    tokio::time::timeout(Duration::from_secs(10), connection.closed()).await.expect("closed");
    assert!(door.dialer("a", "i1").dial().await.is_err());
    assert!(door.dialer("a", "i2").dial().await.is_ok());
}
