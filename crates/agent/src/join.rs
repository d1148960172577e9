//! Joining a hub: find its CA and check it against the hash we were given, send a signing request with the bootstrap
//! token, wait until policy or a person approves it. The key never leaves the site.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Config, Error};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tombolo_api::names;

use crate::config::AgentConfig;
use crate::state::State;

/// A token is answered within moments, a person takes a while.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("`{0}` is no hub address; it looks like https://hub.example:6443")]
    Address(String),
    #[error("no join token and no certificate; make one at the hub with `tombolo token create`")]
    NoToken,
    #[error("no hash of the hub's CA; use the whole join command that `tombolo token create` printed")]
    NoHash,
    #[error(
        "the hub's CA does not have the hash {wanted} but {found}: this is not the hub you meant, or its CA was replaced"
    )]
    WrongCa { wanted: String, found: String },
    #[error("the hub does not say who it is (ConfigMap kube-public/cluster-info): {0}")]
    NoClusterInfo(String),
    #[error("the hub denied the request: {0}")]
    Denied(String),
    #[error("cannot make a key: {0}")]
    Key(#[from] rcgen::Error),
    #[error("the hub answered: {0}")]
    Hub(Box<Error>),
}

impl From<Error> for JoinError {
    fn from(error: Error) -> Self {
        Self::Hub(Box::new(error))
    }
}

impl JoinError {
    /// Trying again cannot help.
    pub fn is_final(&self) -> bool {
        let unauthorized = |e: &Error| matches!(e, Error::Api(s) if s.code == 401 || s.code == 403);
        match self {
            Self::Address(_) | Self::NoToken | Self::NoHash | Self::WrongCa { .. } | Self::Denied(_) => true,
            Self::Hub(error) => unauthorized(error),
            _ => false,
        }
    }
}

/// Joins, and gives back what is to be remembered.
pub async fn join(config: &AgentConfig, old: &State) -> Result<State, JoinError> {
    let token = config.token.clone().ok_or(JoinError::NoToken)?;
    let (ca, info) = discover(config).await?;
    let mut bearer = hub_config(&config.hub_url, Some(&ca))?;
    bearer.auth_info.token = Some(token.clone().into());
    let client = Client::try_from(bearer)?;
    let key = rcgen::KeyPair::generate()?;
    let certificate = request(&client, config, &key).await?;
    let hub = info["hub"].as_str().unwrap_or_default().to_owned();
    Ok(State {
        ca,
        key: key.serialize_pem(),
        certificate,
        epoch: if old.hub == hub { old.epoch } else { 0 },
        hub,
        quic_port: info["quicPort"].as_u64().and_then(|p| p.try_into().ok()).unwrap_or_default(),
        replicas: Vec::new(),
        token_id: token.split('.').next().unwrap_or_default().to_owned(),
        removed: String::new(),
    })
}

/// A new certificate for one that is over: the hub takes the old one for this and for nothing else.
pub async fn renew_outdated(config: &AgentConfig, old: &State) -> Result<State, JoinError> {
    let mut own = hub_config(&config.hub_url, Some(&old.ca))?;
    own.auth_info.client_certificate_data = Some(STANDARD.encode(&old.certificate));
    own.auth_info.client_key_data = Some(STANDARD.encode(&old.key).into());
    let key = rcgen::KeyPair::generate()?;
    let certificate = request(&Client::try_from(own)?, config, &key).await?;
    Ok(State { key: key.serialize_pem(), certificate, ..old.clone() })
}

/// Asks for a certificate with a new key, over a client that may ask (bootstrap token, or the site's own identity).
pub async fn request(
    client: &Client,
    config: &AgentConfig,
    key: &rcgen::KeyPair,
) -> Result<String, JoinError> {
    let mut params = rcgen::CertificateParams::new(Vec::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, names::SITES_GROUP);
    params.distinguished_name.push(rcgen::DnType::CommonName, names::site_user(&config.name));
    let pem = params.serialize_request(key)?.pem()?;
    // Whoever knows the name may read the answer, so nobody must guess it.
    let name = format!("site-{}-{}", config.name, uuid::Uuid::new_v4().simple());
    let csr = CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some(
                [
                    (names::SITE_SPEC_ANNOTATION.to_owned(), json!(config.spec).to_string()),
                    (names::SITE_LABELS_ANNOTATION.to_owned(), json!(config.labels).to_string()),
                ]
                .into(),
            ),
            ..Default::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: names::SIGNER.into(),
            usages: Some(vec!["client auth".into()]),
            ..Default::default()
        },
        ..Default::default()
    };
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    api.create(&PostParams::default(), &csr).await?;
    let mut pause = FIRST_LOOK;
    loop {
        tokio::time::sleep(pause).await;
        match api.get(&name).await {
            Ok(csr) => {
                if let Some(certificate) = issued(&csr)? {
                    return Ok(certificate);
                }
            }
            Err(Error::Api(status)) if status.code == 404 => {
                return Err(JoinError::Denied("the request was deleted".into()));
            }
            Err(Error::Api(status)) if matches!(status.code, 401 | 403) => {
                return Err(Error::Api(status).into());
            }
            // A hub that starts anew, or a link that breaks: the request is still there afterwards.
            Err(error) => tracing::debug!(request = name, %error, "the answer cannot be read now"),
        }
        if pause < LAST_LOOK && pause * 2 >= LAST_LOOK {
            tracing::info!(request = name, "waiting for approval (`tombolo sites approve`)");
        }
        pause = (pause * 2).min(LAST_LOOK);
    }
}

