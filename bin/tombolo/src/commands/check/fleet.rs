//! The hub's fleet: silent sites, waiting requests, certificates that end, objects that are nowhere.

use std::collections::BTreeMap;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use tombolo_api::{Site, Work, names};

use super::cluster::{SOON_DAYS, days_left, some};
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
    let open = |csr: &&CertificateSigningRequest| {
        csr.status.as_ref().is_none_or(|s| s.conditions.as_ref().is_none_or(Vec::is_empty))
    };
    let open: Vec<_> = requests.iter().filter(open).filter_map(|csr| csr.metadata.name.clone()).collect();
    let mend = "`tombolo sites approve NAME` lets a site in";
    (!open.is_empty())
        .then(|| Finding::warning(Area::Fleet, "join requests", format!("waiting: {}", some(&open)), mend))
}

/// The newest certificate that each site was given; agents renew after two thirds of its time.
fn certificates(requests: &[CertificateSigningRequest], sites: &[Site], now: Timestamp) -> Option<Finding> {
    let mut newest: BTreeMap<String, i64> = BTreeMap::new();
    for csr in requests {
        let user = csr.spec.username.clone().unwrap_or_default();
        let text = format!("{user} {}", csr.metadata.name.as_deref().unwrap_or_default());
        let Some(site) = sites.iter().map(name_of).find(|site| text.contains(site.as_str())) else {
            continue;
        };
        let pem = csr.status.as_ref().and_then(|s| s.certificate.as_ref());
        if let Some(days) = pem.and_then(|pem| days_left(&pem.0, now)) {
            let known = newest.entry(site).or_insert(days);
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
