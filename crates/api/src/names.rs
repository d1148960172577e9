//! Labels, annotations, finalizers, field managers, namespaces and identities.

pub const GROUP: &str = "tombolo.dev";
pub const VERSION: &str = "v1alpha1";

/// Field manager of what the hub's controllers write at the hub.
pub const HUB_MANAGER: &str = "tombolo-hub";
/// Field manager of what an agent applies at its site.
pub const SITE_MANAGER: &str = "tombolo-agent";

/// Where Tombolo keeps its own objects, at hub and site.
pub const SYSTEM_NAMESPACE: &str = "tombolo-system";
/// The hub's identity and epoch (ConfigMap in `kube-system`).
pub const HUB_CONFIG: &str = "tombolo-hub";
/// Names of sites that were removed, so that one that comes back is told so (ConfigMap in `tombolo-system`).
pub const REMOVED_SITES: &str = "removed-sites";
/// The placement used where nothing else places an object (in `tombolo-system`).
pub const DEFAULT_PLACEMENT: &str = "default";
/// The Lease of a site, in the site's namespace; its holder is the hub replica at which the tunnel ends.
pub const SITE_LEASE: &str = "tombolo-site";
/// On the Lease of a site: how many seconds before it was written the site was last heard.
pub const HEARD_ANNOTATION: &str = "tombolo.dev/heard-seconds-ago";
/// The Lease by which hub replicas agree on who leads (in `tombolo-system`).
pub const LEADER_LEASE: &str = "tombolo-fleet";

/// Path on the hub's API port that upgrades to a tunnel.
pub const TUNNEL_PATH: &str = "/tombolo/v1/tunnel";
/// Path on which a replica of the hub opens streams of the sites that are tied to it, for other replicas.
pub const FORWARD_PATH: &str = "/tombolo/v1/forward";
/// Group of the hub's own replicas.
pub const REPLICAS_GROUP: &str = "system:tombolo:replicas";
/// Where each replica of the hub is (ConfigMap in `kube-public`): sites try them all.
pub const REPLICAS: &str = "tombolo-replicas";
/// Signer of certificates for sites.
pub const SIGNER: &str = "tombolo.dev/site";
/// Group of bootstrap tokens that may ask for a site's certificate.
pub const JOIN_GROUP: &str = "system:bootstrappers:tombolo:join";
/// Path on a site's API port on which its nodes open their tunnels.
pub const NODE_TUNNEL_PATH: &str = "/tombolo/v1/node";
/// ConfigMap in `kube-public` of a real Kubernetes by which its nodes find the gateway, the way back to them.
pub const GATEWAY_CONFIG_MAP: &str = "tombolo-gateway";
/// Group of bootstrap tokens that may ask for a node's certificate.
pub const NODE_JOIN_GROUP: &str = "system:bootstrappers:tombolo:node";
/// Group of nodes whose certificate is outside its time: they may ask for a new one, and nothing else.
pub const EXPIRED_NODE_GROUP: &str = "system:bootstrappers:tombolo:expired-node";
/// Condition of a node's signing request that nobody has decided on: the name is another node's. The message says what to do.
pub const NAME_TAKEN: &str = "tombolo.dev/NameTaken";
/// Group of all sites.
pub const SITES_GROUP: &str = "system:sites";
/// Group of sites whose certificate is outside its time: they may ask for a new one, and nothing else.
pub const EXPIRED_SITE_GROUP: &str = "system:bootstrappers:tombolo:expired-site";

