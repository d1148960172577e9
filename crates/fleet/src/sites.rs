//! The life of a site at the hub: its namespace and rights, its node, its lease, and its end.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleBinding};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, Error, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tombolo_agent::Removal;
use tombolo_api::{Condition, Site, names};

use crate::config::FleetConfig;
use crate::convert::tier;
use crate::install::{apply, requests};
use crate::tunnels::Tied;

/// Namespace and rights of a site. Bound to the identity, not to the name: an old certificate gets nothing.
pub async fn equip(client: &Client, site: &str, identity: &str) -> Result<(), Error> {
    for object in equipment(site, identity) {
        apply(client, object).await?;
    }
    Ok(())
}

/// Brings the rights of sites that joined an earlier version of this hub in line with what this one gives.
pub async fn refit(client: &Client) -> Result<(), Error> {
    let ours = ListParams::default().labels(names::SITE_LABEL);
    let roles = Api::<ClusterRole>::all(client.clone()).list(&ours).await?.items;
    let known: HashMap<String, Option<Vec<PolicyRule>>> =
        roles.into_iter().map(|role| (role.name_any(), role.rules)).collect();
    for site in Api::<Site>::all(client.clone()).list(&ListParams::default()).await? {
        let name = site.name_any();
        let Some(identity) = site.annotations().get(names::IDENTITY_ANNOTATION) else { continue };
        if site.metadata.deletion_timestamp.is_none()
            && !equipment(&name, identity).iter().all(|object| is_given(object, &known))
        {
            equip(client, &name, identity).await?;
        }
    }
    Ok(())
}

/// Has a site's role of the whole cluster these rules? Other objects are made with it.
fn is_given(object: &Value, known: &HashMap<String, Option<Vec<PolicyRule>>>) -> bool {
    let wanted: Option<Vec<PolicyRule>> = serde_json::from_value(object["rules"].clone()).ok();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    object["kind"] != "ClusterRole" || known.get(name) == Some(&wanted)
}

fn equipment(site: &str, identity: &str) -> Vec<Value> {
    let namespace = names::site_namespace(site);
    let rbac = "rbac.authorization.k8s.io";
    let subject = json!([{"apiGroup": rbac, "kind": "Group", "name": names::identity_group(identity)}]);
    let role = |kind: &str, metadata: Value, rules: Value| json!({"apiVersion": format!("{rbac}/v1"), "kind": kind, "metadata": metadata, "rules": rules});
    let binding = |kind: &str, metadata: Value, role: &str, name: &str| {
        json!({"apiVersion": format!("{rbac}/v1"), "kind": kind, "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": role, "name": name}, "subjects": subject})
    };
    let own = format!("tombolo:site:{site}");
    let labels = json!({names::SITE_LABEL: site});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}),
        role(
            "Role",
            json!({"name": "tombolo:site", "namespace": namespace}),
            json!([
                {"apiGroups": [names::GROUP], "resources": ["works"], "verbs": ["get", "list", "watch"]},
                {"apiGroups": [names::GROUP], "resources": ["works/status"], "verbs": ["get", "patch", "update"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
            ]),
        ),
        binding(
            "RoleBinding",
            json!({"name": "tombolo:site", "namespace": namespace}),
            "Role",
            "tombolo:site",
        ),
        role(
            "ClusterRole",
            json!({"name": own, "labels": labels}),
            json!([
                {"apiGroups": [names::GROUP], "resources": ["sites"], "resourceNames": [site], "verbs": ["get"]},
                {"apiGroups": [names::GROUP], "resources": ["sites/status"], "resourceNames": [site], "verbs": ["get", "patch", "update"]},
                requests(),
            ]),
        ),
        binding("ClusterRoleBinding", json!({"name": own, "labels": labels}), "ClusterRole", &own),
    ]
}

/// Condition `Ready` of a site.
pub fn ready(silent_since: Option<&str>, now: &str) -> Condition {
    let (status, reason, message) = match silent_since {
        Some(since) => {
            ("False", "Silent", format!("not heard since {since}; what is shown of it is what it last said"))
        }
        None => ("True", "Tied", "heard within its lease".to_owned()),
    };
    Condition {
        r#type: "Ready".into(),
        status: status.into(),
        reason: reason.into(),
        message,
        last_transition_time: now.into(),
    }
}

/// The node that stands for a site in `kubectl get nodes`.
pub fn node(site: &Site) -> Value {
    let name = site.name_any();
    let location = &site.spec.location;
    let mut labels = json!({
        "kubernetes.io/hostname": name,
        "type": "site",
        names::SITE_LABEL: name,
        "tombolo.dev/tier": tier(site.spec.tier),
        format!("node-role.kubernetes.io/{}", tier(site.spec.tier)): "",
    });
    for (label, value) in [
        ("topology.kubernetes.io/region", &location.region),
        ("topology.kubernetes.io/zone", &location.zone),
        ("tombolo.dev/jurisdiction", &location.jurisdiction),
    ] {
        if let Some(value) = value {
            labels[label] = json!(value);
        }
    }
    let taints: Vec<Value> = site
        .spec
        .taints
        .iter()
        .map(|t| json!({"key": t.key, "value": t.value, "effect": t.effect}))
        .collect();
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": site.spec.unschedulable}})
}

