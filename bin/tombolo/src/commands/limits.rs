//! What a site's owner lets a hub do there, as objects of the site's own RBAC and quota: Kubernetes enforces it, not we.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tombolo_agent::ActingAs;

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
    pub fn acting_as(&self, name: &str) -> Option<ActingAs> {
        let limited = (!self.allow_namespaces.is_empty()).then(|| format!("tombolo:hub-of:{name}"));
        let user = self.act_as.clone().or(limited)?;
        Some(ActingAs { user, groups: self.act_as_groups.clone() })
    }

    /// The objects at the site that say so. None without `--allow-namespaces`: then the owner has made them.
    pub fn objects(&self, user: &str) -> Result<Vec<Value>> {
        let rbac = "rbac.authorization.k8s.io";
        let mut all = Vec::new();
        for namespace in &self.allow_namespaces {
            let metadata = json!({"name": "tombolo-hub", "namespace": namespace});
            let mut labels = json!({});
            if let Some(level) = &self.pod_security {
                labels["pod-security.kubernetes.io/enforce"] = json!(level);
            }
            all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}));
            all.push(json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": metadata, "rules": self.rules()}));
            all.push(json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "tombolo-hub"},
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
pub async fn apply(site: &kube::Client, objects: Vec<Value>) -> Result<()> {
    for object in objects {
        let object: DynamicObject = serde_json::from_value(object)?;
        let types = object.types.clone().unwrap_or_default();
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
        let (name, namespace) =
            (object.metadata.name.clone().unwrap_or_default(), object.metadata.namespace.clone());
        let api: Api<DynamicObject> = match &namespace {
            Some(namespace) => Api::namespaced_with(site.clone(), namespace, &resource),
            None => Api::all_with(site.clone(), &resource),
        };
        api.patch(&name, &PatchParams::apply("tombolo-cli").force(), &Patch::Apply(&object))
            .await
            .with_context(|| format!("cannot write {} {name} at the site", types.kind))?;
    }
    Ok(())
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
        let acting = limits.acting_as("north").expect("an identity of its own");
        let objects = limits.objects(&acting.user).expect("good limits");
        let text = json!(objects).to_string();
        assert!(text.contains("pods/log") && !text.contains("pods/exec"), "{text}");
        assert!(!text.contains("ClusterRole"), "rights beyond the namespace: {text}");
        let quota = objects.iter().find(|o| o["kind"] == "ResourceQuota").expect("a quota");
        assert_eq!(quota["spec"]["hard"], json!({"requests.cpu": "4", "pods": "20"}));
        assert!(LimitArgs::default().acting_as("north").is_none());
    }
}
