//! The hub's fleet: silent sites, waiting requests, certificates that end, objects that are nowhere.

use std::collections::BTreeMap;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use tombolo_api::{Site, Work, names};
use tombolo_fleet::register::{Policy, policy};

use super::cluster::{SOON_DAYS, common_name, days_left, some};
use super::{Area, Finding};
use crate::client::Connected;

const PLACED_KINDS: &[(&str, &str, &str)] = &[
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "StatefulSet"),
    ("apps", "v1", "DaemonSet"),
    ("batch", "v1", "Job"),
];

/// `asked`: somebody wants to know about a fleet, so that there is none is worth a word.
pub async fn look(hub: &Connected, asked: bool) -> Vec<Finding> {
    let sites = match Api::<Site>::all(hub.client.clone()).list(&ListParams::default()).await {
        Ok(list) => list.items,
        Err(kube::Error::Api(status)) if status.code == 404 && !asked => return Vec::new(),
        Err(error) => {
            let mend = "use the kubeconfig of a hub";
            let found = crate::fault::words(&error.into());
            return vec![Finding::wrong(Area::Fleet, "sites", found, mend)];
        }
    };
    let mut findings = vec![silent(&sites)];
    findings.extend(orphans(&sites));
    let requests =
        Api::<CertificateSigningRequest>::all(hub.client.clone()).list(&ListParams::default()).await;
    let requests: Vec<_> = requests.map(|list| list.items).unwrap_or_default();
    let requests: Vec<_> = requests.into_iter().filter(|csr| csr.spec.signer_name == names::SIGNER).collect();
    findings.extend(waiting(&requests));
    findings.extend(certificates(&requests, &sites, Timestamp::now()));
    findings.push(unplaced(hub).await);
    findings.extend(works(hub).await);
    findings
}

fn name_of(site: &Site) -> String {
    site.metadata.name.clone().unwrap_or_default()
}

fn silent(sites: &[Site]) -> Finding {
    let bad: Vec<_> = sites
        .iter()
        .filter(|site| !site.is_ready())
        .map(|site| {
            let heard = site.status.as_ref().and_then(|s| s.last_heard.clone());
            format!("{} (last heard {})", name_of(site), heard.unwrap_or_else(|| "never".into()))
        })
        .collect();
    if sites.is_empty() {
        let mend = "`tombolo token create` prints the line that ties a site";
        return Finding::warning(Area::Fleet, "sites", "none", mend);
    }
    if bad.is_empty() {
        return Finding::ok(Area::Fleet, "sites", format!("{} heard", sites.len()));
    }
    let mend = "is the site up, and can it reach this hub? Its own log tells; `tombolo sites remove NAME` for one that is gone";
    Finding::wrong(Area::Fleet, "sites", format!("silent: {}", some(&bad)), mend)
}

fn orphans(sites: &[Site]) -> Option<Finding> {
    let having: Vec<_> = sites
        .iter()
        .filter(|site| site.status.as_ref().is_some_and(|s| !s.orphans.is_empty()))
        .map(name_of)
        .collect();
    let mend = "kubectl get site NAME -o jsonpath='{.status.orphans}' lists them; delete them at the site, or apply them here again";
    (!having.is_empty()).then(|| {
        Finding::warning(
            Area::Fleet,
            "orphans",
            format!("objects this hub has forgotten, at {}", some(&having)),
            mend,
        )
    })
}

fn waiting(requests: &[CertificateSigningRequest]) -> Option<Finding> {
    let is_open = |csr: &&CertificateSigningRequest| {
        csr.status.as_ref().is_none_or(|s| s.conditions.as_ref().is_none_or(Vec::is_empty))
    };
    // By the names that `sites approve` takes.
    let site = |csr: &CertificateSigningRequest| match policy(csr) {
        Policy::Join { site, .. } => Some(site),
        _ => None,
    };
    let open: Vec<_> = requests.iter().filter(is_open).filter_map(site).collect();
    let mend = "`tombolo sites approve NAME` lets a site in";
    (!open.is_empty())
        .then(|| Finding::warning(Area::Fleet, "join requests", format!("waiting: {}", some(&open)), mend))
}

