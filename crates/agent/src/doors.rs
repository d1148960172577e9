//! Where the hub can be reached, and how the doors are tried: one after the other, without waiting long at one that does not
//! open. A hub of several replicas has one door for each.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tombolo_tunnel::{Backoff, Connection, DialError, Dialer, random_fraction};

use crate::config::AgentConfig;
use crate::state::State;

/// How long a door may take to open before the next one is tried beside it. A closed port says so at once, a machine that is
/// gone never; a link with 400 ms one way needs less for its first answer.
const HEAD_START: Duration = Duration::from_secs(2);
/// Between looks whether QUIC passes, for a site that is tied over TCP.
const FIRST_PROBE: Duration = Duration::from_secs(15);
const LAST_PROBE: Duration = Duration::from_secs(600);

/// All doors in the order in which they are tried: first the one that led to the hub last, else the one that the site was
/// told. The others begin anywhere (`fraction`, of `0.0..1.0`): the sites of a replica that died do not all go to the same.
fn doors(told: &str, replicas: &[String], last: Option<&str>, fraction: f64) -> Vec<String> {
    let told = told.trim_end_matches('/');
    let known = |door: &&str| *door == told || replicas.iter().any(|url| url == door);
    let first = last.filter(known).unwrap_or(told);
    let all = std::iter::once(told).chain(replicas.iter().map(String::as_str).filter(|url| *url != told));
    let mut others: Vec<&str> = all.filter(|door| *door != first).collect();
    let from = ((others.len() as f64 * fraction) as usize).min(others.len());
    others.rotate_left(from);
    std::iter::once(first).chain(others).map(str::to_owned).collect()
}

/// Dials the hub at whichever door opens first, and says which.
pub async fn dial(
    config: &AgentConfig,
    state: &State,
    last: Option<&str>,
) -> Result<(String, Connection), DialError> {
    let doors = doors(&config.hub_url, &state.replicas, last, random_fraction());
    let knock = |door: String| async move { dialer(config, state, &door)?.dial().await };
    first_to_open(doors, HEAD_START, knock).await
}

/// Knocks at the next door as soon as one stays shut, or does not open in time. Those that lose are let go before they are
/// tied.
async fn first_to_open<T, F>(
    doors: Vec<String>,
    head_start: Duration,
    knock: impl Fn(String) -> F,
) -> Result<(String, T), DialError>
where
    F: Future<Output = Result<T, DialError>>,
{
    let mut failed = None;
    let mut knocking = FuturesUnordered::new();
    let mut left = doors.into_iter();
    loop {
        if let Some(door) = left.next() {
            let opening = knock(door.clone());
            knocking.push(async move { (door, opening.await) });
        }
        tokio::select! {
            answer = knocking.next() => match answer {
                Some((door, Ok(open))) => return Ok((door, open)),
                Some((door, Err(error))) => {
                    tracing::info!(door, %error, "no way to the hub here");
                    failed = Some(telling(failed, error));
                }
                None => break,
            },
            () = tokio::time::sleep(head_start), if left.len() > 0 => {}
        }
    }
    let nowhere = || DialError::Unreachable { address: String::new(), reason: "no address is known".into() };
    Err(failed.unwrap_or_else(nowhere))
}

/// Of two failures the one to act on: what a hub says counts more than that another door did not open.
fn telling(earlier: Option<DialError>, error: DialError) -> DialError {
    match (earlier, error) {
        (None, error) | (Some(_), error @ DialError::Refused { .. }) => error,
        (Some(earlier), _) => earlier,
    }
}

/// Gives a tie over QUIC where UDP did not pass at first (a cut may end while TCP is tried): over TCP, a link that loses
/// packets is slow. Not while somebody reads a log or has a shell open through the old one.
pub async fn improve(config: &AgentConfig, state: &State, url: &str, present: &Connection) -> Connection {
    let Ok(dialer) = dialer(config, state, url) else { return std::future::pending().await };
    if present.carrier() == "quic" || dialer.quic_port.is_none() {
        return std::future::pending().await;
    }
    let mut backoff = Backoff::new(FIRST_PROBE, LAST_PROBE);
    loop {
        tokio::time::sleep(backoff.next(random_fraction())).await;
        if !present.in_use()
            && let Some(found) = dialer.dial_better().await
        {
            return found;
        }
    }
}

