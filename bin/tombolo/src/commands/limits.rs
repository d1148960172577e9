//! What a site's owner lets a hub do there, as objects of the site's own RBAC and quota: Kubernetes enforces it, not we.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, ObjectMeta};
use kube::{Error, ResourceExt};
use serde_json::{Value, json};
use tombolo_agent::ActingAs;

/// Labels of what says what one hub may do: this and the name of the tie. Several hubs may be let into one namespace.
const LABEL: &str = "limits.tombolo.dev/";
/// Its value on a namespace that was made for the hub, and may go with it.
const MADE: &str = "made";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Rights go first.
const KINDS: [(&str, &str); 3] = [(RBAC, "RoleBinding"), (RBAC, "Role"), ("", "ResourceQuota")];

/// The owner's word.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct LimitArgs {
    /// The hub may act in these namespaces only (they are made if missing)
    #[arg(long, value_delimiter = ',', value_name = "NAMESPACE", help_heading = "What the hub may do here")]
    pub allow_namespaces: Vec<String>,
    /// Kinds it may make there, as RESOURCE or RESOURCE.GROUP; workloads and what they need if left out
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "RESOURCE",
        requires = "allow_namespaces",
        help_heading = "What the hub may do here"
    )]
    pub allow_kinds: Vec<String>,
    /// The most it may use in each of these namespaces, for example cpu=4,memory=8Gi,pods=20
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "RESOURCE=AMOUNT",
        requires = "allow_namespaces",
        help_heading = "What the hub may do here"
    )]
    pub quota: Vec<String>,
    /// Pod security of these namespaces: privileged, baseline or restricted
    #[arg(
        long,
        value_name = "LEVEL",
        requires = "allow_namespaces",
        help_heading = "What the hub may do here"
    )]
    pub pod_security: Option<String>,
    /// Nobody at the hub reads logs of these pods
    #[arg(long, requires = "allow_namespaces", help_heading = "What the hub may do here")]
    pub no_logs: bool,
    /// Nobody at the hub runs commands in these pods, attaches to them or forwards ports to them
    #[arg(long, requires = "allow_namespaces", help_heading = "What the hub may do here")]
    pub no_exec: bool,
    /// Act here as this user, whose rights you decide with RBAC; made for you with --allow-namespaces
    #[arg(long, value_name = "USER", help_heading = "What the hub may do here")]
    pub act_as: Option<String>,
    /// Groups of that user
    #[arg(
        long,
        value_delimiter = ',',
        requires = "act_as",
        value_name = "GROUP",
        help_heading = "What the hub may do here"
    )]
    pub act_as_groups: Vec<String>,
}

const WORKLOADS: &[(&str, &[&str])] = &[
    ("apps", &["deployments", "statefulsets", "daemonsets"]),
    ("batch", &["jobs", "cronjobs"]),
    ("", &["configmaps", "secrets", "services", "serviceaccounts", "persistentvolumeclaims"]),
];

impl LimitArgs {
    /// As whom the hub acts at the site; `None`: as the agent itself, which may do everything.
    pub fn acting_as(&self, tie: &str) -> Option<ActingAs> {
        let limited = (!self.allow_namespaces.is_empty()).then(|| format!("tombolo:{tie}"));
        let user = self.act_as.clone().or(limited)?;
        Some(ActingAs { user, groups: self.act_as_groups.clone() })
    }

    /// With `--act-as` alone the owner has made, and keeps, what limits that user.
    pub fn are_the_owner_s(&self) -> bool {
        self.act_as.is_some() && self.allow_namespaces.is_empty()
    }

