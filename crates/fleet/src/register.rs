//! Joining and renewing: signing requests are approved by policy and signed.

use std::sync::Arc;

use futures::TryStreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest as Request;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Error, ResourceExt};
use serde_json::json;
use tombolo_api::{Site, SiteSpec, names};

use crate::config::{Approval, FleetConfig};
use crate::sign;
use crate::tokens::{self, Verdict};

/// What to do about a signing request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Not for this signer, or done already.
    Ignore,
    /// A new site, with the id of the token it came with.
    Join {
        site: String,
        token: String,
    },
    /// A site that is known asks for a fresh certificate.
    Renew {
        site: String,
    },
    /// Approved; to be signed.
    Sign {
        site: String,
    },
    Deny(String),
}

/// A pure reading of the request: who asks for which name.
pub fn policy(request: &Request) -> Policy {
    if request.spec.signer_name != names::SIGNER {
        return Policy::Ignore;
    }
    let status = request.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    if status.certificate.is_some() || conditions.iter().any(|c| c.type_ == "Denied" || c.type_ == "Failed") {
        return Policy::Ignore;
    }
    let name = match sign::requested_name(&String::from_utf8_lossy(&request.spec.request.0)) {
        Ok(name) => name,
        Err(error) => return Policy::Deny(error.to_string()),
    };
    let Some(site) = names::site_of_user(&name).filter(|s| names::valid_site_name(s)).map(str::to_owned)
    else {
        return Policy::Deny(format!(
            "{name:?} is no name for a site; it must be system:site:<name>, at most 40 of a-z, 0-9, -"
        ));
    };
    if conditions.iter().any(|c| c.type_ == "Approved") {
        return Policy::Sign { site };
    }
    let user = request.spec.username.clone().unwrap_or_default();
    if user == name {
        return Policy::Renew { site };
    }
    let groups = request.spec.groups.clone().unwrap_or_default();
    match user.strip_prefix("system:bootstrap:") {
        Some(token) if groups.iter().any(|g| g == names::JOIN_GROUP) => {
            Policy::Join { site, token: token.to_owned() }
        }
        _ => Policy::Deny(format!("{user} may not ask for the certificate of site {site}")),
    }
}

pub async fn run(config: Arc<FleetConfig>) {
    let api: Api<Request> = Api::all(config.client.clone());
    let selector = watcher::Config::default().fields(&format!("spec.signerName={}", names::SIGNER));
    let mut requests = Box::pin(watcher(api, selector).default_backoff().applied_objects());
    // Ends with this task.
    let mut later = tokio::task::JoinSet::new();
    loop {
        match requests.try_next().await {
            Ok(Some(request)) => {
                let name = request.name_any();
                if let Err(error) = handle(&config, &request).await {
                    tracing::warn!(request = name, %error, "a signing request waits");
                    let config = config.clone();
                    later.spawn(async move { again(&config, &name).await });
                }
                while later.try_join_next().is_some() {}
            }
            Ok(None) => return,
            Err(error) => tracing::debug!(%error, "watch of signing requests interrupted"),
        }
    }
}

/// Tries a request again until it is settled; what stood in the way (a namespace that is still going, a conflict) passes.
async fn again(config: &FleetConfig, name: &str) {
    let api: Api<Request> = Api::all(config.client.clone());
    for _ in 0..60 {
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        match api.get_opt(name).await {
            Ok(Some(request)) => match handle(config, &request).await {
                Ok(()) => return,
                Err(error) => tracing::debug!(request = name, %error, "a signing request still waits"),
            },
            Ok(None) => return,
            Err(error) => tracing::debug!(request = name, %error, "a signing request cannot be read"),
        }
    }
    tracing::warn!(request = name, "a signing request was given up");
}

async fn handle(config: &FleetConfig, request: &Request) -> Result<(), Error> {
    match policy(request) {
        Policy::Ignore => Ok(()),
        Policy::Deny(why) => deny(config, request, &why).await,
        Policy::Renew { site } => {
            let known: Api<Site> = Api::all(config.client.clone());
            let Some(known) = known.get_opt(&site).await? else {
                let why = format!("this hub does not know site {site}; join again with a new token");
                return deny(config, request, &why).await;
            };
            if !is_present(&known, request) {
                let why = format!("the certificate of site {site} was revoked; join again with a new token");
                return deny(config, request, &why).await;
            }
            approve(config, request, "Renewal", "asked for by the site itself").await
        }
        Policy::Join { site, token } => join(config, request, &site, &token).await,
        Policy::Sign { site } => issue(config, request, &site).await,
    }
}