fn dialer(config: &AgentConfig, state: &State, url: &str) -> Result<Dialer, DialError> {
    let broken = |error: String| DialError::Unreachable { address: url.to_owned(), reason: error };
    let uri: http::Uri = url.parse().map_err(|_| broken("no address".into()))?;
    // A replica speaks QUIC on the port of its API.
    let named = url == config.hub_url.trim_end_matches('/');
    let quic = if named { Some(state.quic_port) } else { uri.port_u16() };
    let tls = tombolo_tunnel::tls::client(
        state.ca.as_bytes(),
        Some((state.certificate.as_bytes(), state.key.as_bytes())),
    );
    Ok(Dialer {
        host: uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
        port: uri.port_u16().unwrap_or(443),
        quic_port: quic.filter(|p| *p > 0 && state.quic_port > 0),
        tls: Arc::new(tls.map_err(|e| broken(e.to_string()))?),
        path: tombolo_api::names::TUNNEL_PATH.into(),
        session: *uuid::Uuid::new_v4().as_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn shut() -> DialError {
        DialError::Unreachable { address: "x".into(), reason: "refused".into() }
    }

    #[test]
    fn the_door_that_opened_last_comes_first_and_each_comes_once() {
        let replicas = urls(&["a", "b", "c"]);
        assert_eq!(doors("b/", &replicas, None, 0.0), ["b", "a", "c"]);
        assert_eq!(doors("hub", &replicas, Some("c"), 0.0), ["c", "hub", "a", "b"]);
        assert_eq!(doors("hub", &replicas, Some("forgotten"), 0.0), ["hub", "a", "b", "c"]);
        assert_eq!(doors("hub", &[], Some("hub"), 0.9), ["hub"]);
    }

    #[test]
    fn the_sites_of_a_dead_replica_do_not_all_go_to_the_same() {
        let replicas = urls(&["a", "b", "c"]);
        let second = |fraction| doors("a", &replicas, Some("a"), fraction)[1].clone();
        assert_eq!((second(0.1), second(0.9)), ("b".into(), "c".into()));
    }

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(3600);

    async fn knock(door: String) -> Result<(), DialError> {
        match door.as_str() {
            "open" => Ok(()),
            "slow" => {
                tokio::time::sleep(5 * SHORT).await;
                Ok(())
            }
            "refuses" => Err(DialError::Refused { status: 410, message: door }),
            "shut" => Err(shut()),
            _ => std::future::pending().await,
        }
    }

    async fn opened(doors: &[&str], head_start: Duration) -> Result<String, DialError> {
        let opening = first_to_open(urls(doors), head_start, knock);
        let opened = tokio::time::timeout(Duration::from_secs(30), opening).await.expect("an end");
        opened.map(|(door, ())| door)
    }

    #[tokio::test]
    async fn a_silent_door_does_not_keep_the_others_waiting() {
        assert_eq!(opened(&["silent", "silent", "open"], SHORT).await.expect("one opens"), "open");
    }

    #[tokio::test]
    async fn behind_a_shut_door_the_next_is_tried_at_once() {
        assert_eq!(opened(&["shut", "shut", "open"], LONG).await.expect("one opens"), "open");
    }

    #[tokio::test]
    async fn a_door_that_opens_in_time_is_the_only_one_that_is_tried() {
        assert_eq!(opened(&["slow", "open"], LONG).await.expect("one opens"), "slow");
    }

    #[tokio::test]
    async fn a_slow_door_may_still_open_while_others_are_tried() {
        assert_eq!(opened(&["slow", "silent"], SHORT).await.expect("one opens"), "slow");
    }

    #[tokio::test]
    async fn when_none_opens_what_a_hub_said_counts() {
        let failed = opened(&["shut", "refuses", "shut"], SHORT).await;
        assert!(matches!(failed, Err(DialError::Refused { status: 410, .. })));
        assert!(matches!(opened(&[], SHORT).await, Err(DialError::Unreachable { .. })));
    }
}
