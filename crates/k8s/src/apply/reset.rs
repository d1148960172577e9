//! What each endpoint cannot change, and so gives nobody ownership of.

/// Paths of field names.
pub type Paths = &'static [&'static [&'static str]];

/// A custom resource with a status subresource, written through its main endpoint.
pub const CUSTOM_MAIN: Paths = &[&["status"]];
/// A custom resource's `/status`.
pub const CUSTOM_STATUS: Paths = &[&["metadata"], &["spec"]];

const NOTHING: Paths = &[];

/// The reset fields of a built-in kind's endpoint; `subresource` is empty for the main one.
pub fn reset_fields(kind: &str, has_status: bool, subresource: &str) -> Paths {
    match (kind, subresource) {
        ("CertificateSigningRequest", "") => &[&["spec"], &["status"]],
        ("CertificateSigningRequest", "status") => &[&["spec"], &["status", "conditions"]],
        ("CertificateSigningRequest", "approval") => &[&["spec"], &["status", "certificate"]],
        ("Pod", "status") => {
            &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]]
        }
        ("Deployment", "status") => &[&["spec"], &["metadata", "labels"]],
        (
            "ServiceCIDR"
            | "ResourceClaim"
            | "VolumeAttachment"
            | "FlowSchema"
            | "PriorityLevelConfiguration"
            | "ValidatingAdmissionPolicy",
            "status",
        ) => &[&["metadata"], &["spec"]],
        (_, "status") => &[&["spec"]],
        ("Namespace", "finalize") => &[&["status"]],
        (_, "") if has_status => &[&["status"]],
        _ => NOTHING,
    }
}
