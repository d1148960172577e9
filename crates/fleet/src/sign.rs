//! Certificates for sites: only the public key is taken from the request; everything else is the hub's word.

use std::time::Duration;

use rcgen::{
    CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tombolo_api::names;

#[derive(Debug, thiserror::Error)]
pub enum SignError {
    #[error("the request cannot be read: {0}")]
    Request(#[source] rcgen::Error),
    #[error("the hub's CA cannot be used: {0}")]
    Ca(#[source] rcgen::Error),
    #[error("the request asks for the name {found:?}, not for {wanted}")]
    Name { found: String, wanted: String },
}

/// The common name that a request asks for.
pub fn requested_name(pem: &str) -> Result<String, SignError> {
    let request = CertificateSigningRequestParams::from_pem(pem).map_err(SignError::Request)?;
    Ok(match request.params.distinguished_name.get(&DnType::CommonName) {
        Some(rcgen::DnValue::Utf8String(name)) => name.clone(),
        Some(rcgen::DnValue::PrintableString(name)) => name.as_str().to_owned(),
        _ => String::new(),
    })
}

/// Signs for `site` with its present identity. `now` in seconds since 1970.
pub fn sign(
    pem: &str,
    site: &str,
    identity: &str,
    ca_cert: &str,
    ca_key: &str,
    now: i64,
    life: Duration,
) -> Result<String, SignError> {
    let wanted = names::site_user(site);
    let found = requested_name(pem)?;
    if found != wanted {
        return Err(SignError::Name { found, wanted });
    }
    let mut request = CertificateSigningRequestParams::from_pem(pem).map_err(SignError::Request)?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, wanted);
    params.distinguished_name.push(DnType::OrganizationName, names::SITES_GROUP);
    params.distinguished_name.push(DnType::OrganizationalUnitName, "tombolo");
    let identity_group = names::identity_group(identity);
    params.distinguished_name.push(DnType::CustomDnType(ORGANIZATION.to_vec()), identity_group);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    // A site's clock may be a little behind.
    let life = life.as_secs() as i64;
    params.not_before = at(now - SLACK.min(life / 3));
    params.not_after = at(now + life);
    request.params = params;
    let key = KeyPair::from_pem(ca_key).map_err(SignError::Ca)?;
    let issuer = Issuer::from_ca_cert_pem(ca_cert, key).map_err(SignError::Ca)?;
    Ok(request.signed_by(&issuer).map_err(SignError::Request)?.pem())
}

/// Seconds that a certificate is valid before it was signed.
const SLACK: i64 = 300;
/// A second organization: rcgen keeps one value per named type, and a custom type of the same OID beside it.
const ORGANIZATION: &[u64] = &[2, 5, 4, 10];

fn at(seconds: i64) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ca() -> (String, String) {
        let key = KeyPair::generate().expect("key");
        let mut params = rcgen::CertificateParams::new(vec![]).expect("params");
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "hub");
        (params.self_signed(&key).expect("ca").pem(), key.serialize_pem())
    }

    fn request(name: &str, groups: &[&str]) -> String {
        let mut params = rcgen::CertificateParams::new(vec!["evil.example".into()]).expect("params");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.serialize_request(&KeyPair::generate().expect("key")).expect("request").pem().expect("pem")
    }

    #[test]
    fn a_certificate_carries_what_the_hub_says_and_nothing_the_site_asked_for() {
        let (cert, key) = ca();
        let now = 1_800_000_000;
        let pem = sign(
            &request("system:site:a", &["system:masters"]),
            "a",
            "i1",
            &cert,
            &key,
            now,
            Duration::from_secs(3600),
        )
        .expect("signed");
        let chain = tombolo_tunnel::tls::certificates(pem.as_bytes(), "x").expect("one");
        let identity = tombolo_tunnel::identity_of(&chain[0]).expect("an identity");
        assert_eq!(identity.user, "system:site:a");
        assert_eq!(identity.groups, ["system:sites", "system:site-identity:i1"]);
        assert_eq!((identity.not_before, identity.not_after), (now - 300, now + 3600));
    }

    #[test]
    fn a_site_does_not_get_another_site_s_name() {
        let (cert, key) = ca();
        let refused = sign(&request("system:site:b", &[]), "a", "i", &cert, &key, 0, Duration::from_secs(1));
        assert!(matches!(refused, Err(SignError::Name { .. })));
    }
}
