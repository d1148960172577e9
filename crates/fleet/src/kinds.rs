//! Where the objects of a kind are in an API.

use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error};

/// The kinds that Kubernetes brings are where their names say; a custom kind is where discovery says.
pub async fn resource(client: &Client, api_version: &str, kind: &str) -> Result<ApiResource, Error> {
    if !may_be_custom(api_version) {
        return Ok(guess(api_version, kind));
    }
    let (resource, _) = kube::discovery::pinned_kind(client, &gvk(api_version, kind)).await?;
    Ok(resource)
}

pub fn may_be_custom(api_version: &str) -> bool {
    api_version.split_once('/').is_some_and(|(group, _)| group.contains('.'))
}

/// Right for the kinds that Kubernetes brings, and for a custom one whose plural is regular.
pub fn guess(api_version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&gvk(api_version, kind))
}

/// Objects of one namespace; of none, if that is empty.
pub fn objects(client: &Client, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
    if namespace.is_empty() {
        Api::all_with(client.clone(), resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, resource)
    }
}

fn gvk(api_version: &str, kind: &str) -> GroupVersionKind {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    GroupVersionKind::gvk(group, version, kind)
}
