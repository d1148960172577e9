//! Signing requests: what is asked, and waiting for the answer.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{Api, ObjectMeta, PostParams, WatchEvent, WatchParams};
use tombolo_api::names;

use super::JoinError;

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
/// A watch is renewed this often, so that a half-dead connection is noticed.
const WATCH_SECONDS: u32 = 60;
/// After so many seconds a newcomer that nobody let in says so for the first time.
const FIRST_WORD: u32 = 3;

/// Asks for a client certificate of node `name` and waits until it is there, or denied.
pub(super) async fn client_certificate(
    client: &kube::Client,
    name: &str,
    key: &rcgen::KeyPair,
) -> Result<String, JoinError> {
    let mut params = rcgen::CertificateParams::new(Vec::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{name}"));
    let pem = params.serialize_request(key)?.pem()?;
    let spec = CertificateSigningRequestSpec {
        request: ByteString(pem.into_bytes()),
        signer_name: CLIENT_SIGNER.into(),
        usages: Some(vec!["digital signature".into(), "client auth".into()]),
        ..Default::default()
    };
    let hint = "A node of this name may exist already: delete it, or approve the request";
    wait(client, name, spec, hint, FIRST_WORD).await
}

/// Asks for a certificate for the kubelet port of node `name` and waits until it is there, or denied. A Tombolo site
/// approves it when the names are those in the node's status; elsewhere it may take an administrator.
pub(crate) async fn serving_certificate(
    client: &kube::Client,
    name: &str,
    names: &[String],
    key: &rcgen::KeyPair,
) -> Result<String, JoinError> {
    let mut params = rcgen::CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{name}"));
    let spec = CertificateSigningRequestSpec {
        request: ByteString(params.serialize_request(key)?.pem()?.into_bytes()),
        signer_name: SERVING_SIGNER.into(),
        usages: Some(vec!["digital signature".into(), "server auth".into()]),
        ..Default::default()
    };
    wait(
        client,
        name,
        spec,
        "It is for the kubelet port; the port shows the node's own certificate until then",
        WATCH_SECONDS,
    )
    .await
}

async fn wait(
    client: &kube::Client,
    node: &str,
    spec: CertificateSigningRequestSpec,
    hint: &str,
    first_word: u32,
) -> Result<String, JoinError> {
    let name = format!("node-{node}-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
    let metadata = ObjectMeta { name: Some(name.clone()), ..Default::default() };
    let request = CertificateSigningRequest { metadata, spec, status: None };
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let made = api.create(&PostParams::default(), &request).await?;
    let mut version = made.metadata.resource_version.unwrap_or_default();
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut hint = hint.to_owned();
    // Clusters that approve by themselves do so at once: whoever stands by is not left to wonder for a minute.
    let mut seconds = first_word;
    loop {
        match api.watch(&params.clone().timeout(seconds), &version).await {
            Ok(events) => {
                let mut events = events.boxed();
                while let Some(Ok(event)) = events.next().await {
                    match event {
                        WatchEvent::Added(seen) | WatchEvent::Modified(seen) => {
                            if let Some(certificate) = issued(&seen)? {
                                return Ok(certificate);
                            }
                            if let Some(why) = waits(&seen).filter(|why| *why != hint) {
                                hint = why;
                                break;
                            }
                        }
                        WatchEvent::Deleted(_) => {
                            return Err(JoinError::Denied("the request was deleted".into()));
                        }
                        WatchEvent::Bookmark(_) => {}
                        WatchEvent::Error(_) => break,
                    }
                }
            }
            Err(error) => {
                tracing::debug!(request = name, %error, "the watch on the signing request broke");
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        }
        let seen = api.get(&name).await?;
        if let Some(certificate) = issued(&seen)? {
            return Ok(certificate);
        }
        hint = waits(&seen).unwrap_or(hint);
        version = seen.metadata.resource_version.unwrap_or_default();
        seconds = WATCH_SECONDS;
        tracing::warn!(
            request = name,
            hint,
            "nobody approved this node's request yet: `kubectl certificate approve {name}`"
        );
    }
}

/// What the site says about a request that it leaves to others.
fn waits(request: &CertificateSigningRequest) -> Option<String> {
    let mut conditions = request.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|condition| condition.type_ == names::NAME_TAKEN)?.message.clone()
}

fn issued(request: &CertificateSigningRequest) -> Result<Option<String>, JoinError> {
    let status = request.status.clone().unwrap_or_default();
    let refused = |kind: &str| kind == "Denied" || kind == "Failed";
    if let Some(no) = status.conditions.iter().flatten().find(|c| refused(&c.type_)) {
        return Err(JoinError::Denied(no.message.clone().unwrap_or_default()));
    }
    Ok(status.certificate.map(|c| String::from_utf8_lossy(&c.0).into_owned()))
}
