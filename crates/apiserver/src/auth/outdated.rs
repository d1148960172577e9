//! Client certificates, and the one leniency with them: a node's or a site's that is outside its time.
//!
//! A node that slept past the end of its certificate, or whose site had a wrong clock when it signed, still holds a key that
//! only it has; so does a site that was cut off for too long. It is let in to ask for a new certificate and for nothing
//! else: [`super::x509`] gives it no group but [`EXPIRED_NODE_GROUP`] or [`EXPIRED_SITE_GROUP`] and, if it is a site, one
//! that names its identity. Whether the node still exists, or the identity is still the site's, is asked before anything is
//! signed. Certificates of people and programs outside their time are refused, as always.

use std::sync::Arc;
use std::time::Duration;

use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Who proved to hold the key of a node's certificate that is outside its time.
pub const EXPIRED_NODE_GROUP: &str = "system:bootstrappers:tombolo:expired-node";

/// The same of a site's.
pub const EXPIRED_SITE_GROUP: &str = "system:bootstrappers:tombolo:expired-site";

const NODES_GROUP: &str = "system:nodes";
const SITES_GROUP: &str = "system:sites";
/// Of the group that a site's identity is, in its time and outside of it.
const IDENTITY: &str = "system:site-identity:";
const EXPIRED_IDENTITY: &str = "system:expired-site-identity:";

/// Whose certificate it is, if it may be outside its time.
fn lenient(certificate: &X509Certificate) -> Option<&'static str> {
    let of = |group| certificate.subject().iter_organization().any(|o| o.as_str() == Ok(group));
    [NODES_GROUP, SITES_GROUP].into_iter().find(|group| of(group))
}

/// The groups that are left to a certificate that is outside its time; `None` for one that has all of its own.
pub(super) fn groups_outside_time(certificate: &X509Certificate, now: i64) -> Option<Vec<String>> {
    let whose = lenient(certificate)?;
    let validity = certificate.validity();
    if (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now) {
        return None;
    }
    if whose == NODES_GROUP {
        return Some(vec![EXPIRED_NODE_GROUP.to_owned()]);
    }
    let all = certificate.subject().iter_organization().filter_map(|o| o.as_str().ok());
    let identities = all.filter_map(|group| group.strip_prefix(IDENTITY));
    let identities = identities.map(|identity| format!("{EXPIRED_IDENTITY}{identity}"));
    Some(std::iter::once(EXPIRED_SITE_GROUP.to_owned()).chain(identities).collect())
}

#[derive(Debug)]
pub struct Verifier {
    strict: Arc<dyn ClientCertVerifier>,
}

impl Verifier {
    pub fn new(
        roots: rustls::RootCertStore,
        provider: Arc<rustls::crypto::CryptoProvider>,
    ) -> Result<Self, rustls::server::VerifierBuilderError> {
        let strict = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()?;
        Ok(Self { strict })
    }
}

fn is_about_time(error: &Error) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(
        error,
        Error::InvalidCertificate(Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
    )
}