/// The newest certificate that each site was given; agents renew after two thirds of its time.
fn certificates(requests: &[CertificateSigningRequest], sites: &[Site], now: Timestamp) -> Option<Finding> {
    let mut newest: BTreeMap<String, i64> = BTreeMap::new();
    for pem in requests.iter().filter_map(|csr| csr.status.as_ref()?.certificate.as_ref()) {
        // A certificate says itself whose it is; names of requests only begin like a site's.
        let user = common_name(&pem.0).unwrap_or_default();
        let Some(site) = names::site_of_user(&user).filter(|site| sites.iter().any(|s| name_of(s) == *site))
        else {
            continue;
        };
        if let Some(days) = days_left(&pem.0, now) {
            let known = newest.entry(site.to_owned()).or_insert(days);
            *known = days.max(*known);
        }
    }
    let bad: Vec<_> = newest
        .iter()
        .filter(|(_, days)| **days < SOON_DAYS)
        .map(|(site, days)| format!("{site} in {days} days"))
        .collect();
    let mend = "they renew by themselves while they reach the hub; one that is over must join again: `tombolo sites remove NAME --keep`, then `tombolo token create`";
    if bad.is_empty() {
        return (!newest.is_empty()).then(|| Finding::ok(Area::Fleet, "certificates", "none ends soon"));
    }
    Some(Finding::warning(Area::Fleet, "certificates", format!("ending: {}", some(&bad)), mend))
}

async fn unplaced(hub: &Connected) -> Finding {
    let mut bad = Vec::new();
    for (group, version, kind) in PLACED_KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(hub.client.clone(), &resource);
        for object in api.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default() {
            let conditions = object.data.pointer("/status/conditions").and_then(|c| c.as_array().cloned());
            let placed = conditions.into_iter().flatten().find(|c| c["type"] == "Placed");
            if placed.is_some_and(|condition| condition["status"] == "False") {
                let part = |text: &Option<String>| text.clone().unwrap_or_default();
                let (namespace, name) = (part(&object.metadata.namespace), part(&object.metadata.name));
                bad.push(format!("{}/{name} in {namespace}", kind.to_lowercase()));
            }
        }
    }
    if bad.is_empty() {
        return Finding::ok(Area::Fleet, "placements", "everything has a place");
    }
    let mend = "`tombolo explain place KIND/NAME -n NAMESPACE` says for every site why not";
    Finding::wrong(Area::Fleet, "placements", format!("without a place: {}", some(&bad)), mend)
}