/// Does the request come from a certificate of the site's present identity? An old one still names the site. One that is
/// outside its time will do: a site that was cut off for too long has no other, and its key never left it.
fn is_present(site: &Site, request: &Request) -> bool {
    let groups = request.spec.groups.clone().unwrap_or_default();
    let identity = site.annotations().get(names::IDENTITY_ANNOTATION);
    identity.is_some_and(|identity| {
        let of = [names::identity_group(identity), names::expired_identity_group(identity)];
        of.iter().any(|group| groups.contains(group))
    })
}

/// On a signing request that waits for a person: its token was counted.
const COUNTED: &str = "tombolo.dev/token-counted";

async fn join(config: &FleetConfig, request: &Request, site: &str, token: &str) -> Result<(), Error> {
    // Only a person settles it now, however often this hub starts meanwhile.
    if request.annotations().contains_key(COUNTED) {
        return Ok(());
    }
    let sites: Api<Site> = Api::all(config.client.clone());
    let known = sites.get_opt(site).await?;
    if let Some(why) = known.and_then(|known| taken(&known)) {
        return deny(config, request, &why).await;
    }
    let spec: SiteSpec = annotation(request, names::SITE_SPEC_ANNOTATION);
    let hub = own_id(&config.client).await?;
    if spec.hubs.contains(&hub) {
        return deny(config, request, "the site is this hub, or is above it; a loop is refused").await;
    }
    let (id, now) = (request.uid().unwrap_or_default(), jiff::Timestamp::now().as_second());
    match tokens::consume(&config.client, token, &id, now).await? {
        Verdict::No(why) => deny(config, request, why).await,
        Verdict::Yes { needs_approval, .. } if needs_approval || config.approval == Approval::Person => {
            tracing::info!(site, request = request.name_any(), "waits for `tombolo sites approve`");
            let api: Api<Request> = Api::all(config.client.clone());
            let patch = Patch::Merge(json!({"metadata": {"annotations": {COUNTED: "true"}}}));
            api.patch(&request.name_any(), &PatchParams::default(), &patch).await.map(drop)
        }
        Verdict::Yes { .. } => approve(config, request, "Token", &format!("joined with token {token}")).await,
    }
}

/// Why nobody can join under the name of a site that is known, if so.
fn taken(known: &Site) -> Option<String> {
    let site = known.name_any();
    if known.metadata.deletion_timestamp.is_some() {
        return Some(format!(
            "site {site} is being removed, until what may run at most once has stopped there; join again when \
             `tombolo sites` no longer lists it, or under another --name"
        ));
    }
    let revoked = known.annotations().contains_key(names::REVOKED_ANNOTATION);
    (!revoked).then(|| {
        format!(
            "there is a site {site} already; remove it with `tombolo sites remove {site}` or join under another --name"
        )
    })
}

async fn own_id(client: &Client) -> Result<String, Error> {
    let api: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let data = api.get_opt(names::HUB_CONFIG).await?.and_then(|c| c.data).unwrap_or_default();
    Ok(data.get("id").cloned().unwrap_or_default())
}

fn annotation<T: serde::de::DeserializeOwned + Default>(request: &Request, name: &str) -> T {
    let text = request.annotations().get(name);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

async fn condition(
    config: &FleetConfig,
    request: &Request,
    kind: &str,
    reason: &str,
    message: &str,
) -> Result<(), Error> {
    let api: Api<Request> = Api::all(config.client.clone());
    let mut changed = request.clone();
    changed.metadata.managed_fields = None;
    let condition =
        serde_json::from_value(json!({"type": kind, "status": "True", "reason": reason, "message": message}))
            .map_err(Error::SerdeError)?;
    changed.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
    api.replace_subresource("approval", &request.name_any(), &PostParams::default(), &changed).await.map(drop)
}

/// The request with which a site waits for a person.
pub async fn waiting(client: &Client, site: &str) -> Result<Option<String>, Error> {
    let api: Api<Request> = Api::all(client.clone());
    let all = api.list(&Default::default()).await?.items;
    let of_site = |r: &&Request| matches!(policy(r), Policy::Join { site: asked, .. } if asked == site);
    Ok(all.iter().filter(of_site).map(ResourceExt::name_any).next_back())
}

/// Makes every certificate of a site useless, at once. It may join again with a new token.
pub async fn revoke(client: &Client, site: &str) -> Result<(), Error> {
    let identity = uuid::Uuid::new_v4().simple().to_string();
    let api: Api<Site> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {
        names::IDENTITY_ANNOTATION: identity, names::REVOKED_ANNOTATION: crate::now_text()}}}));
    api.patch(site, &PatchParams::default(), &patch).await?;
    crate::sites::equip(client, site, &identity).await
}

