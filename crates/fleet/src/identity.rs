//! The hub's identity and epoch. The identity is drawn once; the epoch grows with every start of a leading hub.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use tombolo_api::{HubRef, Site, names};

/// Who this hub is, and whether it was restored from a backup.
#[derive(Clone, Debug, PartialEq)]
pub struct Identity {
    pub hub: HubRef,
    pub restored: bool,
}

/// The next epoch: above everything that this hub or any of its sites has seen, and never below the clock, because what
/// sites have seen of a hub that was restored may be known only later. A site that has seen more than the hub remembers
/// proves that the hub's store is an old copy.
pub fn next_epoch(stored: i64, seen: impl Iterator<Item = i64>, now: i64) -> (i64, bool) {
    let seen = seen.max().unwrap_or(0);
    ((stored.max(seen) + 1).max(now), seen > stored)
}

/// Reads (or draws) the identity and starts a new epoch.
pub async fn establish(client: &Client) -> Result<Identity, Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let sites: Api<Site> = Api::all(client.clone());
    let known = api.get_opt(names::HUB_CONFIG).await?;
    let data = known.as_ref().and_then(|c| c.data.clone()).unwrap_or_default();
    let id = data.get("id").cloned().unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let stored = data.get("epoch").and_then(|e| e.parse().ok()).unwrap_or(0);
    let sites = sites.list(&ListParams::default()).await?;
    let seen = sites.iter().filter_map(|s| s.status.as_ref()?.hub_epoch);
    let (epoch, restored) = next_epoch(stored, seen, jiff::Timestamp::now().as_second());
    let data = BTreeMap::from([("id".to_owned(), id.clone()), ("epoch".to_owned(), epoch.to_string())]);
    if known.is_some() {
        let patch = Patch::Merge(serde_json::json!({ "data": data }));
        api.patch(names::HUB_CONFIG, &PatchParams::default(), &patch).await?;
    } else {
        let metadata = ObjectMeta { name: Some(names::HUB_CONFIG.into()), ..Default::default() };
        api.create(&PostParams::default(), &ConfigMap { metadata, data: Some(data), ..Default::default() })
            .await?;
    }
    if restored {
        tracing::warn!(stored, epoch, "sites know a later life of this hub: its store is an old copy");
    }
    Ok(Identity { hub: HubRef { id: id.clone(), epoch, path: vec![id] }, restored })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_that_is_behind_its_sites_was_restored_and_goes_ahead_of_them() {
        assert_eq!(next_epoch(3, [1, 3].into_iter(), 0), (4, false));
        assert_eq!(next_epoch(3, [5, 2].into_iter(), 0), (6, true));
        assert_eq!(next_epoch(0, [].into_iter(), 0), (1, false));
        assert_eq!(next_epoch(3, [].into_iter(), 100), (100, false));
    }
}
