//! What each signer accepts, and the signature itself.

use crate::run::Ca;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use rcgen::{
    CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose as Extended, IsCa, Issuer, KeyPair,
    KeyUsagePurpose as Usage, SanType, SerialNumber,
};
use std::{collections::BTreeSet, time::Duration};

const YEAR: i64 = 365 * 24 * 3600;
/// Clocks differ: a certificate is valid a little before it was made.
const BACKDATE: i64 = 300;

#[derive(Debug, thiserror::Error)]
pub enum SignError {
    #[error("the request cannot be read: {0}")]
    Unreadable(String),
    #[error("{0}")]
    NotAllowed(String),
    #[error("signing failed: {0}")]
    Signature(#[from] rcgen::Error),
}

/// The signers that we are. Certificates of sites are the fleet's: it puts the site's identity into them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignerName {
    Client,
    KubeletClient,
    KubeletServing,
    Legacy,
}

impl SignerName {
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "kubernetes.io/kube-apiserver-client" => Some(Self::Client),
            "kubernetes.io/kube-apiserver-client-kubelet" => Some(Self::KubeletClient),
            "kubernetes.io/kubelet-serving" => Some(Self::KubeletServing),
            "kubernetes.io/legacy-unknown" => Some(Self::Legacy),
            _ => None,
        }
    }
}

/// The subject and names of a request.
#[derive(Debug, Default)]
pub struct Subject {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub addresses: Vec<std::net::IpAddr>,
    pub other_names: usize,
}

pub(crate) fn parse(
    request: &CertificateSigningRequest,
) -> Result<CertificateSigningRequestParams, SignError> {
    let text = String::from_utf8_lossy(&request.spec.request.0).into_owned();
    CertificateSigningRequestParams::from_pem(&text).map_err(|error| SignError::Unreadable(error.to_string()))
}

pub(crate) fn subject(request: &CertificateSigningRequest) -> Result<Subject, SignError> {
    use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer};
    let block =
        pem::parse(&request.spec.request.0).map_err(|error| SignError::Unreadable(error.to_string()))?;
    let (_, parsed) = X509CertificationRequest::from_der(block.contents())
        .map_err(|error| SignError::Unreadable(error.to_string()))?;
    let mut subject = Subject::default();
    let name = &parsed.certification_request_info.subject;
    // rcgen keeps one value per attribute; several organizations matter for groups, so they are read here.
    for value in name.iter_common_name() {
        subject.common_name = value.as_str().unwrap_or_default().to_owned();
    }
    subject.organizations =
        name.iter_organization().map(|value| value.as_str().unwrap_or_default().to_owned()).collect();
    for san in parse(request)?.params.subject_alt_names {
        match san {
            SanType::DnsName(dns) => subject.dns_names.push(dns.to_string()),
            SanType::IpAddress(address) => subject.addresses.push(address),
            _ => subject.other_names += 1,
        }
    }
    Ok(subject)
}

/// Whether the signer may sign this request at all.
pub fn check(request: &CertificateSigningRequest, signer: SignerName) -> Result<(), SignError> {
    let subject = subject(request)?;
    let usages: BTreeSet<&str> = request.spec.usages.iter().flatten().map(String::as_str).collect();
    let refuse = |text: &str| Err(SignError::NotAllowed(text.to_owned()));
    let client = BTreeSet::from(["digital signature", "key encipherment", "client auth"]);
    let server = BTreeSet::from(["digital signature", "key encipherment", "server auth"]);
    let only = |allowed: &BTreeSet<&str>, needed: &str| usages.is_subset(allowed) && usages.contains(needed);
    let no_names = subject.dns_names.is_empty() && subject.addresses.is_empty() && subject.other_names == 0;
    let node = subject.organizations == ["system:nodes"] && subject.common_name.starts_with("system:node:");
    match signer {
        SignerName::Client => {
            if subject.organizations.iter().any(|group| group == "system:masters") {
                return refuse("system:masters cannot be asked for: anyone in it may do anything");
            }
            if !only(&client, "client auth") {
                return refuse(
                    "usages must be client auth, with digital signature and key encipherment at most",
                );
            }
        }
        SignerName::KubeletClient | SignerName::KubeletServing if !node => {
            return refuse("the subject must be CN=system:node:NAME, O=system:nodes");
        }
        SignerName::KubeletClient => {
            if !no_names {
                return refuse("a node's client certificate has no alternative names");
            }
            if !only(&client, "client auth") || !usages.contains("digital signature") {
                return refuse("usages must be digital signature and client auth");
            }
        }
        SignerName::KubeletServing => {
            if subject.other_names > 0 || (subject.dns_names.is_empty() && subject.addresses.is_empty()) {
                return refuse("a node's serving certificate needs DNS names or addresses, and nothing else");
            }
            if !only(&server, "server auth") || !usages.contains("digital signature") {
                return refuse("usages must be digital signature and server auth");
            }
        }
        SignerName::Legacy => {}
    }
    Ok(())
}

/// Signs the request as it is; whether it may be is [`check`]'s question.
pub fn sign(
    request: &CertificateSigningRequest,
    ca: &Ca,
    serial: [u8; 16],
    now: Timestamp,
) -> Result<String, SignError> {
    let mut parsed = parse(request)?;
    let issuer = Issuer::from_ca_cert_pem(&ca.cert_pem, KeyPair::from_pem(&ca.key_pem)?)?;
    let wanted = request.spec.expiration_seconds.map_or(YEAR, i64::from).clamp(600, YEAR);
    let subject = subject(request)?;
    if subject.organizations.len() > 1 {
        return Err(SignError::NotAllowed(
            "only one organization (group) per certificate is supported".into(),
        ));
    }
    let params = &mut parsed.params;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |second: i64| epoch + Duration::from_secs(second.max(0).unsigned_abs());
    params.not_before = at(now.as_second() - BACKDATE);
    params.not_after = at((now.as_second() + wanted).min(expiry(&ca.cert_pem).unwrap_or(i64::MAX)));
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = Vec::new();
    params.extended_key_usages = Vec::new();
    for usage in request.spec.usages.iter().flatten() {
        match usage.as_str() {
            "signing" | "digital signature" => params.key_usages.push(Usage::DigitalSignature),
            "content commitment" => params.key_usages.push(Usage::ContentCommitment),
            "key encipherment" => params.key_usages.push(Usage::KeyEncipherment),
            "key agreement" => params.key_usages.push(Usage::KeyAgreement),
            "data encipherment" => params.key_usages.push(Usage::DataEncipherment),
            "client auth" => params.extended_key_usages.push(Extended::ClientAuth),
            "server auth" => params.extended_key_usages.push(Extended::ServerAuth),
            "code signing" => params.extended_key_usages.push(Extended::CodeSigning),
            "email protection" => params.extended_key_usages.push(Extended::EmailProtection),
            "timestamping" => params.extended_key_usages.push(Extended::TimeStamping),
            "ocsp signing" => params.extended_key_usages.push(Extended::OcspSigning),
            other => return Err(SignError::NotAllowed(format!("usage {other:?} is not signed for"))),
        }
    }
    debug_assert!(
        params.distinguished_name.get(&DnType::CommonName).is_some() || subject.common_name.is_empty()
    );
    Ok(parsed.signed_by(&issuer)?.pem())
}

/// When the authority itself ends: nothing it signs may live longer.
fn expiry(cert_pem: &str) -> Option<i64> {
    let block = pem::parse(cert_pem).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(block.contents()).ok()?;
    Some(certificate.validity().not_after.timestamp())
}
