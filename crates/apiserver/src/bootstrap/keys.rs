//! The certificate authority and the service-account signing key.
//!
//! Both live in the store, under the `system` tenant that the API never shows, so that every replica over
//! one store signs with the same keys. Serving certificates are made per process and never stored.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use parking_lot::RwLock;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use tombolo_store::{Durability, Expect, Store, StoreError};

const CA_KEY: &str = "/system/keys/ca";
const TOKEN_KEY: &str = "/system/keys/service-account";
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
pub const SERVING_LIFE: Duration = Duration::from_secs(5 * 365 * 24 * 3600);
pub const CLIENT_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot make or read a key or certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("the keys in the store are damaged: {0}")]
    Damaged(String),
    #[error(transparent)]
    Store(#[from] tombolo_store::StoreError),
}

/// A certificate and its private key, PEM.
#[derive(Clone)]
pub struct PemPair {
    pub certificate: String,
    pub key: String,
}

/// What every replica shares.
#[derive(Clone)]
pub struct Keys {
    pub ca: PemPair,
    /// PKCS #8 PEM of the P-256 key that signs service-account tokens.
    pub token_key: String,
}

impl Keys {
    /// Reads the keys, or makes them on the first start. Of two replicas starting at once, one wins and the
    /// other uses the winner's.
    pub async fn open(store: &dyn Store) -> Result<Self, KeyError> {
        let ca = read_or_make(store, CA_KEY, || {
            let pair = make_ca()?;
            Ok(format!("{}{}", pair.certificate, pair.key))
        })
        .await?;
        let blocks = pem::parse_many(&ca).map_err(|e| KeyError::Damaged(e.to_string()))?;
        let block = |tag: &str| {
            blocks
                .iter()
                .find(|b| b.tag().ends_with(tag))
                .map(|b| pem::encode_config(b, pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF)))
                .ok_or_else(|| KeyError::Damaged(format!("no {tag} in {CA_KEY}")))
        };
        let ca = PemPair { certificate: block("CERTIFICATE")?, key: block("PRIVATE KEY")? };
        let token_key = read_or_make(store, TOKEN_KEY, || Ok(KeyPair::generate()?.serialize_pem())).await?;
        Ok(Self { ca, token_key })
    }

    pub fn server_certificate(&self, names: &[String], addresses: &[IpAddr]) -> Result<PemPair, KeyError> {
        let mut params = leaf("kube-apiserver", &[], SERVING_LIFE);
        // A client whose clock is behind must not refuse: small boards start in 1970.
        params.not_before = rcgen::date_time_ymd(1970, 1, 1);
        for name in names {
            params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        params.subject_alt_names.extend(addresses.iter().map(|ip| SanType::IpAddress(*ip)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    pub fn client_certificate(&self, user: &str, groups: &[&str]) -> Result<PemPair, KeyError> {
        let mut params = leaf(user, groups, CLIENT_LIFE);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Result<PemPair, KeyError> {
        let issuer = Issuer::from_ca_cert_pem(&self.ca.certificate, KeyPair::from_pem(&self.ca.key)?)?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(PemPair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

async fn read_or_make(
    store: &dyn Store,
    key: &str,
    make: impl FnOnce() -> Result<String, KeyError>,
) -> Result<String, KeyError> {
    let text = |value: Bytes| {
        String::from_utf8(value.into()).map_err(|_| KeyError::Damaged(format!("{key} is not text")))
    };
    if let Some(record) = store.get(key).await? {
        return text(record.value);
    }
    let made = make()?;
    match store.put(key, made.clone().into(), Expect::Absent, Durability::Durable).await {
        Ok(_) => Ok(made),
        Err(StoreError::Conflict { current: Some(winner), .. }) => text(winner.value),
        Err(StoreError::Conflict { .. }) => Err(KeyError::Damaged(format!("{key} disappeared"))),
        Err(e) => Err(e.into()),
    }
}

fn make_ca() -> Result<PemPair, KeyError> {
    let mut params = leaf("tombolo-ca", &[], YEAR);
    // The clock may be wrong when a site starts for the first time, and nobody could replace its CA later: it has no end
    // (this date says so, RFC 5280 4.1.2.5).
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate()?;
    Ok(PemPair { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

/// What was made from a certificate, and is made anew when the clock says that the certificate's time is over: because it
/// is, or because the clock was wrong when it was made.
pub struct InTime<T> {
    life: Duration,
    current: RwLock<(SystemTime, T)>,
    make: Box<dyn Fn() -> Result<T, KeyError> + Send + Sync>,
}

impl<T: Clone> InTime<T> {
    pub fn new(
        life: Duration,
        make: impl Fn() -> Result<T, KeyError> + Send + Sync + 'static,
    ) -> Result<Self, KeyError> {
        let first = make()?;
        Ok(Self { life, current: RwLock::new((SystemTime::now(), first)), make: Box::new(make) })
    }

    pub fn get(&self) -> T {
        let now = SystemTime::now();
        let (made, value) = self.current.read().clone();
        if !is_due(made, self.life, now) {
            return value;
        }
        match (self.make)() {
            Ok(fresh) => {
                *self.current.write() = (now, fresh.clone());
                fresh
            }
            Err(error) => {
                tracing::warn!(%error, "a certificate could not be made anew");
                value
            }
        }
    }
}

/// Past two thirds of its life, or before it began (an hour is for clocks that are set a little).
pub fn is_due(made: SystemTime, life: Duration, now: SystemTime) -> bool {
    match now.duration_since(made) {
        Ok(age) => age >= life / 3 * 2,
        Err(before) => before.duration() > Duration::from_secs(3600),
    }
}

fn leaf(common_name: &str, organizations: &[&str], lifetime: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    for organization in organizations {
        subject.push(DnType::OrganizationName, *organization);
    }
    subject.push(DnType::CommonName, common_name);
    params.distinguished_name = subject;
    // An hour of slack for machines whose clocks disagree.
    let now = SystemTime::now();
    params.not_before = (now - Duration::from_secs(3600)).into();
    params.not_after = (now + lifetime).into();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params
}

/// A kubeconfig for one user of one server.
pub fn kubeconfig(server: &str, ca: &str, user: &str, client: &PemPair) -> String {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: tombolo\nclusters:\n- name: tombolo\n  cluster:\n    \
         server: {server}\n    certificate-authority-data: {}\nusers:\n- name: {user}\n  user:\n    \
         client-certificate-data: {}\n    client-key-data: {}\ncontexts:\n- name: tombolo\n  context:\n    \
         cluster: tombolo\n    user: {user}\n",
        encode(ca),
        encode(&client.certificate),
        encode(&client.key),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_anew_late_in_its_life_or_when_the_clock_was_ahead() {
        let (made, life) = (SystemTime::UNIX_EPOCH + YEAR * 10, YEAR * 3);
        assert!(!is_due(made, life, made) && !is_due(made, life, made + YEAR));
        assert!(is_due(made, life, made + YEAR * 2), "late");
        assert!(is_due(made, life, made + YEAR * 50), "the clock was far behind when it was made");
        assert!(is_due(made, life, made - YEAR), "the clock was ahead when it was made");
        assert!(!is_due(made, life, made - Duration::from_secs(60)), "clocks are set a little all the time");
    }

    #[test]
    fn what_is_due_is_made_once() {
        let count = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counted = count.clone();
        let make = move || Ok(counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let value = InTime::new(YEAR, make).expect("made");
        assert_eq!((value.get(), value.get()), (0, 0));
        value.current.write().0 = SystemTime::now() - YEAR;
        assert_eq!((value.get(), value.get()), (1, 1));
    }
}
