//! Parting: the hub removed this site, or the site's owner leaves the hub. Neither needs the other side.

use std::sync::Arc;

use futures::future::join_all;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt};
use serde::{Deserialize, Serialize};
use tombolo_api::names;

use crate::apply::Applier;
use crate::execute::Epoch;
use crate::ledger::Key;
use crate::observe::Shared;
use crate::owners::Owners;
use crate::state::StateSecret;

/// What a hub says to a site that it removed, as the reason of closing the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// A removal is an explicit order only with the hub's identity and an epoch that is not behind what this site has seen.
pub async fn was_removed(shared: &Arc<Shared>, epoch: &Epoch, removal: &Removal) {
    tracing::error!(hub = removal.hub, message = removal.message, "this site was removed from the hub");
    if removal.hub != shared.applier.hub || removal.epoch < epoch.get() || !removal.delete {
        return tracing::warn!("what was made for the hub stays; `tombolo leave` cleans it up");
    }
    let left = clean_up(&shared.applier, &kinds_made(shared)).await;
    tracing::info!(left, "cleaned up what was made for the hub");
}

fn kinds_made(shared: &Arc<Shared>) -> Vec<(String, String)> {
    shared.ledger.lock().kinds().into_iter().collect()
}

/// Leaves a hub without asking it: deletes what was made for it (unless `keep`) and forgets the credentials.
/// Gives the number of objects that could not be removed.
pub async fn leave(site: &Client, state: &str, keep: bool) -> Result<usize, kube::Error> {
    let secret = StateSecret::new(site.clone(), state);
    let known = secret.load().await?;
    let mut left = 0;
    if !keep && !known.hub.is_empty() {
        let applier = Applier::new(site.clone(), site.clone(), &known.hub);
        left = clean_up(&applier, &all_kinds(site).await?).await;
    }
    if left == 0 {
        secret.forget().await?;
    }
    Ok(left)
}

/// Every kind of the site that can be listed and deleted.
async fn all_kinds(site: &Client) -> Result<Vec<(String, String)>, kube::Error> {
    let discovery = kube::discovery::Discovery::new(site.clone()).run().await?;
    let mut kinds = Vec::new();
    for group in discovery.groups() {
        for (resource, able) in group.recommended_resources() {
            if able.supports_operation("delete") && able.supports_operation("list") && resource.kind != "Pod"
            {
                kinds.push((resource.api_version, resource.kind));
            }
        }
    }
    Ok(kinds)
}

/// Deletes every object that carries this hub's name and nobody else's. Namespaces go last, and only when empty of others' things.
async fn clean_up(applier: &Applier, kinds: &[(String, String)]) -> usize {
    let mut left = 0;
    let selector = format!("{}={}", names::HUB_LABEL, names::hub_label(&applier.hub));
    for (api_version, kind) in kinds.iter().filter(|(_, kind)| kind != "Namespace") {
        let probe = Key {
            api_version: api_version.clone(),
            kind: kind.clone(),
            namespace: String::new(),
            name: String::new(),
        };
        if api_version.contains('.') {
            applier.look_up(&probe).await;
        }
        let api: Api<DynamicObject> =
            Api::all_with(applier.own.clone(), &applier.resource(api_version, kind));
        let Ok(found) = api.list_metadata(&ListParams::default().labels(&selector)).await else { continue };
        let ours = found.items.into_iter().filter(|o| {
            let owners = Owners::of(o.metadata.annotations.as_ref());
            !owners.is_empty() && owners.iter().all(|owner| owner.hub == applier.hub)
        });
        let deletions = ours.map(|o| {
            let key =
                Key { namespace: o.namespace().unwrap_or_default(), name: o.name_any(), ..probe.clone() };
            async move { applier.delete(&key, o.metadata.uid.clone()).await }
        });
        left += join_all(deletions).await.iter().filter(|r| r.is_err()).count();
    }
    left
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
}