pub fn node_status(site: &Site, ready: &Condition, now: &str) -> Value {
    let status = site.status.clone().unwrap_or_default();
    let mut ready_condition = json!(ready);
    // To Kubernetes a node that is not heard is `Unknown`, not `False`.
    if ready.status == "False" {
        ready_condition["status"] = json!("Unknown");
    }
    ready_condition["lastHeartbeatTime"] = json!(now);
    let version = status.version.unwrap_or_else(|| "unknown".into());
    json!({"status": {
        "conditions": [ready_condition],
        "capacity": status.capacity,
        "allocatable": status.allocatable,
        "nodeInfo": {"kubeletVersion": version, "osImage": "site", "operatingSystem": "linux", "architecture": "", "bootID": "", "containerRuntimeVersion": "tombolo://site",
            "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "systemUUID": ""},
    }})
}

/// Brings Site condition, Node and latency in line with what is known; writes only differences.
pub async fn show(
    config: &FleetConfig,
    site: &Site,
    silent_since: Option<&str>,
    tied: Option<&Tied>,
) -> Result<(), Error> {
    let name = site.name_any();
    let now = crate::now_text();
    let status = site.status.clone().unwrap_or_default();
    let condition = ready(silent_since, &now);
    let mut conditions = status.conditions.clone();
    let mut patch = json!({});
    if condition.clone().set(&mut conditions) {
        patch["conditions"] = json!(conditions);
        if silent_since.is_some() {
            tracing::warn!(site = name, "lost: {}", condition.message);
        }
    }
    // Round trips wander; only a change that matters is written.
    if let Some(rtt) = tied.and_then(|t| t.rtt) {
        let old: f64 =
            status.latency.as_deref().and_then(|l| l.trim_end_matches("ms").parse().ok()).unwrap_or(0.0);
        let new = rtt.as_secs_f64() * 1000.0;
        if (new - old).abs() > (old * 0.5).max(5.0) || status.latency.is_none() {
            patch["latency"] = json!(format!("{new:.0}ms"));
        }
    }
    if patch != json!({}) {
        patch["lastHeard"] = json!(silent_since.unwrap_or(&now));
        let api: Api<Site> = Api::all(config.client.clone());
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(json!({ "status": patch }))).await?;
    }
    apply(&config.client, node(site)).await?;
    let api: Api<Node> = Api::all(config.client.clone());
    let patch = Patch::Merge(node_status(site, &condition, &now));
    api.patch_status(&name, &PatchParams::default(), &patch).await.map(drop)
}

/// Writes the Lease of a site that is tied to this replica: when it was last heard, and where its tunnel ends.
pub async fn renew(config: &FleetConfig, tied: &Tied, lease: i64) -> Result<(), Error> {
    let heard = jiff::Timestamp::now() - tied.heard;
    let time = heard.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let object = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": names::SITE_LEASE, "namespace": names::site_namespace(&tied.site),
            "annotations": {names::HEARD_ANNOTATION: tied.heard.as_secs().to_string()}},
        "spec": {"holderIdentity": config.replica, "leaseDurationSeconds": lease.max(1), "renewTime": time}});
    let api: Api<Lease> = Api::namespaced(config.client.clone(), &names::site_namespace(&tied.site));
    let params = PatchParams::apply(names::HUB_MANAGER).force();
    api.patch(names::SITE_LEASE, &params, &Patch::Apply(&object)).await.map(drop)
}

/// The hub replica at which a site's tunnel ends, by its Lease: where requests for that site are forwarded to.
pub async fn replica_of(client: &Client, site: &str) -> Result<Option<String>, Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), &names::site_namespace(site));
    Ok(api.get_opt(names::SITE_LEASE).await?.and_then(|l| l.spec?.holder_identity))
}

