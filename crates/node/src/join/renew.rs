//! Keeping the node's certificate fresh.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Credentials, JoinError, request};

/// How often the clock is looked at; sleeping machines wake up with little of this left.
const LOOK: Duration = Duration::from_secs(30);
/// After a success nothing is asked for so long, even if the clock still calls the new certificate outdated: then the clock
/// is wrong, not the certificate. Unless the clock is set in between.
const REST: Duration = Duration::from_secs(600);
/// Clocks drift; what differs more from the time that passed was set.
const SET: i64 = 300;
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_secs(300);

/// Whether a certificate that is valid from `begin` to `end` is to be replaced at `now`: past two thirds of its life, or
/// outside it.
pub(crate) fn is_due(now: i64, (begin, end): (i64, i64)) -> bool {
    now < begin || now >= begin + (end - begin) / 3 * 2
}

pub(crate) fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

pub(super) async fn run(client: &kube::Client, credentials: &Credentials, name: &str) {
    let mut retry = FIRST_RETRY;
    loop {
        if !is_due(unix_now(), credentials.validity()) {
            tokio::time::sleep(LOOK).await;
            continue;
        }
        match renew(client, credentials, name).await {
            Ok(()) => {
                tracing::info!(node = name, "the node's certificate was renewed");
                retry = FIRST_RETRY;
                rest().await;
            }
            Err(error) => {
                tracing::warn!(node = name, %error, "the node's certificate could not be renewed yet");
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }
}

async fn rest() {
    let (wall, start) = (unix_now(), tokio::time::Instant::now());
    while start.elapsed() < REST && !was_set(unix_now() - wall, start.elapsed()) {
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether a clock that went on by `seconds` while `passed` went by was set.
fn was_set(seconds: i64, passed: Duration) -> bool {
    (seconds - passed.as_secs().cast_signed()).abs() > SET
}

async fn renew(client: &kube::Client, credentials: &Credentials, name: &str) -> Result<(), JoinError> {
    let key = rcgen::KeyPair::generate()?;
    let certificate = request::client_certificate(client, name, &key).await?;
    credentials.renew(&key.serialize_pem(), &certificate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_is_told_from_one_that_drifts() {
        assert!(!was_set(60, Duration::from_secs(61)));
        assert!(was_set(-86_400, Duration::from_secs(60)) && was_set(86_400, Duration::from_secs(60)));
    }

    #[test]
    fn a_certificate_is_renewed_in_its_last_third_or_outside_its_life() {
        let life = (1000, 4000);
        assert!(!is_due(1000, life) && !is_due(2999, life));
        assert!(is_due(3000, life) && is_due(4001, life), "late, and too late");
        assert!(is_due(0, life), "a clock before it began");
    }
}
