//! How soon a site notices that its hub's process is gone, on real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;

use crate::connection::tests::quic_pki;
use crate::{Connection, DEFAULT_INTERVAL};

/// The way between a site and a hub. Dropped, its port is closed as that of a process that was killed.
struct Way {
    address: SocketAddr,
    cut: Arc<AtomicBool>,
    carrying: tokio::task::JoinHandle<()>,
}

impl Way {
    async fn to(hub: SocketAddr) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let far = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        far.connect(hub).await.expect("an address");
        let (address, cut) = (near.local_addr().expect("bound"), Arc::new(AtomicBool::new(false)));
        let is_cut = cut.clone();
        let carrying = tokio::spawn(async move {
            let (mut up, mut down) = ([0; 2000], [0; 2000]);
            let mut site = None;
            loop {
                let passes = || !is_cut.load(Ordering::SeqCst);
                tokio::select! {
                    Ok((length, from)) = near.recv_from(&mut up) => {
                        site = Some(from);
                        if passes() {
                            let _ = far.send(&up[..length]).await;
                        }
                    }
                    received = far.recv(&mut down) => if let (Ok(length), Some(site), true) = (received, site, passes()) {
                        let _ = near.send_to(&down[..length], site).await;
                    },
                }
            }
        });
        Self { address, cut, carrying }
    }
}

fn dialer(address: SocketAddr, tls: rustls::ClientConfig) -> crate::Dialer {
    crate::Dialer {
        host: "localhost".into(),
        port: 1,
        quic_port: Some(address.port()),
        tls: Arc::new(tls),
        path: "/".into(),
        session: [0; 16],
    }
}

/// A hub, a site that is tied to it, and the way between them.
async fn tied() -> (quinn::Endpoint, Connection, Connection, Way) {
    let (server, client) = quic_pki();
    let here = "127.0.0.1:0".parse().expect("an address");
    let endpoint = crate::quic::listen(here, server, b"secret").expect("listening");
    let way = Way::to(endpoint.local_addr().expect("bound")).await;
    let dialer = dialer(way.address, client);
    let (site, hub) = tokio::join!(dialer.dial(), async {
        let accepted = endpoint.accept().await.expect("one comes").await.expect("handshake");
        Connection::over_quic(accepted, false, DEFAULT_INTERVAL)
    });
    let site = site.expect("dialed");
    while site.answered().is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (endpoint, hub, site, way)
}

/// Far below the patience with a hub that is silent, far above what a busy machine needs.
const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_site_that_speaks_to_a_closed_port_gives_the_tie_up_soon() {
    let (_endpoint, _hub, site, way) = tied().await;
    way.carrying.abort();
    let _ = way.carrying.await;
    let killed = Instant::now();
    site.poke();
    let why = tokio::time::timeout(SOON, site.closed()).await.expect("noticed");
    assert!(why.contains("the hub's port is closed"), "{why}");
    println!("noticed {:?} after the heartbeat", killed.elapsed());
}

#[tokio::test]
async fn a_refusal_alone_does_not_end_a_tie() {
    let (_endpoint, _hub, site, _way) = tied().await;
    let before = site.last_heard();
    site.doubt();
    while site.last_heard() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Longer than a doubted hub has.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!site.is_closed());
}

#[tokio::test]
async fn a_hub_that_was_killed_and_started_again_says_that_the_tie_is_gone() {
    let (endpoint, hub, site, way) = tied().await;
    let address = endpoint.local_addr().expect("bound");
    // What it still says when it ends is not heard, as nothing is of a process that was killed.
    way.cut.store(true, Ordering::SeqCst);
    hub.close("killed");
    endpoint.close(0u32.into(), b"");
    endpoint.wait_idle().await;
    drop((hub, endpoint));
    let (server, _) = quic_pki();
    let again = async {
        loop {
            match crate::quic::listen(address, server.clone(), b"secret") {
                Ok(endpoint) => return endpoint,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let _again = tokio::time::timeout(SOON, again).await.expect("the port again");
    way.cut.store(false, Ordering::SeqCst);
    site.poke();
    let why = tokio::time::timeout(SOON, site.closed()).await.expect("noticed");
    assert!(why.contains("reset"), "{why}");
}

#[tokio::test]
async fn dialing_a_closed_port_fails_at_once() {
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let (_, client) = quic_pki();
    let began = Instant::now();
    let error = dialer(closed, client).dial().await.err().expect("nobody is there");
    assert!(began.elapsed() < Duration::from_secs(3), "{error} after {:?}", began.elapsed());
}
