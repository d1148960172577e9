//! Removing at the site what a Work made: the root first, then what it needed.
//!
//! An object goes only when its last owner gives it up, and only as it was when its owners were read: the site's API refuses
//! the deletion of one that has changed since, and it is looked at again. What others hold a part of, or have something in,
//! loses the marks of this hub and stays.

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::ObjectMeta;
use kube::{Client, Error};
use serde_json::{Value, json};
use tombolo_api::{Tombstone, WorkSpec, names};

use crate::apply::{Applier, Refusal, Sight};
use crate::inside;
use crate::ledger::{Key, keys};
use crate::owners::{Farewell, Owner, Owners};

/// How far the removal of something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    Gone,
    UnderWay,
    /// It stays: it is somebody else's, or is so from now on.
    LetGo,
    /// We made it, and it stays, for the reason given: others have something in it that would go, too.
    Kept(String),
}

impl Applier {
    /// Does what a tombstone asks.
    pub async fn remove(
        &self,
        owner: &Owner,
        spec: &WorkSpec,
        tombstone: &Tombstone,
        seen: i64,
        sight: &(dyn Fn(&Key) -> Option<Sight> + Sync),
    ) -> Result<Removed, Refusal> {
        let mut done = Removed::Gone;
        let mut kept = Vec::new();
        // The root goes first, so that nothing starts without what it needs.
        for (place, key) in keys(spec).enumerate() {
            let removed = match self.remove_as_seen(owner, &key, tombstone, seen, sight(&key)).await? {
                Some(removed) => removed,
                None => self.remove_one(owner, &key, tombstone, seen).await?,
            };
            match removed {
                Removed::UnderWay => done = Removed::UnderWay,
                // Its pods are the site's again. What may run at most once is not gone while they run.
                Removed::LetGo if place == 0 && spec.adopt && spec.lease.is_none() => done = Removed::LetGo,
                Removed::Kept(why) => kept.push(why),
                Removed::Gone | Removed::LetGo => {}
            }
        }
        Ok(if done == Removed::Gone && !kept.is_empty() { Removed::Kept(kept.join("; ")) } else { done })
    }

    /// Deletes with one call what has not changed since it was seen. `None`: it must be looked at.
    async fn remove_as_seen(
        &self,
        owner: &Owner,
        key: &Key,
        tombstone: &Tombstone,
        seen: i64,
        sight: Option<Sight>,
    ) -> Result<Option<Removed>, Refusal> {
        let Some(sight) = sight else { return Ok(None) };
        let delete = sight.owners.farewell(owner, tombstone, seen) == Farewell::Delete;
        if tombstone.keep || !delete || inside::may_hold(key) {
            return Ok(None);
        }
        let as_seen = Preconditions { uid: None, resource_version: Some(sight.version.revision) };
        match self.delete_if(&self.acting, key, as_seen).await {
            Err(Refusal::Site(status)) if status.code == 409 => Ok(None),
            other => other.map(Some),
        }
    }

    async fn remove_one(
        &self,
        owner: &Owner,
        key: &Key,
        tombstone: &Tombstone,
        seen: i64,
    ) -> Result<Removed, Refusal> {
        loop {
            let Some(found) = self.metadata(key).await? else { return Ok(Removed::Gone) };
            match self.remove_found(owner, key, tombstone, seen, found.metadata).await {
                // Another Work that gives it up came first; it may have been the last but one.
                Err(Refusal::Site(status)) if status.code == 409 => {}
                other => return other,
            }
        }
    }

    /// A conflict is an error: what was found is no longer so.
    async fn remove_found(
        &self,
        owner: &Owner,
        key: &Key,
        tombstone: &Tombstone,
        seen: i64,
        found: ObjectMeta,
    ) -> Result<Removed, Refusal> {
        let owners = Owners::of(found.annotations.as_ref());
        let mut done = Removed::LetGo;
        let last = match owners.farewell(owner, tombstone, seen) {
            Farewell::Leave(why) => {
                tracing::info!(object = %key, work = owner.work, why, "kept in spite of a tombstone");
                return Ok(if owners.has(owner) { Removed::Gone } else { Removed::LetGo });
            }
            // What is being deleted already cannot be kept.
            Farewell::Delete if !tombstone.keep && found.deletion_timestamp.is_some() => {
                return self.delete(&self.acting, key, found.uid).await;
            }
            Farewell::Delete if !tombstone.keep => match inside::others_in(self, key).await? {
                None => return self.delete(&self.acting, key, found.uid).await,
                Some(other) => {
                    tracing::warn!(object = %key, work = owner.work, other, "kept: others have something in it");
                    done = Removed::Kept(format!("{key} stays: {other} in it is not this hub's"));
                    true
                }
            },
            Farewell::Delete => true,
            Farewell::Release { last } => last,
        };
        self.release(&self.acting, key, std::iter::once(owner), last, found.resource_version).await?;
        Ok(done)
    }

    /// Deletes exactly the object that was looked at.
    pub async fn delete(&self, who: &Client, key: &Key, uid: Option<String>) -> Result<Removed, Refusal> {
        match self.delete_if(who, key, Preconditions { uid, resource_version: None }).await {
            Err(Refusal::Site(status)) if status.code == 409 => Ok(Removed::Gone),
            other => other,
        }
    }

    async fn delete_if(
        &self,
        who: &Client,
        key: &Key,
        preconditions: Preconditions,
    ) -> Result<Removed, Refusal> {
        let params = DeleteParams::background().preconditions(preconditions);
        match self.api(who, key).delete(&key.name, &params).await {
            Ok(answer) if answer.is_right() => Ok(Removed::Gone),
            // Some kinds answer with the object although it is gone.
            Ok(_) if self.metadata(key).await?.is_none() => Ok(Removed::Gone),
            Ok(_) => Ok(Removed::UnderWay),
            Err(Error::Api(status)) if status.code == 404 => Ok(Removed::Gone),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes names of owners off; `last`: nothing shows any more that a hub managed the object. With a `revision`, only from
    /// the object as it was then.
    pub async fn release(
        &self,
        who: &Client,
        key: &Key,
        owners: impl Iterator<Item = &Owner>,
        last: bool,
        revision: Option<String>,
    ) -> Result<(), Refusal> {
        let mut annotations: serde_json::Map<_, _> = owners.map(|owner| (owner.key(), Value::Null)).collect();
        let mut metadata = revision.map_or(json!({}), |revision| json!({ "resourceVersion": revision }));
        if last {
            annotations.insert(names::ADOPTED_ANNOTATION.to_owned(), Value::Null);
            metadata["labels"] = json!({names::HUB_LABEL: null});
        }
        metadata["annotations"] = Value::Object(annotations);
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let params = PatchParams { field_manager: Some(self.manager.clone()), ..Default::default() };
        match self.api(who, key).patch_metadata(&key.name, &params, &patch).await {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives up a dependency that the Work no longer names.
    pub async fn let_go(&self, owner: &Owner, key: &Key) -> Result<(), Refusal> {
        let now = Tombstone { hub: self.hub.clone(), epoch: i64::MAX, ..Default::default() };
        self.remove_one(owner, key, &now, 0).await.map(drop)
    }
}

#[cfg(test)]
#[path = "remove_tests.rs"]
mod tests;
