//! A real WAN between real namespaces; needs root.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Result;
use tombolo_wan::{Link, Namespace, Relay};

const A: Ipv4Addr = Ipv4Addr::new(10, 99, 7, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 99, 7, 2);

#[test]
fn a_link_delays_loses_and_can_be_cut() -> Result<()> {
    let namespaces = match (Namespace::create("tmbw-a"), Namespace::create("tmbw-b")) {
        (Ok(a), Ok(b)) => [a, b],
        (Err(error), _) | (_, Err(error)) => {
            assert!(std::env::var_os("CI").is_none(), "{error}");
            eprintln!("SKIPPED: {error}");
            return Ok(());
        }
    };
    let [a, b] = namespaces;
    let delay = Duration::from_millis(40);
    let relay = Relay::start(Link { delay, ..Link::default() }, 7);
    relay.plug(&a, A)?;
    relay.plug(&b, B)?;
    let listener = b.run(|| TcpListener::bind((B, 7777)))??;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || echo(stream));
        }
    });

    let mut stream = connect(&a)?;
    let started = Instant::now();
    exchange(&mut stream)?;
    assert!(started.elapsed() >= 2 * delay, "a round trip took {:?}", started.elapsed());

    relay.set(A, B, Link { delay: Duration::ZERO, loss: 0.1, up: true });
    for _ in 0..20 {
        exchange(&mut stream)?;
    }

    relay.cut(A, true);
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    assert!(exchange(&mut stream).is_err(), "a cut link carried an answer");
    relay.set(A, B, Link::default());
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut late = [0; 4];
    stream.read_exact(&mut late)?;
    assert_eq!(&late, b"ping", "TCP did not recover after the link was mended");
    Ok(())
}

fn connect(from: &Namespace) -> Result<TcpStream> {
    let stream =
        from.run(|| TcpStream::connect_timeout(&SocketAddr::from((B, 7777)), Duration::from_secs(5)))??;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)
}

fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; 4];
    while stream.read_exact(&mut buffer).is_ok() && stream.write_all(&buffer).is_ok() {}
}