/// On every object an agent applied: the first characters of the hub's identity (for selection).
pub const HUB_LABEL: &str = "tombolo.dev/hub";
/// On every object and pod template an agent applied: the name of the Work (or of the first one, for shared dependencies).
pub const WORK_LABEL: &str = "tombolo.dev/work";
/// On objects at the hub: the site they came from.
pub const SITE_LABEL: &str = "tombolo.dev/site";
/// On mirrored pods at the hub.
pub const MIRROR_LABEL: &str = "tombolo.dev/mirror";
/// On every object an agent applied: JSON list of the Works that want it (see `Owner`).
pub const OWNERS_ANNOTATION: &str = "tombolo.dev/owners";
/// On an object at a site that was there before a hub took it over: it is let go, never deleted.
pub const ADOPTED_ANNOTATION: &str = "tombolo.dev/adopted";
/// On mirrored pods: the pod's own name at its site.
pub const POD_ANNOTATION: &str = "tombolo.dev/pod";
/// On stale objects: since when nothing was heard (RFC 3339).
pub const STALE_ANNOTATION: &str = "tombolo.dev/stale-since";
/// On an object at the hub: name of the Placement to use, or `none` to place it nowhere.
pub const PLACEMENT_ANNOTATION: &str = "tombolo.dev/placement";
/// On an object at the hub that was imported from a site: take over what exists there.
pub const ADOPT_ANNOTATION: &str = "tombolo.dev/adopt";
/// On an object at the hub: deletion at the hub leaves the objects at the sites, no longer managed.
pub const GIVE_BACK_ANNOTATION: &str = "tombolo.dev/give-back";
/// On an object at the hub: sites that get no more of it for now because they could not schedule it, with commas between.
pub const SHUNNED_ANNOTATION: &str = "tombolo.dev/shunned-sites";
/// On a CertificateSigningRequest: the `SiteSpec` asked for (JSON).
pub const SITE_SPEC_ANNOTATION: &str = "tombolo.dev/site-spec";
/// On a CertificateSigningRequest: labels asked for the Site (JSON).
pub const SITE_LABELS_ANNOTATION: &str = "tombolo.dev/site-labels";
/// On a Site: the identity its certificates must carry; changing it revokes all of them.
pub const IDENTITY_ANNOTATION: &str = "tombolo.dev/identity";
/// On a pod (template): the longest the pod may run without a renewed lease, in seconds.
pub const AT_MOST_ONCE_ANNOTATION: &str = "tombolo.dev/at-most-once-seconds";
/// On the Lease `hub-<label>` at a site: when the renewal was sent (see `RenewalSent`).
pub const RENEWAL_ANNOTATION: &str = "tombolo.dev/renewal-sent";
/// On the same Lease: names of the Works that it was renewed for. What no Work of the hub speaks of is not among them, and
/// stops. Absent, it counts for all (agents of before 0.1).
pub const RENEWED_FOR_ANNOTATION: &str = "tombolo.dev/renewed-for";
/// On a Site: `keep` leaves workloads at the site when the Site is removed.
pub const ON_REMOVE_ANNOTATION: &str = "tombolo.dev/on-remove";

/// On a Site: its certificates were revoked, and it may join again with a new token (RFC 3339).
pub const REVOKED_ANNOTATION: &str = "tombolo.dev/revoked";
/// On a Site: an object there that the hub shall take in, as `apiVersion|kind|namespace|name`.
pub const IMPORT_ANNOTATION: &str = "tombolo.dev/import";
/// On a Site: what became of the last import, as `object|what was wrong` (nothing after the bar: all went well).
pub const IMPORTED_ANNOTATION: &str = "tombolo.dev/imported";
/// On a Work of a site that was lost: its replicas were placed elsewhere (RFC 3339). The site is not told, so that it may
/// keep what it still runs if it is wanted there when it comes back.
pub const LEFT_ANNOTATION: &str = "tombolo.dev/left";

pub const SITE_FINALIZER: &str = "tombolo.dev/site";

pub fn site_namespace(site: &str) -> String {
    format!("site-{site}")
}

/// The site a namespace belongs to, if it is a site's namespace.
pub fn site_of_namespace(namespace: &str) -> Option<&str> {
    namespace.strip_prefix("site-")
}

pub fn site_user(site: &str) -> String {
    format!("system:site:{site}")
}

/// The site a user name stands for.
pub fn site_of_user(user: &str) -> Option<&str> {
    user.strip_prefix("system:site:").filter(|name| !name.is_empty())
}

/// Group that only certificates of one registration of a site carry: a removed or revoked site's certificate has
/// another one, also when a new site takes the name.
pub fn identity_group(identity: &str) -> String {
    format!("system:site-identity:{identity}")
}

/// The same of a certificate that is outside its time. No rights are bound to it.
pub fn expired_identity_group(identity: &str) -> String {
    format!("system:expired-site-identity:{identity}")
}

/// Label value for a hub identity.
pub fn hub_label(hub: &str) -> String {
    hub.chars().filter(|c| c.is_ascii_alphanumeric()).take(16).collect()
}

/// Whether `name` can name a site: it becomes part of a namespace, a node name and a pod name.
pub fn valid_site_name(name: &str) -> bool {
    let ok = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= 40
        && name.chars().all(ok)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Revisions that a restored store skips at least: more than can have happened since the backup, so that no client takes a new
/// revision for one that it saw before, and agents see that the hub was restored.
pub const RESTORED_SKIP: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_name_is_a_short_dns_label() {
        assert!(valid_site_name("harbour-3"));
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", &"x".repeat(41)] {
            assert!(!valid_site_name(bad), "{bad} was taken");
        }
    }

    #[test]
    fn names_of_sites_go_there_and_back() {
        assert_eq!(site_of_namespace(&site_namespace("a")), Some("a"));
        assert_eq!(site_of_user(&site_user("a")), Some("a"));
        assert_eq!(site_of_user("system:site:"), None);
    }
}
