use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn pair() -> (Connection, Connection) {
    let (a, b) = tokio::io::duplex(64 << 10);
    let (c, d) = tokio::io::duplex(64 << 10);
    let dialer = Connection::over_io(a, true, heartbeat::DEFAULT_INTERVAL);
    let acceptor = Connection::over_io(b, false, Duration::from_secs(1));
    dialer.add_bulk(c, true).expect("over io");
    acceptor.add_bulk(d, false).expect("over io");
    (dialer, acceptor)
}

pub fn quic_pki() -> (rustls::ServerConfig, rustls::ClientConfig) {
    let ca_key = rcgen::KeyPair::generate().expect("key");
    let mut params = rcgen::CertificateParams::new(vec![]).expect("params");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).expect("ca");
    let issuer = rcgen::Issuer::from_params(&params, &ca_key);
    let leaf = |cn: &str, names: Vec<String>| {
        let key = rcgen::KeyPair::generate().expect("key");
        let mut params = rcgen::CertificateParams::new(names).expect("params");
        params.distinguished_name.push(rcgen::DnType::CommonName, cn);
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:sites");
        let cert = params.signed_by(&key, &issuer).expect("signed");
        (cert.pem(), key.serialize_pem())
    };
    let (server_cert, server_key) = leaf("hub", vec!["localhost".into()]);
    let (site_cert, site_key) = leaf("system:site:a", vec![]);
    let server = crate::tls::server(server_cert.as_bytes(), server_key.as_bytes(), ca.pem().as_bytes());
    let client = crate::tls::client(ca.pem().as_bytes(), Some((site_cert.as_bytes(), site_key.as_bytes())));
    (server.expect("server"), client.expect("client"))
}

async fn quic_pair() -> (Connection, Connection, quinn::Connection) {
    let (server, client) = quic_pki();
    let endpoint =
        crate::quic::listen("127.0.0.1:0".parse().expect("address"), server, b"secret").expect("listen");
    let address = endpoint.local_addr().expect("bound");
    let (dialed, accepted) = tokio::join!(crate::quic::dial(address, "localhost", client), async {
        endpoint.accept().await.expect("one comes").await.expect("handshake")
    });
    let dialer = Connection::over_quic(dialed.expect("dialed").0, true, heartbeat::DEFAULT_INTERVAL);
    let acceptor = Connection::over_quic(accepted.clone(), false, Duration::from_secs(1));
    (dialer, acceptor, accepted)
}

async fn echo_both_ways(a: &Connection, b: &Connection) {
    for (from, to) in [(a, b), (b, a)] {
        for class in [Class::Control, Class::Bulk] {
            let (opened, accepted) = tokio::join!(from.open(class), to.accept());
            let (mut opened, (seen, mut accepted)) = (opened.expect("open"), accepted.expect("accept"));
            assert_eq!(seen, class);
            opened.write_all(b"hello").await.expect("write");
            opened.shutdown().await.expect("half-close");
            let mut text = String::new();
            accepted.read_to_string(&mut text).await.expect("read");
            assert_eq!(text, "hello");
        }
    }
}

#[tokio::test]
async fn both_ends_open_streams_of_both_classes_over_tcp() {
    let (a, b) = pair();
    echo_both_ways(&a, &b).await;
}

#[tokio::test]
async fn both_ends_open_streams_of_both_classes_over_quic_and_the_hub_knows_who_came() {
    let (a, b, raw) = quic_pair().await;
    echo_both_ways(&a, &b).await;
    let certificates = raw.peer_identity().expect("mutual TLS");
    let certificates: Box<Vec<rustls_pki_types::CertificateDer<'static>>> =
        certificates.downcast().expect("certificates");
    let identity = crate::identity_of(&certificates[0]).expect("an identity");
    assert_eq!(identity.user, "system:site:a");
    assert_eq!(identity.groups, ["system:sites"]);
}

