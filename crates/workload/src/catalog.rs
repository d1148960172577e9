//! What the server serves, custom resources included: the kinds that garbage collection and namespace deletion cover.

use crate::shell::Resource;
use kube::{
    Client,
    core::discovery::verbs,
    discovery::{Discovery, Scope},
};
use std::borrow::Cow;

/// A served kind and what may be done with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Served {
    pub resource: Resource,
    pub namespaced: bool,
    pub list: bool,
    pub watch: bool,
    pub delete: bool,
    pub delete_collection: bool,
}

/// Asks the server for every kind in its preferred version.
pub async fn discover(client: &Client) -> kube::Result<Vec<Served>> {
    let discovery = match Discovery::new(client.clone()).run_aggregated().await {
        Ok(discovery) => discovery,
        // An older server, or one that serves only the plain form.
        Err(_) => Discovery::new(client.clone()).run().await?,
    };
    let mut all: Vec<Served> = discovery
        .groups()
        .flat_map(|group| group.recommended_resources())
        .map(|(api, capabilities)| Served {
            resource: Resource {
                group: Cow::Owned(api.group),
                version: Cow::Owned(api.version),
                kind: Cow::Owned(api.kind),
                plural: Cow::Owned(api.plural),
            },
            namespaced: capabilities.scope == Scope::Namespaced,
            list: capabilities.supports_operation(verbs::LIST),
            watch: capabilities.supports_operation(verbs::WATCH),
            delete: capabilities.supports_operation(verbs::DELETE),
            delete_collection: capabilities.supports_operation(verbs::DELETE_COLLECTION),
        })
        .collect();
    all.sort();
    all.dedup();
    Ok(all)
}
