//! The bytes of protocol 1, as they were first written down. Hub and site may be one release apart: whoever makes one of
//! these tests fail makes a new protocol, with another name (`tombolo/2`, `TBL2`), and must still speak this one.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::heartbeat::{self, Beat};
use crate::{Class, Connection, Preamble};

/// A preamble, and the two answers to it.
const CONTROL: &[u8] = b"TBL1c\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
const BULK: &[u8] = b"TBL1b\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
const WELCOME: &[u8] = b"\x00\x00";
const REFUSED: &[u8] = b"\x00\x08go away!";

fn session() -> [u8; 16] {
    std::array::from_fn(|n| n as u8)
}

#[tokio::test]
async fn preambles_and_their_answers_are_those_of_protocol_1() {
    for (class, bytes) in [(Class::Control, CONTROL), (Class::Bulk, BULK)] {
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        let preamble = Preamble { class, session: session() };
        preamble.write(&mut ours).await.expect("room");
        let mut written = vec![0; bytes.len()];
        theirs.read_exact(&mut written).await.expect("all of it");
        assert_eq!(written, bytes);
        theirs.write_all(bytes).await.expect("room");
        assert_eq!(Preamble::read(&mut ours).await.expect("understood"), preamble);
    }
    for (verdict, bytes) in [(Ok(()), WELCOME), (Err("go away!"), REFUSED)] {
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        crate::answer(&mut ours, verdict).await.expect("room");
        let mut written = vec![0; bytes.len()];
        theirs.read_exact(&mut written).await.expect("all of it");
        assert_eq!(written, bytes);
        theirs.write_all(bytes).await.expect("room");
        let understood = crate::verdict(&mut ours).await.expect("understood");
        assert_eq!(understood.as_deref(), verdict.err());
    }
}

/// A site of protocol 1 at a hub of today: every byte that it sends and waits for.
#[tokio::test]
async fn a_hub_keeps_time_with_a_site_of_protocol_1() {
    let (ours, mut site) = tokio::io::duplex(64);
    let (beat, closing) = (Beat::new(), CancellationToken::new());
    let hub = heartbeat::acceptor(Box::new(ours), Duration::from_millis(1250), &beat, &closing);
    let talk = async {
        let mut greeting = [0; 4];
        site.read_exact(&mut greeting).await.expect("how often");
        assert_eq!(greeting, [0, 0, 0x04, 0xe2], "1250 ms");
        for (frame, echo) in [
            ([0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0]),
            // The second beat tells the round trip of the first: 12 345 us.
            ([0, 0, 0, 1, 0, 0, 0x30, 0x39], [0, 0, 0, 1]),
        ] {
            site.write_all(&frame).await.expect("room");
            let mut answer = [9; 4];
            site.read_exact(&mut answer).await.expect("an answer");
            assert_eq!(answer, echo);
        }
        closing.cancel();
    };
    tokio::join!(hub, talk);
    assert_eq!(beat.rtt(), Some(Duration::from_micros(12_345)));
}

/// A hub of protocol 1 and a site of today.
#[tokio::test]
async fn a_site_keeps_time_with_a_hub_of_protocol_1() {
    let (ours, mut hub) = tokio::io::duplex(64);
    let (beat, closing) = (Beat::new(), CancellationToken::new());
    let site = heartbeat::dialer(Box::new(ours), &beat, &closing);
    let talk = async {
        hub.write_all(&[0, 0, 0x04, 0xe2]).await.expect("room");
        let mut frame = [9; 8];
        hub.read_exact(&mut frame).await.expect("the first beat");
        assert_eq!(frame, [0; 8]);
        hub.write_all(&[0, 0, 0, 0]).await.expect("room");
        hub.read_exact(&mut frame).await.expect("the second, at once");
        assert_eq!(frame[..4], [0, 0, 0, 1]);
        assert_ne!(frame[4..], [0; 4], "the round trip");
        hub.write_all(&[0, 0, 0, 1]).await.expect("room");
        while beat.answered().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        closing.cancel();
    };
    tokio::join!(site, talk);
}

/// Over TCP a stream says its class with its first byte; one of a class that came later is dropped, and the others go on.
#[tokio::test]
async fn a_stream_of_an_unknown_class_harms_no_other() {
    let (a, b) = tokio::io::duplex(64 << 10);
    let ours = Connection::over_io(a, false, Duration::from_secs(1));
    let (theirs, _streams) = crate::mux::Mux::start(b, true);
    let mut newer = theirs.open().await.expect("a stream");
    newer.write_all(b"z what is this").await.expect("room");
    newer.flush().await.expect("sent");
    let mut known = theirs.open().await.expect("a stream");
    known.write_all(b"chello").await.expect("room");
    known.flush().await.expect("sent");
    let (class, mut io) = tokio::time::timeout(Duration::from_secs(10), ours.accept())
        .await
        .expect("in time")
        .expect("a stream");
    let mut text = [0; 5];
    io.read_exact(&mut text).await.expect("read");
    assert_eq!((class, &text), (Class::Control, b"hello"));
}
