//! The certificate that a port shows.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::bootstrap::endpoints::outside;
use crate::bootstrap::keys::{InTime, KeyError, Keys, PemPair, SERVING_LIFE};

type Certificate = InTime<Arc<CertifiedKey>>;

/// Shows a certificate that is in its time, whatever the clock did since the server started, and for the address that the
/// machine has now, whatever it had then.
pub struct Serving {
    keys: Keys,
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    everywhere: bool,
    /// With the machine's address that it is for, if it was known.
    current: RwLock<(Option<IpAddr>, Certificate)>,
}

impl Serving {
    /// An unspecified address stands for the one that this machine is reached at, from when it has one.
    pub fn new(keys: &Keys, names: Vec<String>, addresses: Vec<IpAddr>) -> Result<Self, KeyError> {
        let (any, addresses): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_unspecified);
        let everywhere = !any.is_empty();
        let machine = if everywhere { outside() } else { None };
        let first = certificate(keys, &names, &addresses, machine)?;
        Ok(Self { keys: keys.clone(), names, addresses, everywhere, current: RwLock::new((machine, first)) })
    }

    /// A machine that lost its network is still reached at its last address once it is back.
    fn machine_is_at(&self, machine: Option<IpAddr>) {
        if machine.is_none() || self.current.read().0 == machine {
            return;
        }
        match certificate(&self.keys, &self.names, &self.addresses, machine) {
            Ok(fresh) => *self.current.write() = (machine, fresh),
            Err(error) => tracing::warn!(%error, ?machine, "no certificate for this machine's new address"),
        }
    }
}

fn certificate(
    keys: &Keys,
    names: &[String],
    addresses: &[IpAddr],
    machine: Option<IpAddr>,
) -> Result<Certificate, KeyError> {
    let (keys, names) = (keys.clone(), names.to_vec());
    let mut addresses = [addresses, machine.as_slice()].concat();
    addresses.dedup();
    let make = move || certified(&keys.server_certificate(&names, &addresses)?);
    InTime::new(SERVING_LIFE, make)
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Serving")
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if self.everywhere {
            self.machine_is_at(outside());
        }
        Some(self.current.read().1.get())
    }
}

fn certified(pair: &PemPair) -> Result<Arc<CertifiedKey>, KeyError> {
    let damaged = |e: &dyn std::fmt::Display| KeyError::Damaged(e.to_string());
    let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| damaged(&e))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|e| damaged(&e))?;
    let provider = rustls::crypto::ring::default_provider();
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider).map_err(|e| damaged(&e))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::extensions::GeneralName;

    fn addresses(shown: &CertifiedKey) -> Vec<IpAddr> {
        let (_, parsed) = x509_parser::parse_x509_certificate(&shown.cert[0]).expect("a certificate");
        let names = parsed.subject_alternative_name().expect("readable").expect("names");
        let address = |name: &GeneralName<'_>| match name {
            GeneralName::IPAddress(bytes) => <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from),
            _ => None,
        };
        names.value.general_names.iter().filter_map(address).collect()
    }

    #[tokio::test]
    async fn a_machine_that_gets_its_network_later_is_believed_at_its_new_address() {
        let keys = Keys::open(&tombolo_store::MemoryStore::new()).await.expect("keys");
        let (loopback, later, last) =
            (IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 1, 2, 3]), IpAddr::from([10, 1, 2, 4]));
        let serving = Serving::new(&keys, vec!["box".into()], vec![loopback]).expect("made");
        let shown = || serving.current.read().1.get();
        assert_eq!(addresses(&shown()), [loopback]);
        serving.machine_is_at(Some(later));
        assert_eq!(addresses(&shown()), [loopback, later]);
        let before = shown();
        serving.machine_is_at(Some(later));
        serving.machine_is_at(None);
        assert!(Arc::ptr_eq(&before, &shown()), "nothing new, nothing made");
        serving.machine_is_at(Some(last));
        assert_eq!(addresses(&shown()), [loopback, last]);
    }
}
