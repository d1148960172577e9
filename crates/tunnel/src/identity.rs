//! Who a certificate stands for: CN is the user, every O a group, as Kubernetes reads client certificates.

use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerIdentity {
    pub user: String,
    pub groups: Vec<String>,
    /// Serial number, in hex.
    pub serial: String,
    /// Seconds since 1970.
    pub not_before: i64,
    pub not_after: i64,
}

/// Reads the identity out of a certificate that TLS has verified.
pub fn identity_of(certificate: &CertificateDer<'_>) -> Option<PeerIdentity> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let subject = parsed.subject();
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().ok().map(str::to_owned);
    Some(PeerIdentity {
        user: subject.iter_common_name().find_map(text)?,
        groups: subject.iter_organization().filter_map(text).collect(),
        serial: parsed.raw_serial_as_string().replace(':', ""),
        not_before: parsed.validity().not_before.timestamp(),
        not_after: parsed.validity().not_after.timestamp(),
    })
}
