//! Parting: the hub removed this site, or the site's owner leaves the hub. Neither needs the other side.

use std::time::Duration;

use kube::{Client, Error};
use serde::{Deserialize, Serialize};

use crate::apply::Applier;
use crate::clean::clean_up;
use crate::observe::Shared;
use crate::state::StateSecret;

/// Between attempts to clean up at a site whose API does not answer.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// What a hub says to a site that it removed, as the reason of closing the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Removal {
    pub hub: String,
    pub epoch: i64,
    /// What was made for the hub shall go too.
    pub delete: bool,
    pub message: String,
}

/// Reads a removal out of a closing reason or an HTTP answer.
pub fn removal(why: &str) -> Option<Removal> {
    let at = why.find("{\"hub\"")?;
    serde_json::Deserializer::from_str(&why[at..]).into_iter().next()?.ok()
}

/// Cleans up if this is an explicit order: one with the hub's identity and an epoch that is not behind `seen`. Nothing
/// that the hub wanted may still be acted on.
pub async fn was_removed(shared: &Shared, seen: i64, removal: &Removal) {
    tracing::error!(hub = removal.hub, message = removal.message, "this site was removed from the hub");
    if removal.hub != shared.applier.hub || removal.epoch < seen || !removal.delete {
        return tracing::warn!("what was made for the hub stays; `tombolo leave` cleans it up");
    }
    // An agent that starts anew must not make it all again.
    shared.keep.clear();
    let left = loop {
        match clean_up(&shared.applier, false).await {
            Ok(left) => break left,
            Err(error) => tracing::warn!(%error, "cannot clean up yet"),
        }
        tokio::time::sleep(TRY_AGAIN).await;
    };
    if left > 0 {
        return tracing::error!(
            left,
            "not all that was made for the hub is gone; `tombolo leave` tries again"
        );
    }
    tracing::info!("cleaned up what was made for the hub");
}

/// Leaves a hub without asking it: deletes what was made for it (`keep`: lets it go) and forgets the credentials.
/// Gives the number of objects that could not be removed; then the credentials stay, so that leaving can be tried again.
pub async fn leave(site: &Client, state: &str, keep: bool) -> Result<usize, Error> {
    let secret = StateSecret::new(site.clone(), state);
    let known = secret.load().await?;
    let mut left = 0;
    if !known.hub.is_empty() {
        let applier = Applier::new(site.clone(), site.clone(), &known.hub);
        left = clean_up(&applier, keep).await?;
    }
    if left == 0 {
        secret.forget().await?;
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_found_in_what_the_hub_said() {
        let removal_ = Removal { hub: "h".into(), epoch: 3, delete: true, message: "gone".into() };
        let said = format!("the hub refused (410): {}\n", serde_json::to_string(&removal_).expect("JSON"));
        assert_eq!(removal(&said), Some(removal_));
        assert_eq!(removal("no heartbeat for 60s"), None);
    }

    /// As the first release says it; a later one may say more.
    #[test]
    fn a_removal_of_another_release_is_understood() {
        let said = r#"{"hub":"h","epoch":3,"delete":true,"message":"gone"}"#;
        let wanted = Removal { hub: "h".into(), epoch: 3, delete: true, message: "gone".into() };
        assert_eq!(serde_json::to_string(&wanted).expect("JSON"), said);
        let more = r#"{"hub":"h","epoch":3,"delete":true,"message":"gone","until":"monday"}"#;
        assert_eq!(removal(more), Some(wanted));
        let less = removal(r#"{"hub":"h","epoch":3}"#).expect("understood");
        assert!(!less.delete, "nothing is deleted that nobody said should be");
    }
}
