//! Client certificates: the common name is the user, organizations are groups.

use x509_parser::prelude::{FromDer, X509Certificate};

use super::identity::Identity;
use super::outdated::groups_outside_time;

/// Reads the identity out of a certificate that the TLS layer has already verified against the CA.
pub fn identity(der: &[u8]) -> Option<Identity> {
    identity_at(der, jiff::Timestamp::now().as_second())
}

pub(super) fn identity_at(der: &[u8], now: i64) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    if user.is_empty() {
        return None;
    }
    let mut identity = match groups_outside_time(&certificate, now) {
        Some(groups) => Identity::new(user, groups),
        None => {
            let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned));
            Identity::new(user, groups)
        }
    };
    let fingerprint = ring::digest::digest(&ring::digest::SHA256, der);
    identity.extra.insert(
        "authentication.kubernetes.io/credential-id".into(),
        vec![format!("X509SHA256={}", hex(fingerprint.as_ref()))],
    );
    Some(identity)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}
