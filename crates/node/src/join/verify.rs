//! Checking the cluster's certificate on a machine whose clock may be wrong.
//!
//! Small boards start in 1970, or years ahead, and only a network makes them right: a node that then refuses its own site
//! never comes back. So the CA's signature and the name always count, and so does time; but where the machine's clock
//! rejects a certificate, the last time that is known to have been true decides instead. It is the newest of what the site
//! wrote into our certificates, so an attacker who can set our clock gains nothing but the use of a certificate of the
//! site's that had not run out then.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// The newest moment that is certain to have passed; survives restarts.
#[derive(Clone, Debug)]
pub(super) struct KnownTime {
    second: Arc<AtomicI64>,
    file: PathBuf,
}

impl KnownTime {
    pub fn open(dir: &Path) -> Self {
        let file = dir.join("known-time");
        let second = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
        Self { second: Arc::new(AtomicI64::new(second.unwrap_or(0))), file }
    }

    /// Only forward.
    pub fn learn(&self, second: i64) {
        if self.second.fetch_max(second, Ordering::Relaxed) < second {
            // Losing it costs only what the certificate says again at the next start.
            let _ = std::fs::write(&self.file, second.to_string());
        }
    }

    fn get(&self) -> UnixTime {
        let second = self.second.load(Ordering::Relaxed).max(0).unsigned_abs();
        UnixTime::since_unix_epoch(Duration::from_secs(second))
    }
}

#[derive(Debug)]
pub(super) struct Tolerant {
    strict: Arc<WebPkiServerVerifier>,
    known: KnownTime,
}

impl Tolerant {
    pub fn new(ca: &str, known: KnownTime, provider: Arc<CryptoProvider>) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(certificate.map_err(|e| Error::General(e.to_string()))?)?;
        }
        let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| Error::General(e.to_string()))?;
        Ok(Self { strict, known })
    }
}

/// Refusals that only time can explain.
fn is_about_time(error: &Error) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(
        error,
        Error::InvalidCertificate(Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
    )
}

impl ServerCertVerifier for Tolerant {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = self.strict.verify_server_cert(leaf, chain, name, ocsp, now);
        match verdict {
            Err(error) if is_about_time(&error) => {
                self.strict.verify_server_cert(leaf, chain, name, ocsp, self.known.get()).map_err(|_| error)
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.strict.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.strict.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    const YEAR: i64 = 365 * 24 * 3600;
    const NOW: i64 = 1_800_000_000;

    fn at(second: i64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(second.unsigned_abs()))
    }

    /// A CA, and a server's certificate of it that is valid for a year around `NOW`.
    fn certificates() -> (String, CertificateDer<'static>) {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let valid = |params: &mut CertificateParams, years: i64| {
            params.not_before = epoch + Duration::from_secs((NOW - years * YEAR).unsigned_abs());
            params.not_after = epoch + Duration::from_secs((NOW + years * YEAR).unsigned_abs());
        };
        let key = KeyPair::generate().expect("key");
        let mut ca = CertificateParams::new(Vec::new()).expect("params");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        valid(&mut ca, 20);
        let authority = ca.self_signed(&key).expect("signed");
        let issuer = Issuer::from_ca_cert_pem(&authority.pem(), key).expect("issuer");
        let mut leaf = CertificateParams::new(vec!["site.example".to_owned()]).expect("params");
        valid(&mut leaf, 1);
        let leaf = leaf.signed_by(&KeyPair::generate().expect("key"), &issuer).expect("signed");
        (authority.pem(), leaf.der().clone())
    }

    fn verdict(known: i64, clock: i64, name: &str) -> Result<ServerCertVerified, Error> {
        let (ca, leaf) = certificates();
        let dir = tempfile::tempdir().expect("folder");
        let time = KnownTime::open(dir.path());
        time.learn(known);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Tolerant::new(&ca, time, provider).expect("verifier");
        let name = ServerName::try_from(name.to_owned()).expect("name");
        verifier.verify_server_cert(&leaf, &[], &name, &[], at(clock))
    }

    #[test]
    fn a_wrong_clock_does_not_lock_a_node_out() {
        verdict(NOW, NOW, "site.example").expect("a right clock");
        verdict(NOW, 0, "site.example").expect("a board that woke up in 1970");
        verdict(NOW, NOW + 30 * YEAR, "site.example").expect("a clock that is years ahead");
    }

    #[test]
    fn a_certificate_that_had_run_out_by_the_last_known_time_stays_refused() {
        assert!(verdict(NOW + 2 * YEAR, NOW + 3 * YEAR, "site.example").is_err());
        assert!(verdict(NOW, NOW, "other.example").is_err(), "the name always counts");
        assert!(verdict(NOW, 0, "other.example").is_err(), "the name always counts");
    }

    #[test]
    fn known_time_goes_forward_only_and_survives() {
        let dir = tempfile::tempdir().expect("folder");
        KnownTime::open(dir.path()).learn(20);
        let again = KnownTime::open(dir.path());
        again.learn(10);
        assert_eq!(again.get(), at(20));
    }
}