#[tokio::test]
async fn control_passes_while_bulk_is_stuck() {
    for (a, b) in [pair(), {
        let (a, b, _) = quic_pair().await;
        (a, b)
    }] {
        let (stuck, taken) = tokio::join!(a.open(Class::Bulk), b.accept());
        let (mut stuck, _taken) = (stuck.expect("open"), taken.expect("accept"));
        // Nobody reads `_taken`: its window fills and this writer stays behind.
        let filling = tokio::spawn(async move {
            let block = vec![0u8; 64 << 10];
            while stuck.write_all(&block).await.is_ok() {}
        });
        let (control, accepted) = tokio::join!(a.open(Class::Control), b.accept());
        let (mut control, (_, mut accepted)) = (control.expect("open"), accepted.expect("accept"));
        let mut answer = [0u8; 4];
        for _ in 0..20 {
            control.write_all(b"ping").await.expect("write");
            control.flush().await.expect("flush");
            accepted.read_exact(&mut answer).await.expect("read");
        }
        assert!(!filling.is_finished());
        filling.abort();
    }
}

#[tokio::test]
async fn many_streams_at_once_wait_until_they_are_accepted() {
    for (a, b) in [pair(), {
        let (a, b, _) = quic_pair().await;
        (a, b)
    }] {
        // As many as a site may have open over QUIC, less its heartbeat.
        let opened = futures::future::join_all((0..99u8).map(|n| {
            let a = &a;
            async move {
                let mut io = a.open(Class::Control).await.expect("open");
                io.write_u8(n).await.expect("write");
                io.flush().await.expect("flush");
                io
            }
        }))
        .await;
        let mut seen = std::collections::BTreeSet::new();
        for _ in &opened {
            let next = tokio::time::timeout(Duration::from_secs(10), b.accept()).await.expect("in time");
            seen.insert(next.expect("accept").1.read_u8().await.expect("read"));
        }
        assert_eq!(seen.len(), opened.len());
    }
}

#[tokio::test]
async fn a_connection_is_in_use_for_as_long_as_a_bulk_stream_is_held() {
    let (a, b) = pair();
    let (mut opened, accepted) = tokio::join!(a.open(Class::Control), b.accept());
    opened.as_mut().expect("open").write_all(b"x").await.expect("write");
    assert!(!b.in_use(), "watches and reports go on anyway");
    drop(accepted);
    let (_opened, accepted) = tokio::join!(a.open(Class::Bulk), b.accept());
    assert!(b.in_use());
    let moved = tokio::spawn(async move { drop(accepted) });
    moved.await.expect("done");
    assert!(!b.in_use());
}

#[tokio::test]
async fn heartbeats_measure_the_round_trip_at_both_ends() {
    let (a, b) = pair();
    tokio::time::timeout(Duration::from_secs(10), async {
        while a.rtt().is_none() || b.rtt().is_none() {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("both measured");
}

#[tokio::test]
async fn a_silent_peer_is_given_up_after_three_beats() {
    // The peer's process hangs: its end stays open and says nothing.
    let (_silent, io) = tokio::io::duplex(64);
    let why =
        heartbeat::acceptor(Box::new(io), Duration::from_millis(20), &Beat::new(), &CancellationToken::new())
            .await;
    assert!(why.contains("no heartbeat for 60ms"), "{why}");
}

#[tokio::test]
async fn closing_one_end_closes_the_other_and_tells_why_over_quic() {
    let (a, b, _raw) = quic_pair().await;
    let _ = b.rtt();
    b.close("site a was removed from this hub");
    assert_eq!(a.closed().await, "site a was removed from this hub");
    assert!(a.open(Class::Control).await.is_err());
}

#[tokio::test]
async fn a_kubernetes_client_works_over_the_tunnel() {
    let (a, b) = pair();
    tokio::spawn(async move {
        while let Some((_, io)) = b.accept().await {
            tokio::spawn(crate::serve_http(io, |request| async move {
                assert_eq!(request.uri().path(), "/version");
                let body = serde_json::json!({"major":"1","minor":"36","gitVersion":"v1.36.3","gitCommit":"","gitTreeState":"",
                    "buildDate":"","goVersion":"","compiler":"","platform":""});
                crate::full(http::StatusCode::OK, "application/json", body.to_string())
            }));
        }
    });
    let client = crate::client(a);
    for _ in 0..3 {
        assert_eq!(client.apiserver_version().await.expect("answered").git_version, "v1.36.3");
    }
}