    /// The objects at the site that say so. None without `--allow-namespaces`.
    pub fn objects(&self, tie: &str, user: &str) -> Result<Vec<Value>> {
        let rbac = RBAC;
        let mut all = Vec::new();
        for namespace in &self.allow_namespaces {
            let name = format!("tombolo-{tie}");
            let label = format!("{LABEL}{tie}");
            let metadata = json!({"name": name, "namespace": namespace, "labels": {label.as_str(): "true"}});
            let mut labels = json!({label: "true"});
            if let Some(level) = &self.pod_security {
                labels["pod-security.kubernetes.io/enforce"] = json!(level);
            }
            all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}));
            all.push(json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": metadata, "rules": self.rules()}));
            all.push(json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
                "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}]}));
            if !self.quota.is_empty() {
                let hard = self.hard()?;
                all.push(json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}));
            }
        }
        Ok(all)
    }

    fn hard(&self) -> Result<BTreeMap<String, String>> {
        let one = |pair: &String| {
            let (resource, amount) =
                pair.split_once('=').with_context(|| format!("{pair:?} is no quota; write cpu=4"))?;
            // People mean what pods ask for.
            let resource = match resource {
                "cpu" | "memory" => format!("requests.{resource}"),
                other => other.to_owned(),
            };
            Ok((resource, amount.to_owned()))
        };
        self.quota.iter().map(one).collect()
    }

    fn rules(&self) -> Vec<Value> {
        let rule = |group: &str, resources: Value, verbs: Value| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
        let mut rules: Vec<Value> = if self.allow_kinds.is_empty() {
            WORKLOADS.iter().map(|(group, resources)| rule(group, json!(resources), json!(["*"]))).collect()
        } else {
            let split = |kind: &String| {
                let (resource, group) = kind.split_once('.').unwrap_or((kind, ""));
                rule(group, json!([resource]), json!(["*"]))
            };
            self.allow_kinds.iter().map(split).collect()
        };
        rules.push(rule("", json!(["pods"]), json!(["get", "list", "watch", "delete"])));
        if !self.no_logs {
            rules.push(rule("", json!(["pods/log"]), json!(["get"])));
        }
        if !self.no_exec {
            rules.push(rule(
                "",
                json!(["pods/exec", "pods/attach", "pods/portforward"]),
                json!(["get", "create"]),
            ));
        }
        rules
    }
}

/// Server-side apply of each object, in order, with the caller's own rights.
pub async fn apply(site: &kube::Client, tie: &str, objects: &[Value]) -> Result<()> {
    for object in objects {
        let mut object: DynamicObject = serde_json::from_value(object.clone())?;
        let types = object.types.clone().unwrap_or_default();
        let (group, _) = types.api_version.split_once('/').unwrap_or_default();
        let name = object.name_any();
        let context = || format!("cannot write {} {name} at the site", types.kind);
        if types.kind == "Namespace" && make_namespace(site, tie, &name).await.with_context(context)? {
            object.labels_mut().insert(format!("{LABEL}{tie}"), MADE.to_owned());
        }
        let api = api_of(site, group, &types.kind, object.metadata.namespace.as_deref());
        api.patch(&name, &PatchParams::apply(&manager(tie)).force(), &Patch::Apply(&object))
            .await
            .with_context(context)?;
    }
    Ok(())
}

/// Makes the namespace if it is missing. Says whether it was made for this hub, now or earlier.
async fn make_namespace(site: &kube::Client, tie: &str, name: &str) -> Result<bool, Error> {
    let api: Api<Namespace> = Api::all(site.clone());
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
    match api.create(&PostParams::default(), &Namespace { metadata, ..Default::default() }).await {
        Ok(_) => Ok(true),
        Err(Error::Api(status)) if status.reason == "AlreadyExists" => {
            let found = api.get(name).await?;
            Ok(found.labels().get(&format!("{LABEL}{tie}")).is_some_and(|value| value == MADE))
        }
        Err(error) => Err(error),
    }
}

