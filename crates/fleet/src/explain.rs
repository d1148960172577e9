//! `tombolo explain place`: the decision about one object, made again from what the API says now, with every site's reason.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error, ResourceExt};
use tombolo_api::{Placement, Site, SiteGroup, Work, names};

use crate::choose::{Choice, choose};
use crate::clock::Moment;
use crate::decide::decide;
use crate::index::Index;
use crate::object::Key;
use crate::watches::as_json;

/// The table for people, or why the object is not placed.
pub async fn explain(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: &str,
    name: &str,
    lease_seconds: i64,
) -> Result<String, Error> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    };
    let root = as_json(api.get(name).await?, api_version, kind);
    let key = Key::new(api_version, kind, namespace, name);
    let all = ListParams::default();
    let leases = all.clone().fields(&format!("metadata.name={}", names::SITE_LEASE));
    let leases = Api::<Lease>::all(client.clone()).list(&leases).await?.items;
    let agreed = leases.iter().filter_map(|l| l.spec.as_ref()?.lease_duration_seconds).max();
    // Made from what the API says: here the clock of whoever asks is all there is, and a site that is ready is not silent.
    let wall = jiff::Timestamp::now().as_second();
    let now = Moment { steady: wall, wall };
    let mut index =
        Index::new(Default::default(), false, Moment::default(), agreed.map_or(lease_seconds, i64::from));
    for group in Api::<SiteGroup>::all(client.clone()).list(&all).await? {
        index.put_group(group);
    }
    for site in Api::<Site>::all(client.clone()).list(&all).await? {
        // One that was never heard is silent since it was made.
        let made = site.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        index.put_site(site, Moment { steady: made, wall: made });
    }
    for placement in Api::<Placement>::all(client.clone()).list(&all).await? {
        index.put_placement(placement);
    }
    for work in Api::<Work>::all(client.clone()).list(&all).await? {
        index.put_work(work);
    }
    for lease in leases {
        if let Some(site) = lease.namespace().as_deref().and_then(names::site_of_namespace) {
            let ready = index.sites.get(site).is_some_and(|state| state.site.is_ready());
            let renewed = lease.spec.and_then(|s| s.renew_time).map_or(0, |t| t.0.as_second());
            index.heard(site, if ready { 0 } else { wall - renewed }, now);
        }
    }
    index.put_object(key.clone(), Arc::new(root.clone()));
    Ok(match choose(&key, &root, &index.placements) {
        Choice::Nowhere => format!("{key} is not placed: nothing selects it, or it says so itself\n"),
        Choice::Unplaced(why) => format!("{key} is not placed: {why}\n"),
        Choice::By(placement) => {
            let placement = placement.clone();
            let by = format!(
                "placed by Placement {}/{}\n\n",
                placement.namespace().unwrap_or_default(),
                placement.name_any()
            );
            by + &decide(&index, &key, &root, &placement, now.steady).table
        }
    })
}
