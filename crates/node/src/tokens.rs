//! Service account tokens for projected volumes: asked for, kept, renewed before they expire.

use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::disk;
use crate::pod::spec;
use crate::volumes::Tokens;

const PATIENCE: Duration = Duration::from_secs(5);
const DEFAULT_LIFETIME: i64 = 3600;

#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    audience: Option<String>,
    lifetime: Option<i64>,
    token: String,
    issued: Timestamp,
    expires: Timestamp,
}

impl Kept {
    /// Renewed when 80 % of its life is over, or when it comes from a clock that was ahead.
    fn due(&self, now: Timestamp) -> bool {
        let life = self.expires.duration_since(self.issued);
        now < self.issued
            || now.duration_since(self.issued) >= SignedDuration::from_secs(life.as_secs() * 4 / 5)
    }
}

/// Every token the pod's volumes ask for. An old one is used while the API cannot give a new one.
pub(crate) async fn gather(ctx: &Context, pod: &Pod, dir: &Path) -> Result<Tokens, String> {
    let file = dir.join("tokens.json");
    let mut kept: Vec<Kept> =
        fs::read(&file).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    let mut tokens = Tokens::new();
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let sources = volumes.filter_map(|v| v.projected.as_ref()).flat_map(|p| p.sources.iter().flatten());
    let now = Timestamp::now();
    let mut changed = false;
    for wanted in sources.filter_map(|s| s.service_account_token.as_ref()) {
        let key = (wanted.audience.clone(), wanted.expiration_seconds);
        let same = |k: &Kept| k.audience == key.0 && k.lifetime == key.1;
        let have = kept.iter().find(|k| same(k)).cloned();
        let fresh = match &have {
            Some(have) if !have.due(now) || !ctx.is_online() => have.clone(),
            _ => match request(ctx, pod, &key.0, key.1).await {
                Ok(fresh) => {
                    kept.retain(|k| !same(k));
                    kept.push(fresh.clone());
                    changed = true;
                    fresh
                }
                Err(error) => have.ok_or(error)?,
            },
        };
        tokens.insert(key, fresh.token);
    }
    if changed {
        let bytes = serde_json::to_vec(&kept).map_err(std::io::Error::other);
        let written = bytes.and_then(|bytes| disk::replace(&file, &bytes, 0o600));
        written.map_err(|error| format!("keep the token: {error}"))?;
    }
    Ok(tokens)
}

async fn request(
    ctx: &Context,
    pod: &Pod,
    audience: &Option<String>,
    lifetime: Option<i64>,
) -> Result<Kept, String> {
    let account =
        pod.spec.as_ref().and_then(|s| s.service_account_name.clone()).unwrap_or_else(|| "default".into());
    let api: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), spec::namespace(pod));
    let body = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(audience.iter().cloned().collect()),
            expiration_seconds: Some(lifetime.unwrap_or(DEFAULT_LIFETIME)),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
        }),
        ..TokenRequest::default()
    };
    let params = PostParams::default();
    let asked = api.create_token_request(&account, &params, &body);
    let answer =
        tokio::time::timeout(PATIENCE, asked).await.map_err(|_| "the API does not answer".to_owned())?;
    let status = answer
        .map_err(|error| format!("token for service account {account}: {error}"))?
        .status
        .unwrap_or_default();
    Ok(Kept {
        audience: audience.clone(),
        lifetime,
        token: status.token.unwrap_or_default(),
        issued: Timestamp::now(),
        expires: status.expiration_timestamp.map_or_else(Timestamp::now, |at| at.0),
    })
}
