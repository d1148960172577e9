//! Who may ask what nodes and pods use: whoever may look at the rest of a namespace.

use anyhow::{Context, Result};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

const MANAGER: &str = "tombolo-site";
/// As upstream's metrics server calls it.
const ROLE: &str = "system:aggregated-metrics-reader";

/// Adds the right to `metrics.k8s.io` to the roles `view`, `edit` and `admin`.
pub async fn share(site: &kube::Client) -> Result<()> {
    let labels = json!({
        "rbac.authorization.k8s.io/aggregate-to-view": "true",
        "rbac.authorization.k8s.io/aggregate-to-edit": "true",
        "rbac.authorization.k8s.io/aggregate-to-admin": "true",
    });
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": ROLE, "labels": labels},
        "rules": [{"apiGroups": ["metrics.k8s.io"], "resources": ["nodes", "pods"], "verbs": ["get", "list"]}]});
    let roles: Api<ClusterRole> = Api::all(site.clone());
    let force = PatchParams::apply(MANAGER).force();
    roles.patch(ROLE, &force, &Patch::Apply(&role)).await.context("cannot share what nodes use")?;
    Ok(())
}