fn issued(csr: &CertificateSigningRequest) -> Result<Option<String>, JoinError> {
    let status = csr.status.clone().unwrap_or_default();
    if let Some(no) = status.conditions.iter().flatten().find(|c| c.type_ == "Denied" || c.type_ == "Failed")
    {
        return Err(JoinError::Denied(no.message.clone().unwrap_or_default()));
    }
    Ok(status.certificate.map(|c| String::from_utf8_lossy(&c.0).into_owned()))
}

/// Reads the hub's CA without trusting anything yet, and believes it only if its key has the hash we were given.
async fn discover(config: &AgentConfig) -> Result<(String, Value), JoinError> {
    let wanted = config.ca_hash.clone().ok_or(JoinError::NoHash)?;
    let mut blind = hub_config(&config.hub_url, None)?;
    blind.accept_invalid_certs = true;
    // Else the machine's own authorities would be read, and a small machine or image has none.
    blind.root_cert = Some(Vec::new());
    let client = Client::try_from(blind)?;
    let api: Api<ConfigMap> = Api::namespaced(client, "kube-public");
    let data = api.get("cluster-info").await?.data.unwrap_or_default();
    let ca = data
        .get("kubeconfig")
        .and_then(|text| ca_of(text))
        .ok_or_else(|| JoinError::NoClusterInfo("it holds no certificate-authority-data".into()))?;
    let found = ca_hash(&ca).ok_or_else(|| JoinError::NoClusterInfo("its CA is no certificate".into()))?;
    if found != wanted {
        return Err(JoinError::WrongCa { wanted, found });
    }
    let info = data.get("tombolo").and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
    Ok((ca, info))
}

fn ca_of(kubeconfig: &str) -> Option<String> {
    let line = kubeconfig
        .lines()
        .find_map(|l| l.trim().trim_start_matches("- ").strip_prefix("certificate-authority-data:"))?;
    String::from_utf8(STANDARD.decode(line.trim().trim_matches('"')).ok()?).ok()
}

/// `sha256:<hex>` of the first certificate's public key, as kubeadm counts it.
pub fn ca_hash(pem: &str) -> Option<String> {
    use x509_parser::prelude::FromDer;
    let chain = tombolo_tunnel::tls::certificates(pem.as_bytes(), "the CA").ok()?;
    let (_, parsed) = x509_parser::prelude::X509Certificate::from_der(chain.first()?).ok()?;
    Some(format!("sha256:{}", hex::encode(Sha256::digest(parsed.public_key().raw))))
}

fn hub_config(url: &str, ca: Option<&str>) -> Result<Config, JoinError> {
    let uri: http::Uri = url.parse().map_err(|_| JoinError::Address(url.into()))?;
    if uri.scheme_str() != Some("https") || uri.host().is_none() {
        return Err(JoinError::Address(url.into()));
    }
    let mut config = Config::new(uri);
    config.root_cert = match ca {
        Some(pem) => tombolo_tunnel::tls::certificates(pem.as_bytes(), "the CA")
            .ok()
            .map(|all| all.into_iter().map(|c| c.to_vec()).collect()),
        None => None,
    };
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_ca_is_of_its_public_key() {
        let key = rcgen::KeyPair::generate().expect("key");
        let make = |name: &str| {
            let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("params");
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            params.self_signed(&key).expect("signed").pem()
        };
        let (a, b) = (ca_hash(&make("a")).expect("hash"), ca_hash(&make("b")).expect("hash"));
        assert_eq!(a, b, "a renewed certificate of the same key is the same CA");
        assert!(a.starts_with("sha256:") && a.len() == 71);
        assert_eq!(ca_hash("nothing"), None);
    }

    #[test]
    fn a_kubeconfig_gives_its_ca() {
        let text = format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n",
            STANDARD.encode("PEM")
        );
        assert_eq!(ca_of(&text).as_deref(), Some("PEM"));
        assert!(hub_config("http://hub", None).is_err());
    }
}
