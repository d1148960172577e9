//! What a node may do: read what its pods need, write itself and its pods' status.

use super::identity::Identity;
use super::rbac::Action;
use crate::http::status::Result;
use crate::registry::write;
use crate::server::App;

const GROUP: &str = "system:nodes";
/// Where the agent keeps them.
const HUB_LEASES: &str = "tombolo-system";

/// The node behind a user name.
pub fn node_name(user: &Identity) -> Option<&str> {
    user.in_group(GROUP).then(|| user.user.strip_prefix("system:node:")).flatten()
}

/// Rights that follow from being a node. What is not listed here is left to the access rules.
pub async fn allows(app: &App, user: &Identity, action: &Action<'_>) -> Result<bool> {
    let Some(node) = node_name(user) else { return Ok(false) };
    let read = matches!(action.verb, "get" | "list" | "watch");
    let write = matches!(action.verb, "create" | "update" | "patch");
    let own = action.name == node;
    Ok(match (action.group, action.resource) {
        ("", "nodes") => read || (action.verb == "create") || ((write || action.verb == "delete") && own),
        ("", "nodes/status") => write && own,
        ("", "services" | "endpoints" | "namespaces") => read,
        ("discovery.k8s.io", "endpointslices") => read,
        ("", "pods") => match action.verb {
            "list" | "watch" => {
                let own = format!("spec.nodeName={node}");
                action.field_selector.split(',').any(|term| term.replace("==", "=") == own)
            }
            "get" => binds(app, node, action).await?,
            // Which pods it may create and delete is decided per pod, in admission.
            verb => matches!(verb, "create" | "delete"),
        },
        ("", "pods/status") => matches!(action.verb, "update" | "patch") && binds(app, node, action).await?,
        ("", "pods/eviction") => action.verb == "create" && binds(app, node, action).await?,
        ("" | "events.k8s.io", "events") => write,
        ("", "secrets" | "configmaps" | "persistentvolumeclaims") => {
            read && !action.name.is_empty() && uses(app, node, action).await?
        }
        ("", "persistentvolumeclaims/status") => matches!(action.verb, "get" | "update" | "patch"),
        ("", "persistentvolumes") => action.verb == "get",
        ("", "serviceaccounts/token") => action.verb == "create" && runs_account(app, node, action).await?,
        ("", "serviceaccounts") => action.verb == "get",
        // The leases of the hubs this site is tied to: without them a pod that may run at most once does not run.
        ("coordination.k8s.io", "leases") if action.namespace == HUB_LEASES => read,
        ("coordination.k8s.io", "leases") => {
            action.namespace == "kube-node-lease"
                && (action.verb == "create" || ((read || write || action.verb == "delete") && own))
        }
        ("storage.k8s.io", "csinodes") => {
            action.verb == "create" || ((read || write || action.verb == "delete") && own)
        }
        ("storage.k8s.io", "csidrivers" | "volumeattachments") => read,
        ("node.k8s.io", "runtimeclasses") => read,
        ("certificates.k8s.io", "certificatesigningrequests") => {
            matches!(action.verb, "create" | "get" | "list" | "watch")
        }
        ("authentication.k8s.io", "tokenreviews") => action.verb == "create",
        ("authorization.k8s.io", "subjectaccessreviews" | "localsubjectaccessreviews") => {
            action.verb == "create"
        }
        ("resource.k8s.io", "resourceslices") => true,
        ("resource.k8s.io", "resourceclaims") => action.verb == "get",
        _ => false,
    })
}

async fn binds(app: &App, node: &str, action: &Action<'_>) -> Result<bool> {
    let pod = app.object("", "v1", "pods", action.namespace, action.name).await?;
    Ok(pod.is_some_and(|pod| write::text(&pod, "/spec/nodeName") == node))
}

/// Whether a pod on this node uses the named object.
async fn uses(app: &App, node: &str, action: &Action<'_>) -> Result<bool> {
    let quoted = format!("\"{}\"", action.name);
    pods_on(app, node, action.namespace, |text| text.contains(&quoted)).await
}

async fn runs_account(app: &App, node: &str, action: &Action<'_>) -> Result<bool> {
    let quoted = format!("\"serviceAccountName\":\"{}\"", action.name);
    pods_on(app, node, action.namespace, |text| text.contains(&quoted)).await
}

/// Looks at the stored text of the node's pods in a namespace; a name that appears nowhere in it is not used.
async fn pods_on(app: &App, node: &str, namespace: &str, found: impl Fn(&str) -> bool) -> Result<bool> {
    let Some(pods) = app.registry.built_in.find("", "v1", "pods") else { return Ok(false) };
    let scope = pods.scope(namespace);
    let page = app.store.range(tombolo_store::Range::all(&scope)).await.map_err(|e| app.store_failure(e))?;
    let index = pods.fields.iter().position(|f| f.name == "spec.nodeName").unwrap_or(usize::MAX);
    Ok(page.records.iter().any(|record| {
        let Ok(fields) = crate::record::Record::read(&record.value) else { return false };
        fields.field(index) == node && found(&String::from_utf8_lossy(&record.value))
    }))
}