async fn works(hub: &Connected) -> Vec<Finding> {
    let Ok(list) = Api::<Work>::all(hub.client.clone()).list(&ListParams::default()).await else {
        return Vec::new();
    };
    let name = |work: &Work| {
        let site = work.metadata.namespace.as_deref().and_then(names::site_of_namespace).unwrap_or("-");
        format!("{}/{} at {site}", work.spec.root.kind.to_lowercase(), work.spec.root.name)
    };
    let refused: Vec<_> = list
        .items
        .iter()
        .filter(|work| work.condition("Applied").is_some_and(|c| c.status == "False"))
        .map(name)
        .collect();
    let drifted: Vec<_> = list
        .items
        .iter()
        .filter(|w| w.status.as_ref().is_some_and(|s| !s.drift.is_empty()))
        .map(name)
        .collect();
    let mut findings = vec![if refused.is_empty() {
        Finding::ok(Area::Fleet, "works", format!("{}, none refused", list.items.len()))
    } else {
        let mend = "`tombolo place -o wide` shows what the site said";
        Finding::wrong(Area::Fleet, "works", format!("refused: {}", some(&refused)), mend)
    }];
    if !drifted.is_empty() {
        let mend = "somebody at the site changed it; `drift: force` in the Placement takes such fields back";
        findings.push(Finding::warning(Area::Fleet, "drift", some(&drifted), mend));
    }
    findings
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};
    use serde_json::{Value, json};

    use super::super::State;
    use super::*;

    fn site(name: &str, ready: bool, more: Value) -> Site {
        let mut status = json!({
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }, "reason": "x",
                "message": "", "lastTransitionTime": "2026-11-16T00:00:00Z"}],
            "lastHeard": "2026-11-15T22:42:17Z",
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            status[key] = value.clone();
        }
        let site = json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Site", "metadata": {"name": name},
            "spec": {"tier": "edge"}, "status": status});
        serde_json::from_value(site).expect("a site")
    }

    fn named(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, names::site_user(name));
        params
    }

    /// What a site asks with, and what it was given: a certificate that ends on that day.
    fn request(name: &str, ends: Option<(i32, u8, u8)>, user: &str) -> CertificateSigningRequest {
        let key = KeyPair::generate().expect("a key");
        let asked = named(name).serialize_request(&key).expect("a request").pem().expect("PEM");
        let encoded = |text: &str| json!(k8s_openapi::ByteString(text.as_bytes().to_vec()));
        let status = ends.map_or(json!({}), |(year, month, day)| {
            let mut params = named(name);
            params.not_after = rcgen::date_time_ymd(year, month, day);
            let given = params.self_signed(&key).expect("a certificate").pem();
            json!({"certificate": encoded(&given),
                "conditions": [{"type": "Approved", "status": "True"}]})
        });
        let csr = json!({
            "metadata": {"name": format!("site-{name}-0123abcd")},
            "spec": {"signerName": names::SIGNER, "request": encoded(&asked), "username": user,
                "groups": [names::JOIN_GROUP], "usages": ["client auth"]},
            "status": status,
        });
        serde_json::from_value(csr).expect("a request")
    }

    fn now() -> Timestamp {
        "2026-11-16T00:00:00Z".parse().expect("a time")
    }

    #[test]
    fn silent_sites_are_named_with_when_they_were_heard() {
        let sites = [site("edge-1", false, json!({})), site("cloud", true, json!({}))];
        let finding = silent(&sites);
        assert_eq!(finding.state, State::Wrong);
        assert_eq!(finding.found, "silent: edge-1 (last heard 2026-11-15T22:42:17Z)");
        assert!(finding.mend.contains("tombolo sites remove"), "{}", finding.mend);
        assert_eq!(silent(&sites[1..]).found, "1 heard");
        let none = silent(&[]);
        assert!(none.state == State::Warning && none.mend.contains("tombolo token create"), "{none:?}");
    }

    #[test]
    fn objects_that_the_hub_forgot_are_told_with_their_site() {
        let orphan = json!({"orphans": ["apps/v1 Deployment default/web"]});
        let finding = orphans(&[site("edge-1", true, orphan), site("cloud", true, json!({}))]).expect("one");
        assert!(finding.state == State::Warning && finding.found.ends_with("at edge-1"), "{finding:?}");
        assert!(finding.mend.contains("kubectl get site"), "{}", finding.mend);
        assert!(orphans(&[site("cloud", true, json!({}))]).is_none());
    }

    #[test]
    fn who_waits_is_named_as_sites_approve_takes_it() {
        let asks = request("edge-10", None, "system:bootstrap:abcdef");
        let has = request("edge-1", Some((2027, 1, 1)), "system:bootstrap:abcdef");
        let finding = waiting(&[asks, has.clone()]).expect("one waits");
        assert_eq!((finding.state, finding.found.as_str()), (State::Warning, "waiting: edge-10"));
        assert!(finding.mend.contains("tombolo sites approve"), "{}", finding.mend);
        assert!(waiting(&[has]).is_none());
    }

    #[test]
    fn a_certificate_counts_for_its_own_site_and_no_other() {
        let sites = [site("edge-1", true, json!({})), site("edge-10", true, json!({}))];
        // The one of edge-10 is fresh; that does not help edge-1, whose name it begins with.
        let old = request("edge-1", Some((2026, 11, 18)), "system:bootstrap:abcdef");
        let fresh = request("edge-10", Some((2027, 1, 1)), "system:site:edge-10");
        let finding = certificates(&[old, fresh.clone()], &sites, now()).expect("a finding");
        assert_eq!((finding.state, finding.found.as_str()), (State::Warning, "ending: edge-1 in 2 days"));
        assert!(finding.mend.contains("tombolo token create"), "{}", finding.mend);
        // A newer one takes the place of the old one, and one of a site that is gone is nobody's.
        let renewed = request("edge-1", Some((2026, 12, 18)), "system:site:edge-1");
        let gone = request("edge-7", Some((2026, 11, 17)), "system:site:edge-7");
        let finding = certificates(&[renewed, fresh, gone], &sites, now()).expect("a finding");
        assert_eq!((finding.state, finding.found.as_str()), (State::Ok, "none ends soon"));
        assert!(certificates(&[], &sites, now()).is_none());
    }
}