/// Takes back what was allowed to the hub of `tie` and is not among `objects`.
pub async fn prune(site: &kube::Client, tie: &str, objects: &[Value]) -> Result<(), Error> {
    let wanted = |kind: &str, namespace: &str| {
        objects.iter().any(|object| {
            let place = object.pointer("/metadata/namespace").unwrap_or(&object["metadata"]["name"]);
            object["kind"] == kind && place == namespace
        })
    };
    let label = format!("{LABEL}{tie}");
    let selected = ListParams::default().labels(&label);
    for (group, kind) in KINDS {
        let found = match api_of(site, group, kind, None).list_metadata(&selected).await {
            // Who may not look has not limited anything earlier.
            Err(Error::Api(status)) if status.code == 403 && objects.is_empty() => return Ok(()),
            found => found?,
        };
        for object in found.items {
            let namespace = object.namespace().unwrap_or_default();
            if wanted(kind, &namespace) {
                continue;
            }
            let api = api_of(site, group, kind, Some(&namespace));
            match api.delete(&object.name_any(), &DeleteParams::default()).await {
                Err(Error::Api(status)) if status.code == 404 => {}
                other => drop(other?),
            }
        }
    }
    let namespaces: Api<Namespace> = Api::all(site.clone());
    for namespace in namespaces.list(&selected).await?.items {
        let name = namespace.name_any();
        if wanted("Namespace", &name) || namespace.metadata.deletion_timestamp.is_some() {
            continue;
        }
        // What was said about pod security there counts no more; that it was made for the hub still does.
        let labels = json!({label.as_str(): namespace.labels()[&label]});
        let bare =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        namespaces.patch(&name, &PatchParams::apply(&manager(tie)).force(), &Patch::Apply(&bare)).await?;
    }
    Ok(())
}

/// Is a namespace marked as one that the hub of `tie` was let into? They are unmarked last.
pub async fn any(site: &kube::Client, tie: &str) -> Result<bool, Error> {
    let namespaces: Api<Namespace> = Api::all(site.clone());
    let marked = ListParams::default().labels(&format!("{LABEL}{tie}"));
    Ok(!namespaces.list(&marked).await?.items.is_empty())
}

/// Takes back all that was allowed to the hub of `tie`. A namespace that was made for it goes if nothing is in it.
pub async fn remove(site: &kube::Client, tie: &str) -> Result<(), Error> {
    prune(site, tie, &[]).await?;
    let label = format!("{LABEL}{tie}");
    let namespaces: Api<Namespace> = Api::all(site.clone());
    for namespace in namespaces.list(&ListParams::default().labels(&label)).await?.items {
        let name = namespace.name_any();
        let others = namespace.labels().keys().any(|key| key.starts_with(LABEL) && *key != label);
        if namespace.labels()[&label] == MADE && !others {
            tombolo_agent::remove_if_empty(site, &name).await?;
        }
        let plain = Patch::Merge(json!({"metadata": {"labels": {label.as_str(): null}}}));
        match namespaces.patch(&name, &PatchParams::default(), &plain).await {
            Err(Error::Api(status)) if status.code == 404 => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// One per tie, so that two hubs that are let into one namespace do not undo each other's limits.
fn manager(tie: &str) -> String {
    format!("tombolo-cli-{tie}")
}

fn api_of(site: &kube::Client, group: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(site.clone(), namespace, &resource),
        None => Api::all_with(site.clone(), &resource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_owner_does_not_allow_is_in_no_rule() {
        let limits = LimitArgs {
            allow_namespaces: vec!["shop".into()],
            quota: vec!["cpu=4".into(), "pods=20".into()],
            no_exec: true,
            ..Default::default()
        };
        let acting = limits.acting_as("hub-1").expect("an identity of its own");
        assert_ne!(Some(&acting), limits.acting_as("hub-2").as_ref(), "two hubs with one identity");
        let objects = limits.objects("hub-1", &acting.user).expect("good limits");
        let text = json!(objects).to_string();
        assert!(text.contains("pods/log") && !text.contains("pods/exec"), "{text}");
        assert!(!text.contains("ClusterRole"), "rights beyond the namespace: {text}");
        let quota = objects.iter().find(|o| o["kind"] == "ResourceQuota").expect("a quota");
        assert_eq!(quota["spec"]["hard"], json!({"requests.cpu": "4", "pods": "20"}));
        assert!(LimitArgs::default().acting_as("hub-1").is_none());
        // Two hubs in one namespace have one of each.
        let other = limits.objects("hub-2", "u").expect("good limits");
        let name = |all: &[Value], kind: &str| {
            all.iter().find(|o| o["kind"] == kind).expect("one of the kind")["metadata"]["name"].clone()
        };
        for kind in ["Role", "RoleBinding", "ResourceQuota"] {
            assert_ne!(name(&objects, kind), name(&other, kind));
        }
    }
}
