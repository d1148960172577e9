//! Certificate requests: approves what nodes may ask for by themselves, signs what was approved, forgets old ones.

mod approve;
mod sign;
#[cfg(test)]
mod tests;

pub use approve::{Approval, review};
pub use sign::{SignError, SignerName, check, sign};

use crate::{
    meta::{self, now_time},
    run::Ca,
    shell::{Action, Controller, Enqueue, Key, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition},
        core::v1::Node,
    },
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tombolo_api::names;

/// Requests are records of what happened; they are kept this long.
const KEEP_DECIDED: i64 = 3600;
const KEEP_PENDING: i64 = 24 * 3600;
/// Until a request that waits for something about its node is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

pub struct Snapshot<'a> {
    pub request: Arc<CertificateSigningRequest>,
    /// The node that the request is for, if it exists.
    pub node: Option<Arc<Node>>,
    pub ca: Option<&'a Ca>,
    /// Whether nodes join here; a hub has none, and must not make node identities.
    pub approves_nodes: bool,
    pub serial: [u8; 16],
    pub now: Timestamp,
}

pub(crate) fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn is_issued(request: &CertificateSigningRequest) -> bool {
    request
        .status
        .as_ref()
        .and_then(|status| status.certificate.as_ref())
        .is_some_and(|pem| !pem.0.is_empty())
}

pub fn plan(snapshot: &Snapshot) -> Vec<Action> {
    let request = &snapshot.request;
    let decided = is_issued(request) || has(request, "Denied") || has(request, "Failed");
    let keep = if decided || has(request, "Approved") { KEEP_DECIDED } else { KEEP_PENDING };
    let due = meta::plus(meta::created(&request.metadata), keep);
    if due <= snapshot.now {
        return vec![meta::delete::<CertificateSigningRequest>(&request.metadata)];
    }
    let mut actions = Vec::new();
    if !decided && let (Some(ca), Some(signer)) = (snapshot.ca, SignerName::of(&request.spec.signer_name)) {
        if !has(request, "Approved") {
            if !snapshot.approves_nodes {
                return vec![Action::After(meta::until(due, snapshot.now))];
            }
            match review(request, signer, snapshot.node.as_deref()) {
                Approval::Yes(message) => actions.push(approve(request, message, snapshot.now)),
                Approval::Later => actions.push(Action::After(LOOK_AGAIN)),
                Approval::Taken(why) => {
                    if !has(request, names::NAME_TAKEN) {
                        actions.push(wait(request, why, snapshot.now));
                    }
                    // The node may be deleted meanwhile.
                    actions.push(Action::After(LOOK_AGAIN));
                }
                Approval::NotOurs => {}
            }
        } else {
            let outcome =
                check(request, signer).and_then(|()| sign(request, ca, snapshot.serial, snapshot.now));
            actions.push(match outcome {
                Ok(pem) => {
                    let body = json!({"status": {"certificate": ByteString(pem.into_bytes())}});
                    meta::patch::<CertificateSigningRequest>(&request.metadata, "status", &body)
                }
                Err(error) => fail(request, &error, snapshot.now),
            });
        }
    }
    actions.push(Action::After(meta::until(due, snapshot.now)));
    actions
}

fn with(
    request: &CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> Vec<CertificateSigningRequestCondition> {
    let mut conditions =
        request.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    conditions.push(CertificateSigningRequestCondition {
        type_: kind.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: Some(now_time(now)),
        last_transition_time: Some(now_time(now)),
    });
    conditions
}

fn approve(request: &CertificateSigningRequest, message: &str, now: Timestamp) -> Action {
    let conditions = with(request, "Approved", "AutoApproved", message.to_owned(), now);
    let body = json!({"status": {"conditions": conditions}});
    meta::patch::<CertificateSigningRequest>(&request.metadata, "approval", &body)
}

/// Decides nothing, and tells the asker why nobody did.
fn wait(request: &CertificateSigningRequest, why: String, now: Timestamp) -> Action {
    let conditions = with(request, names::NAME_TAKEN, "NodeExists", why, now);
    let body = json!({"status": {"conditions": conditions}});
    meta::patch::<CertificateSigningRequest>(&request.metadata, "status", &body)
}

fn fail(request: &CertificateSigningRequest, error: &SignError, now: Timestamp) -> Action {
    let conditions = with(request, "Failed", "SignerValidationFailure", error.to_string(), now);
    let body = json!({"status": {"conditions": conditions}});
    meta::patch::<CertificateSigningRequest>(&request.metadata, "status", &body)
}

pub struct Certificates {
    pub ca: Option<Ca>,
    /// See [`Snapshot::approves_nodes`].
    pub approves_nodes: bool,
}

impl Controller for Certificates {
    fn name(&self) -> &'static str {
        "certificate-signing"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::CertificateRequests, Watch::Nodes]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        world.certificate_requests.on_change(move |_, new| {
            if let Some(request) = new {
                enqueue.add(Key::of(&request.metadata));
            }
        });
    }

    fn plan(&self, key: &Key, world: &World, now: Timestamp) -> Vec<Action> {
        let Some(request) = world.certificate_requests.get(key) else { return Vec::new() };
        let wanted = sign::subject(&request).map(|subject| subject.common_name).unwrap_or_default();
        let node = wanted.strip_prefix("system:node:").and_then(|name| world.nodes.get(&Key::new("", name)));
        plan(&Snapshot {
            request,
            node,
            ca: self.ca.as_ref(),
            approves_nodes: self.approves_nodes,
            serial: serial(),
            now,
        })
    }
}

/// A positive random number of 120 bits.
fn serial() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let mut bytes = [0; 16];
    for half in bytes.chunks_mut(8) {
        half.copy_from_slice(&RandomState::new().hash_one(Timestamp::now().as_nanosecond()).to_be_bytes());
    }
    bytes[0] = 1;
    bytes
}
