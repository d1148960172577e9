//! Join tokens: Kubernetes bootstrap tokens with a number of uses.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use sha2::{Digest, Sha256};
use tombolo_api::names;

/// How many sites may still join with the token; in the token's Secret.
const USES: &str = "tombolo-uses";
/// Requests that it was counted for, the latest last; in the token's Secret.
const COUNTED: &str = "tombolo-counted";
/// How many of them are remembered: more than a hub has in hand at once.
const REMEMBERED: usize = 100;
/// How long a used-up token still lets its last user read the certificate it asked for.
const FAREWELL_SECONDS: i64 = 60;
/// `person`: joining with this token waits for `tombolo sites approve`.
const APPROVAL: &str = "tombolo-approval";

#[derive(Clone, Debug)]
pub struct NewToken {
    pub ttl: Option<Duration>,
    pub uses: Option<u32>,
    pub needs_approval: bool,
}

/// Makes a token; `now` in seconds since 1970, `random` is 16 bytes of good randomness.
pub async fn create(client: &Client, new: &NewToken, now: i64, random: [u8; 16]) -> Result<String, Error> {
    let text = hex::encode(Sha256::digest(random));
    let (id, secret) = (&text[..6], &text[6..22]);
    let mut data = BTreeMap::new();
    let mut put =
        |key: &str, value: String| drop(data.insert(key.to_owned(), ByteString(value.into_bytes())));
    put("token-id", id.into());
    put("token-secret", secret.into());
    put("usage-bootstrap-authentication", "true".into());
    put("auth-extra-groups", names::JOIN_GROUP.into());
    if let Some(ttl) = new.ttl {
        let end = jiff::Timestamp::from_second(now + ttl.as_secs() as i64).unwrap_or(jiff::Timestamp::MAX);
        put("expiration", end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    }
    if let Some(uses) = new.uses {
        put(USES, uses.to_string());
    }
    if new.needs_approval {
        put(APPROVAL, "person".into());
    }
    let secret_object = Secret {
        metadata: ObjectMeta { name: Some(format!("bootstrap-token-{id}")), ..Default::default() },
        type_: Some("bootstrap.kubernetes.io/token".into()),
        data: Some(data),
        ..Default::default()
    };
    secrets(client).create(&PostParams::default(), &secret_object).await?;
    Ok(format!("{id}.{secret}"))
}

/// What a token allows at `now`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Join; the count that is left afterwards, if it is counted.
    Yes {
        left: Option<u32>,
        needs_approval: bool,
    },
    No(&'static str),
}

type Data = BTreeMap<String, ByteString>;

fn text(data: &Data, key: &str) -> Option<String> {
    data.get(key).map(|b| String::from_utf8_lossy(&b.0).into_owned())
}

fn put(data: &mut Data, key: &str, value: impl Into<String>) {
    data.insert(key.to_owned(), ByteString(value.into().into_bytes()));
}

/// Reads a token's Secret. Kubernetes stops accepting an expired token by itself; this is asked once more at approval.
pub fn verdict(data: &Data, now: i64) -> Verdict {
    let text = |key: &str| text(data, key);
    let groups = text("auth-extra-groups").unwrap_or_default();
    if !groups.split(',').any(|g| g.trim() == names::JOIN_GROUP) {
        return Verdict::No("the token is not for joining");
    }
    if let Some(end) = text("expiration") {
        match end.parse::<jiff::Timestamp>() {
            Ok(end) if end.as_second() > now => {}
            _ => return Verdict::No("the token has expired"),
        }
    }
    let needs_approval = text(APPROVAL).as_deref() == Some("person");
    match text(USES).map(|u| u.parse::<u32>()) {
        None => Verdict::Yes { left: None, needs_approval },
        Some(Ok(uses)) if uses > 0 => Verdict::Yes { left: Some(uses - 1), needs_approval },
        Some(_) => Verdict::No("the token is used up"),
    }
}

/// Counts a request in a token's Secret. One that was counted before, by a hub that ended or failed before it approved it,
/// is not counted again, and has what the token allowed then.
fn count(data: &mut Data, request: &str, now: i64) -> Verdict {
    let counted = text(data, COUNTED).unwrap_or_default();
    let mut counted: Vec<&str> = counted.split(',').filter(|r| !r.is_empty()).collect();
    if counted.contains(&request) {
        let uses = text(data, USES).and_then(|u| u.parse::<u32>().ok()).unwrap_or_default();
        put(data, USES, uses.saturating_add(1).to_string());
        if uses == 0 {
            // It expires for being used up.
            data.remove("expiration");
        }
    } else {
        counted.push(request);
    }
    let verdict = verdict(data, now);
    let Verdict::Yes { left: Some(left), .. } = verdict else { return verdict };
    put(data, USES, left.to_string());
    put(data, COUNTED, counted[counted.len().saturating_sub(REMEMBERED)..].join(","));
    if left == 0 {
        // Whoever used it last still has to fetch the certificate; after that the token is no more.
        put(data, "expiration", crate::time_text(now + FAREWELL_SECONDS));
    }
    verdict
}

/// Uses a token once for a request. The count goes down before anything is approved, in a write that fails if someone else
/// was faster.
pub async fn consume(client: &Client, id: &str, request: &str, now: i64) -> Result<Verdict, Error> {
    let api = secrets(client);
    let name = format!("bootstrap-token-{id}");
    loop {
        let Some(mut secret) = api.get_opt(&name).await? else {
            return Ok(Verdict::No("the token does not exist any more"));
        };
        let verdict = count(secret.data.get_or_insert_default(), request, now);
        let Verdict::Yes { left: Some(_), .. } = verdict else { return Ok(verdict) };
        let done = api.replace(&name, &PostParams::default(), &secret).await.map(drop);
        match done {
            Ok(()) => return Ok(verdict),
            Err(Error::Api(status)) if status.code == 409 || status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
}

fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), "kube-system")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(extra: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
        let base = [("auth-extra-groups", names::JOIN_GROUP)];
        base.iter().chain(extra).map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec()))).collect()
    }

    #[test]
    fn a_request_that_comes_again_is_not_counted_twice() {
        let now = 1_700_000_000;
        let yes = |left| Verdict::Yes { left: Some(left), needs_approval: false };
        let mut twice = token(&[(USES, "2")]);
        assert_eq!(count(&mut twice, "r1", now), yes(1));
        assert_eq!(count(&mut twice, "r1", now), yes(1));
        assert_eq!(count(&mut twice, "r2", now), yes(0));
        // A hub that was away for longer than the farewell lets the last one in, and gives it time to fetch what it asked for.
        let later = now + 10 * FAREWELL_SECONDS;
        assert_eq!(count(&mut twice, "r3", later), Verdict::No("the token has expired"));
        for request in ["r2", "r1"] {
            assert_eq!(count(&mut twice, request, later), yes(0));
            assert_eq!(text(&twice, "expiration"), Some(crate::time_text(later + FAREWELL_SECONDS)));
        }
        assert_eq!(count(&mut twice, "r3", later), Verdict::No("the token is used up"));
    }

    #[test]
    fn a_request_that_was_counted_has_no_more_than_the_token_allows() {
        let now = 1_700_000_000;
        let ended = crate::time_text(now - 1);
        let mut token = token(&[(USES, "3"), (COUNTED, "r1"), ("expiration", &ended)]);
        assert_eq!(count(&mut token, "r1", now), Verdict::No("the token has expired"));
        put(&mut token, "auth-extra-groups", "");
        assert_eq!(count(&mut token, "r1", now), Verdict::No("the token is not for joining"));
    }

    #[test]
    fn a_token_for_many_remembers_only_the_latest() {
        let mut token = token(&[(USES, "1000")]);
        for n in 0..=REMEMBERED {
            count(&mut token, &format!("r{n}"), 0);
        }
        let counted = text(&token, COUNTED).expect("counted");
        assert_eq!(counted.split(',').count(), REMEMBERED);
        assert!(counted.starts_with("r1,") && counted.ends_with(&format!(",r{REMEMBERED}")), "{counted}");
    }

    #[test]
    fn a_token_that_is_spent_or_expired_or_for_something_else_is_useless() {
        let now = 1_700_000_000;
        let yes = |left| Verdict::Yes { left, needs_approval: false };
        assert_eq!(verdict(&token(&[]), now), yes(None));
        assert_eq!(verdict(&token(&[(USES, "2")]), now), yes(Some(1)));
        assert!(matches!(verdict(&token(&[(USES, "0")]), now), Verdict::No(_)));
        assert!(matches!(verdict(&token(&[("expiration", "2020-01-01T00:00:00Z")]), now), Verdict::No(_)));
        assert_eq!(verdict(&token(&[("expiration", "2030-01-01T00:00:00Z")]), now), yes(None));
        assert!(matches!(verdict(&token(&[("expiration", "soon")]), now), Verdict::No(_)));
        assert!(matches!(verdict(&BTreeMap::new(), now), Verdict::No(_)));
    }
}
