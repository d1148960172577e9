//! What a node may do: read what its pods need, write itself and its pods' status.

use serde_json::Value;

use super::identity::Identity;
use super::rbac::Action;
use crate::http::status::Result;
use crate::registry::write;
use crate::server::App;

const GROUP: &str = "system:nodes";
/// Where the agent keeps them.
const HUB_LEASES: &str = "tombolo-system";

/// Marks a pod that a node shows of what it runs anyway.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Where a pod's spec names objects of one kind.
struct Places {
    volume: &'static [&'static str],
    /// In a projected volume.
    source: &'static str,
    env: &'static str,
    env_from: &'static str,
}

const SECRETS: Places = Places {
    volume: &[
        "/secret/secretName",
        "/csi/nodePublishSecretRef/name",
        "/azureFile/secretName",
        "/cephfs/secretRef/name",
        "/cinder/secretRef/name",
        "/flexVolume/secretRef/name",
        "/iscsi/secretRef/name",
        "/rbd/secretRef/name",
        "/scaleIO/secretRef/name",
        "/storageos/secretRef/name",
    ],
    source: "/secret/name",
    env: "/valueFrom/secretKeyRef/name",
    env_from: "/secretRef/name",
};

const CONFIG_MAPS: Places = Places {
    volume: &["/configMap/name"],
    source: "/configMap/name",
    env: "/valueFrom/configMapKeyRef/name",
    env_from: "/configMapRef/name",
};

/// An empty path is the whole, which is no name.
const CLAIMS: Places =
    Places { volume: &["/persistentVolumeClaim/claimName"], source: "", env: "", env_from: "" };

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
            "list" | "watch" => selects(node, action),
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
        ("", "persistentvolumeclaims/status") => {
            matches!(action.verb, "get" | "update" | "patch") && uses(app, node, action).await?
        }
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
        ("resource.k8s.io", "resourceslices") => match action.verb {
            "list" | "watch" | "deletecollection" => selects(node, action),
            // Whose devices a new one is about is seen in admission.
            "create" => true,
            _ => owns_slice(app, node, action).await?,
        },
        ("resource.k8s.io", "resourceclaims") => action.verb == "get",
        _ => false,
    })
}

async fn binds(app: &App, node: &str, action: &Action<'_>) -> Result<bool> {
    let pod = app.object("", "v1", "pods", action.namespace, action.name).await?;
    Ok(pod.is_some_and(|pod| write::text(&pod, "/spec/nodeName") == node))
}

async fn owns_slice(app: &App, node: &str, action: &Action<'_>) -> Result<bool> {
    let slice = app.object(action.group, "v1", "resourceslices", "", action.name).await?;
    Ok(slice.is_some_and(|slice| write::text(&slice, "/spec/nodeName") == node))
}

/// Whether only what is on this node is asked for.
fn selects(node: &str, action: &Action<'_>) -> bool {
    let own = format!("spec.nodeName={node}");
    action.field_selector.split(',').any(|term| term.replace("==", "=") == own)
}

/// Whether a pod on this node uses the named object.
async fn uses(app: &App, node: &str, action: &Action<'_>) -> Result<bool> {
    let plural = action.resource.split('/').next().unwrap_or_default();
    pods_on(app, node, action, |pod| references(pod, plural).iter().any(|name| name == action.name)).await
}

async fn runs_account(app: &App, node: &str, action: &Action<'_>) -> Result<bool> {
    pods_on(app, node, action, |pod| write::text(pod, "/spec/serviceAccountName") == action.name).await
}

/// Looks at the node's pods in the namespace that is asked about. A pod is parsed only if its text has the name, or if it
/// has claims of its own, whose names are made of two.
async fn pods_on(app: &App, node: &str, action: &Action<'_>, found: impl Fn(&Value) -> bool) -> Result<bool> {
    let Some(pods) = app.registry.built_in.find("", "v1", "pods") else { return Ok(false) };
    let scope = pods.scope(action.namespace);
    let page = app.store.range(tombolo_store::Range::all(&scope)).await.map_err(|e| app.store_failure(e))?;
    let index = pods.fields.iter().position(|f| f.name == "spec.nodeName").unwrap_or(usize::MAX);
    let quoted = format!("\"{}\"", action.name);
    Ok(page.records.iter().any(|record| {
        let Ok(fields) = crate::record::Record::read(&record.value) else { return false };
        if fields.field(index) != node {
            return false;
        }
        let text = String::from_utf8_lossy(&record.value);
        if !text.contains(&quoted) && !text.contains("\"ephemeral\":") {
            return false;
        }
        // A node makes mirrors itself: they must not give it what it could not have otherwise.
        let pod = pods.decode(&record.value, record.revision).unwrap_or_default();
        pod["metadata"]["annotations"].get(MIRROR).is_none() && found(&pod)
    }))
}

/// The names of all secrets, config maps or claims that a pod's spec says it needs. A name that stands elsewhere (a label, a
/// container) is no use of anything.
pub fn references(pod: &Value, plural: &str) -> Vec<String> {
    let places = match plural {
        "secrets" => &SECRETS,
        "configmaps" => &CONFIG_MAPS,
        _ => &CLAIMS,
    };
    let spec = &pod["spec"];
    let mut names = Vec::new();
    let mut add = |value: &Value, place: &str| {
        names.extend(value.pointer(place).and_then(Value::as_str).map(str::to_owned));
    };
    for volume in each(spec, "volumes") {
        places.volume.iter().for_each(|place| add(volume, place));
        each(&volume["projected"], "sources").for_each(|source| add(source, places.source));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in each(spec, list) {
            each(container, "env").for_each(|env| add(env, places.env));
            each(container, "envFrom").for_each(|from| add(from, places.env_from));
        }
    }
    match plural {
        "secrets" => each(spec, "imagePullSecrets").for_each(|secret| add(secret, "/name")),
        "persistentvolumeclaims" => {
            // Claims that are made for the pod are called after it.
            let own = each(spec, "volumes").filter(|volume| volume["ephemeral"].is_object());
            let pod = write::name_of(pod);
            names.extend(own.map(|volume| format!("{pod}-{}", write::text(volume, "/name"))));
        }
        _ => {}
    }
    names
}

fn each<'a>(value: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    value[list].as_array().into_iter().flatten()
}