impl ClientCertVerifier for Verifier {
    fn offer_client_auth(&self) -> bool {
        self.strict.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.strict.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.strict.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let refused = match self.strict.verify_client_cert(leaf, chain, now) {
            Err(error) if is_about_time(&error) => error,
            verdict => return verdict,
        };
        let begin = X509Certificate::from_der(leaf)
            .ok()
            .filter(|(_, certificate)| lenient(certificate).is_some())
            .map(|(_, certificate)| certificate.validity().not_before.timestamp());
        let Some(begin) = begin else { return Err(refused) };
        // Everything but the time is checked as always, at a moment when the certificate was in its time.
        let then = UnixTime::since_unix_epoch(Duration::from_secs(begin.max(0).unsigned_abs() + 1));
        self.strict.verify_client_cert(leaf, chain, then).map_err(|_| refused)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        self.strict.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        self.strict.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::x509;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    const DAY: i64 = 24 * 3600;
    const NOW: i64 = 1_800_000_000;

    struct Authority {
        issuer: Issuer<'static, KeyPair>,
        verifier: Verifier,
    }

    fn valid(params: &mut CertificateParams, begin: i64, end: i64) {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + Duration::from_secs(begin.unsigned_abs());
        params.not_after = epoch + Duration::from_secs(end.unsigned_abs());
    }

    fn authority() -> Authority {
        let key = KeyPair::generate().expect("key");
        let mut ca = CertificateParams::new(Vec::new()).expect("params");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        valid(&mut ca, NOW - 5000 * DAY, NOW + 5000 * DAY);
        let made = ca.self_signed(&key).expect("signed");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.der().clone()).expect("root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let issuer = Issuer::from_ca_cert_pem(&made.pem(), key).expect("issuer");
        Authority { issuer, verifier: Verifier::new(roots, provider).expect("verifier") }
    }

    impl Authority {
        fn certificate(&self, user: &str, group: &str, begin: i64, end: i64) -> CertificateDer<'static> {
            self.certificate_of(user, &[group], begin, end)
        }

        fn certificate_of(
            &self,
            user: &str,
            groups: &[&str],
            begin: i64,
            end: i64,
        ) -> CertificateDer<'static> {
            let mut params = CertificateParams::new(Vec::new()).expect("params");
            params.distinguished_name = rcgen::DistinguishedName::new();
            // A name has each attribute once in rcgen's eyes; the second organization goes by its number.
            let kinds = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
            for (kind, group) in kinds.into_iter().zip(groups) {
                params.distinguished_name.push(kind, *group);
            }
            params.distinguished_name.push(DnType::CommonName, user);
            params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            valid(&mut params, begin, end);
            let key = KeyPair::generate().expect("key");
            params.signed_by(&key, &self.issuer).expect("signed").der().clone()
        }

        fn verdict(&self, certificate: &CertificateDer<'_>) -> Result<ClientCertVerified, Error> {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW.unsigned_abs()));
            self.verifier.verify_client_cert(certificate, &[], now)
        }
    }

    #[test]
    fn a_node_outside_its_time_is_let_in_as_nothing_but_that() {
        let ca = authority();
        for (begin, end) in [(NOW - 9 * DAY, NOW - DAY), (NOW + DAY, NOW + 9 * DAY)] {
            let certificate = ca.certificate("system:node:a", NODES_GROUP, begin, end);
            ca.verdict(&certificate).expect("let in");
            let identity = x509::identity_at(&certificate, NOW).expect("identity");
            assert_eq!(identity.user, "system:node:a");
            assert!(identity.in_group(EXPIRED_NODE_GROUP) && !identity.in_group(NODES_GROUP));
        }
        let fresh = ca.certificate("system:node:a", NODES_GROUP, NOW - DAY, NOW + DAY);
        ca.verdict(&fresh).expect("let in");
        let identity = x509::identity_at(&fresh, NOW).expect("identity");
        assert!(identity.in_group(NODES_GROUP) && !identity.in_group(EXPIRED_NODE_GROUP));
    }

    #[test]
    fn a_site_outside_its_time_keeps_nothing_but_the_name_of_its_identity() {
        let ca = authority();
        let groups = [SITES_GROUP, "system:site-identity:i1"];
        let old = ca.certificate_of("system:site:a", &groups, NOW - 90 * DAY, NOW - 60 * DAY);
        ca.verdict(&old).expect("let in");
        let identity = x509::identity_at(&old, NOW).expect("identity");
        assert_eq!(identity.user, "system:site:a");
        assert!(
            identity.in_group(EXPIRED_SITE_GROUP) && identity.in_group("system:expired-site-identity:i1")
        );
        assert!(!identity.in_group(SITES_GROUP) && !identity.in_group("system:site-identity:i1"));
        let fresh = ca.certificate_of("system:site:a", &groups, NOW - DAY, NOW + DAY);
        let identity = x509::identity_at(&fresh, NOW).expect("identity");
        assert!(identity.in_group("system:site-identity:i1") && !identity.in_group(EXPIRED_SITE_GROUP));
    }

    #[test]
    fn nobody_else_outside_their_time_is_let_in() {
        let ca = authority();
        let admin = ca.certificate("admin", "system:masters", NOW - 9 * DAY, NOW - DAY);
        assert!(ca.verdict(&admin).is_err());
        let foreign = authority().certificate("system:node:a", NODES_GROUP, NOW - 9 * DAY, NOW - DAY);
        assert!(ca.verdict(&foreign).is_err(), "of another authority");
    }
}
