//! Whom a node joins: `cluster-info` is read without trusting anything, and believed only with proof.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, Config};
use ring::hmac;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use super::{Cluster, JoinError};

/// The URL, if it can be one.
pub(super) fn checked(url: &str) -> Result<String, JoinError> {
    let parsed: http::Uri = url.parse().map_err(|_| JoinError::Address(url.into()))?;
    match (parsed.scheme_str(), parsed.host()) {
        (Some("https"), Some(_)) => Ok(url.trim_end_matches('/').to_owned()),
        _ => Err(JoinError::Address(url.into())),
    }
}

/// The cluster's CA (PEM), and what else it says about itself.
pub(super) async fn discover(
    url: &str,
    token: &str,
    hash: Option<&str>,
) -> Result<(String, Cluster), JoinError> {
    let mut blind = config(url)?;
    blind.accept_invalid_certs = true;
    // Else the machine's own authorities would be read, and a small machine or image has none.
    blind.root_cert = Some(Vec::new());
    let api: Api<ConfigMap> = Api::namespaced(Client::try_from(blind)?, "kube-public");
    let info = api.get("cluster-info").await.map_err(|error| match error {
        kube::Error::Api(status) => JoinError::NoClusterInfo(status.message),
        other => JoinError::Unreachable { url: url.to_owned(), source: Box::new(other) },
    })?;
    let data = info.data.unwrap_or_default();
    let missing = |what: &str| JoinError::NoClusterInfo(what.to_owned());
    let kubeconfig = data.get("kubeconfig").ok_or_else(|| missing("it has no kubeconfig"))?;
    let (id, _) = token.split_once('.').ok_or_else(|| JoinError::Token(token.to_owned()))?;
    if hash.is_none() {
        let signature = data.get(&format!("jws-kubeconfig-{id}")).map(String::as_str).unwrap_or_default();
        if !is_signed(kubeconfig, token, signature) {
            return Err(JoinError::NotSigned(id.to_owned()));
        }
    }
    let ca =
        ca_of(kubeconfig).ok_or_else(|| missing("its kubeconfig holds no certificate-authority-data"))?;
    if let Some(wanted) = hash {
        let found = ca_hash(&ca).ok_or_else(|| missing("its CA is no certificate"))?;
        if found != wanted {
            return Err(JoinError::WrongCa { url: url.to_owned(), wanted: wanted.to_owned(), found });
        }
    }
    let about = data.get("tombolo").and_then(|text| serde_json::from_str::<Cluster>(text).ok());
    Ok((ca, Cluster { url: url.to_owned(), ..about.unwrap_or_default() }))
}

/// A client that shows the token, to a server that the CA vouches for.
pub(super) fn with_token(url: &str, ca: &str, token: &str) -> Result<Client, JoinError> {
    let mut config = config(url)?;
    config.root_cert = Some(certificates(ca).iter().map(|c| c.to_vec()).collect());
    config.auth_info.token = Some(token.to_owned().into());
    Ok(Client::try_from(config)?)
}

fn config(url: &str) -> Result<Config, JoinError> {
    Ok(Config::new(url.parse().map_err(|_| JoinError::Address(url.into()))?))
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

fn ca_of(kubeconfig: &str) -> Option<String> {
    let line = kubeconfig
        .lines()
        .find_map(|l| l.trim().trim_start_matches("- ").strip_prefix("certificate-authority-data:"))?;
    String::from_utf8(STANDARD.decode(line.trim().trim_matches('"')).ok()?).ok()
}

/// `sha256:<hex>` of the first certificate's public key, as kubeadm counts it.
pub fn ca_hash(pem: &str) -> Option<String> {
    let chain = certificates(pem);
    let (_, parsed) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    Some(format!("sha256:{}", hex::encode(Sha256::digest(parsed.public_key().raw))))
}

/// A detached JSON web signature (HS256) of `cluster-info`'s kubeconfig with a token, as Kubernetes' bootstrap signer makes
/// them. The key is the secret half of the token.
pub fn sign_cluster_info(kubeconfig: &str, token: &str) -> Option<String> {
    let (id, secret) = token.split_once('.')?;
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, signed(&header, kubeconfig).as_bytes());
    Some(format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag)))
}

fn signed(header: &str, payload: &str) -> String {
    format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload))
}

fn is_signed(kubeconfig: &str, token: &str, signature: &str) -> bool {
    let Some((id, secret)) = token.split_once('.') else { return false };
    let parts: Vec<&str> = signature.split('.').collect();
    let [header, "", tag] = parts[..] else { return false };
    let stated = URL_SAFE_NO_PAD.decode(header).ok();
    let stated: Option<serde_json::Value> = stated.and_then(|text| serde_json::from_slice(&text).ok());
    if !stated.is_some_and(|stated| stated["alg"] == "HS256" && stated["kid"] == id) {
        return false;
    }
    let Ok(tag) = URL_SAFE_NO_PAD.decode(tag) else { return false };
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hmac::verify(&key, signed(header, kubeconfig).as_bytes(), &tag).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_info_is_believed_only_with_the_token_s_own_signature() {
        let (text, token) = ("clusters: []", "abcdef.0123456789abcdef");
        let signature = sign_cluster_info(text, token).expect("a token");
        assert!(is_signed(text, token, &signature));
        assert!(!is_signed("clusters: [x]", token, &signature), "another text");
        assert!(!is_signed(text, "abcdef.0123456789abcdee", &signature), "another secret");
        assert!(!is_signed(text, "abcdeg.0123456789abcdef", &signature), "another token's signature");
        assert!(!is_signed(text, token, ""), "none");
        let unsigned = format!("{}..", URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"abcdef"}"#));
        assert!(!is_signed(text, token, &unsigned), "no algorithm");
    }

    #[test]
    fn only_https_addresses_are_joined() {
        assert_eq!(checked("https://site:6443/").expect("good"), "https://site:6443");
        assert!(checked("http://site:6443").is_err() && checked("site").is_err());
    }
}