/// Takes a site's rights and its tunnel, for good. What it was given stays on record.
pub async fn expel(config: &Arc<FleetConfig>, site: &Site, epoch: i64, hub: &str) -> Result<(), Error> {
    let name = site.name_any();
    let client = &config.client;
    let when = site.metadata.deletion_timestamp.as_ref().map(|time| crate::time_text(time.0.as_second()));
    if let Some(identity) = site.annotations().get(names::IDENTITY_ANNOTATION) {
        let keep = site.annotations().get(names::ON_REMOVE_ANNOTATION).is_some_and(|v| v == "keep");
        let removal = Removal {
            hub: hub.to_owned(),
            epoch,
            delete: !keep,
            message: format!(
                "site {name} was removed from this hub at {}; to come back, join with a new token",
                when.unwrap_or_else(crate::now_text)
            ),
        };
        let text = serde_json::to_string(&removal).map_err(Error::SerdeError)?;
        apply_removed(client, identity, removal).await?;
        config.tunnels.cut(&name, &text);
    }
    let own = format!("tombolo:site:{name}");
    let delete = DeleteParams::default();
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), &names::site_namespace(&name));
    gone(bindings.delete("tombolo:site", &delete).await.map(drop))?;
    gone(Api::<ClusterRoleBinding>::all(client.clone()).delete(&own, &delete).await.map(drop))?;
    gone(Api::<ClusterRole>::all(client.clone()).delete(&own, &delete).await.map(drop))
}

fn gone(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

/// The end of a site at the hub. Needs nothing from the site.
pub async fn remove(config: &Arc<FleetConfig>, site: &Site, epoch: i64, hub: &str) -> Result<(), Error> {
    // Rights first: the namespace may take its time, or nobody may be there to finish its deletion.
    expel(config, site, epoch, hub).await?;
    let (name, client, delete) = (site.name_any(), &config.client, DeleteParams::default());
    // Works go one by one as well: where no namespace controller runs, nobody else would delete them.
    let works: Api<tombolo_api::Work> = Api::namespaced(client.clone(), &names::site_namespace(&name));
    gone(works.delete_collection(&delete, &Default::default()).await.map(drop))?;
    gone(
        Api::<Lease>::namespaced(client.clone(), &names::site_namespace(&name))
            .delete(names::SITE_LEASE, &delete)
            .await
            .map(drop),
    )?;
    gone(
        Api::<Namespace>::all(client.clone()).delete(&names::site_namespace(&name), &delete).await.map(drop),
    )?;
    gone(Api::<Node>::all(client.clone()).delete(&name, &delete).await.map(drop))?;
    let api: Api<Site> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    gone(api.patch(&name, &PatchParams::default(), &patch).await.map(drop))?;
    tracing::info!(site = name, "removed");
    Ok(())
}

/// Removals that are remembered: a ConfigMap ends at 1 MiB, and each takes about 300 bytes of it.
const REMEMBERED: usize = 2000;

/// What is remembered of a removal.
#[derive(Serialize, Deserialize)]
struct Remembered {
    #[serde(flatten)]
    removal: Removal,
    #[serde(default)]
    at: String,
}

/// Identities that are forgotten when one more is removed: the oldest. Such a site is refused as before if it comes back;
/// it is only not told any more to clean up.
fn forgotten(data: &BTreeMap<String, String>, identity: &str, most: usize) -> Vec<String> {
    let at = |text: &str| serde_json::from_str::<Remembered>(text).map_or(String::new(), |r| r.at);
    let others = data.iter().filter(|(other, _)| *other != identity);
    let mut others: Vec<(String, &String)> = others.map(|(other, text)| (at(text), other)).collect();
    others.sort_unstable();
    let room = most.saturating_sub(1);
    let over = others.len().saturating_sub(room);
    others.into_iter().take(over).map(|(_, other)| other.clone()).collect()
}

async fn apply_removed(client: &Client, identity: &str, removal: Removal) -> Result<(), Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), names::SYSTEM_NAMESPACE);
    let remembered = Remembered { removal, at: crate::now_text() };
    let text = serde_json::to_string(&remembered).map_err(Error::SerdeError)?;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names::REMOVED_SITES}, "data": {identity: text}});
    let known = api.get_opt(names::REMOVED_SITES).await?.and_then(|config| config.data).unwrap_or_default();
    // A site that waits for its leases to end is looked at every second.
    if known.contains_key(identity) {
        return Ok(());
    }
    let mut data = json!({ identity: text });
    for old in forgotten(&known, identity, REMEMBERED) {
        data[old] = Value::Null;
    }
    let patch = Patch::Merge(json!({ "data": data }));
    match api.patch(names::REMOVED_SITES, &PatchParams::default(), &patch).await {
        Err(Error::Api(status)) if status.code == 404 => {
            let params = PatchParams::apply(names::HUB_MANAGER).force();
            api.patch(names::REMOVED_SITES, &params, &Patch::Apply(&object)).await.map(drop)
        }
        other => other.map(drop),
    }
}

/// What to tell identities that were removed.
pub fn removed(config: &ConfigMap) -> HashMap<String, Removal> {
    let data = config.data.iter().flatten();
    data.filter_map(|(identity, text)| Some((identity.clone(), serde_json::from_str(text).ok()?))).collect()
}

#[cfg(test)]
#[path = "sites_tests.rs"]
mod tests;
