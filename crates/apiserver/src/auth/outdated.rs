//! Client certificates, and the one leniency with them: a node's that is outside its time.
//!
//! A node that slept past the end of its certificate, or whose site had a wrong clock when it signed, still holds a key that
//! only it has. It is let in to ask for a new certificate and for nothing else: [`super::x509`] gives it no node's
//! group but [`EXPIRED_NODE_GROUP`], and whether the node still exists is asked before anything is signed. Certificates of
//! people and programs outside their time are refused, as always.

use std::sync::Arc;
use std::time::Duration;

use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Who proved to hold the key of a node's certificate that is outside its time.
pub const EXPIRED_NODE_GROUP: &str = "system:bootstrappers:tombolo:expired-node";

const NODES_GROUP: &str = "system:nodes";

/// When a node's certificate began and ends, seconds since 1970; `None` for anybody else's.
pub(super) fn node_validity(certificate: &X509Certificate) -> Option<(i64, i64)> {
    let mut organizations = certificate.subject().iter_organization();
    organizations.any(|o| o.as_str() == Ok(NODES_GROUP)).then(|| {
        (certificate.validity().not_before.timestamp(), certificate.validity().not_after.timestamp())
    })
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
        let begin = X509Certificate::from_der(leaf).ok().and_then(|(_, c)| node_validity(&c)).map(|v| v.0);
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
            let mut params = CertificateParams::new(Vec::new()).expect("params");
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, group);
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
    fn nobody_else_outside_their_time_is_let_in() {
        let ca = authority();
        let admin = ca.certificate("admin", "system:masters", NOW - 9 * DAY, NOW - DAY);
        assert!(ca.verdict(&admin).is_err());
        let foreign = authority().certificate("system:node:a", NODES_GROUP, NOW - 9 * DAY, NOW - DAY);
        assert!(ca.verdict(&foreign).is_err(), "of another authority");
    }
}