/// Approves a request: used by policy, and by `tombolo sites approve`.
pub async fn approve_request(client: &Client, name: &str, by: &str) -> Result<(), Error> {
    let api: Api<Request> = Api::all(client.clone());
    let mut request = api.get(name).await?;
    request.metadata.managed_fields = None;
    let condition = json!({"type": "Approved", "status": "True", "reason": "Person", "message": format!("approved by {by}")});
    let condition = serde_json::from_value(condition).map_err(Error::SerdeError)?;
    request.status.get_or_insert_default().conditions.get_or_insert_default().push(condition);
    api.replace_subresource("approval", name, &PostParams::default(), &request).await.map(drop)
}

async fn approve(config: &FleetConfig, request: &Request, reason: &str, message: &str) -> Result<(), Error> {
    condition(config, request, "Approved", reason, message).await
}

async fn deny(config: &FleetConfig, request: &Request, why: &str) -> Result<(), Error> {
    tracing::warn!(
        request = request.name_any(),
        user = request.spec.username,
        why,
        "a signing request was denied"
    );
    condition(config, request, "Denied", "Policy", why).await
}

/// Makes the site known if it is new, then signs.
async fn issue(config: &FleetConfig, request: &Request, site: &str) -> Result<(), Error> {
    let identity = known_identity(config, request, site).await?;
    crate::sites::equip(&config.client, site, &identity).await?;
    let pem = String::from_utf8_lossy(&request.spec.request.0).into_owned();
    let now = jiff::Timestamp::now().as_second();
    let certificate = match sign::sign(
        &pem,
        site,
        &identity,
        &config.ca_cert,
        &config.ca_key,
        now,
        config.certificate_life,
    ) {
        Ok(certificate) => certificate,
        Err(error) => return deny(config, request, &error.to_string()).await,
    };
    let api: Api<Request> = Api::all(config.client.clone());
    let mut signed = request.clone();
    signed.metadata.managed_fields = None;
    signed.status.get_or_insert_default().certificate = Some(ByteString(certificate.into_bytes()));
    api.replace_status(&request.name_any(), &PostParams::default(), &signed).await?;
    tracing::info!(site, "certificate signed");
    Ok(())
}

/// The identity of the site, which is made with the site.
async fn known_identity(config: &FleetConfig, request: &Request, site: &str) -> Result<String, Error> {
    let api: Api<Site> = Api::all(config.client.clone());
    if let Some(known) = api.get_opt(site).await? {
        if let Some(identity) = known.annotations().get(names::IDENTITY_ANNOTATION) {
            if known.annotations().contains_key(names::REVOKED_ANNOTATION) {
                let patch = json!({"metadata": {"annotations": {names::REVOKED_ANNOTATION: null}}});
                api.patch(site, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
            return Ok(identity.clone());
        }
        let identity = uuid::Uuid::new_v4().simple().to_string();
        let patch =
            Patch::Merge(json!({"metadata": {"annotations": {names::IDENTITY_ANNOTATION: identity}}}));
        api.patch(site, &PatchParams::default(), &patch).await?;
        return Ok(identity);
    }
    let identity = uuid::Uuid::new_v4().simple().to_string();
    let mut new = Site::new(site, annotation(request, names::SITE_SPEC_ANNOTATION));
    new.metadata = ObjectMeta {
        name: Some(site.to_owned()),
        labels: Some(annotation(request, names::SITE_LABELS_ANNOTATION)),
        annotations: Some([(names::IDENTITY_ANNOTATION.to_owned(), identity.clone())].into()),
        finalizers: Some(vec![names::SITE_FINALIZER.into()]),
        ..Default::default()
    };
    api.create(&PostParams::default(), &new).await?;
    Ok(identity)
}

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
