//! `tombolo agent manifest`: the agent as objects for `kubectl apply`, to run inside the cluster it ties.

use anyhow::Result;
use serde_json::{Value, json};
use tombolo_api::names;

use super::join::{Description, DescriptionArgs, tie_name};
use super::limits::LimitArgs;

/// Print the agent as a manifest, to run it inside the cluster
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tombolo agent manifest --hub https://hub:6443 --token abcdef.0123456789abcdef --ca-hash sha256:… --name frankfurt --tier cloud | kubectl apply -f -"
)]
pub struct Args {
    /// The hub's address
    #[arg(long, value_name = "URL")]
    hub: String,
    /// Join token, as printed by `tombolo token create` at the hub
    #[arg(long)]
    token: String,
    /// Hash of the hub's CA, as printed with the token
    #[arg(long, value_name = "sha256:HEX")]
    ca_hash: String,
    /// Image that holds the tombolo program
    #[arg(long, default_value = concat!("tombolo.dev/tombolo:", env!("CARGO_PKG_VERSION")))]
    image: String,
    #[command(flatten)]
    description: DescriptionArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Where the agent keeps Works in its pod.
const STATE: &str = "/var/lib/tombolo";

pub fn print(args: Args) -> Result<()> {
    for object in objects(args)? {
        print!("---\n{}", serde_yaml_ng::to_string(&object)?);
    }
    Ok(())
}

fn objects(args: Args) -> Result<Vec<Value>> {
    let tie = tie_name(&args.hub);
    let mut line = vec!["agent".to_owned(), "--hub".into(), args.hub, "--ca-hash".into(), args.ca_hash];
    line.extend(["--state-dir".into(), STATE.into()]);
    line.extend(flags(&args.description));
    Description::try_from(args.description)?;
    let acting = args.limits.acting_as(&tie);
    if let Some(acting) = &acting {
        line.extend(["--act-as".into(), acting.user.clone()]);
        line.extend(acting.groups.iter().flat_map(|group| ["--act-as-groups".to_owned(), group.clone()]));
    }
    let own = json!({"name": "tombolo-agent", "namespace": names::SYSTEM_NAMESPACE});
    let rbac = "rbac.authorization.k8s.io";
    let labels = json!({"app": "tombolo-agent"});
    let mut all = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names::SYSTEM_NAMESPACE}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": own}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tombolo-join", "namespace": names::SYSTEM_NAMESPACE},
            "stringData": {"token": args.token}}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": "tombolo-agent"},
            "rules": rules(acting.as_ref().map(|a| (a.user.as_str(), &a.groups[..])))}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "tombolo-agent"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "tombolo-agent"},
            "subjects": [{"kind": "ServiceAccount", "name": "tombolo-agent", "namespace": names::SYSTEM_NAMESPACE}]}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": own, "rules": [
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "patch", "delete"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch", "delete"]}]}),
        json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": own,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "tombolo-agent"},
            "subjects": [{"kind": "ServiceAccount", "name": "tombolo-agent", "namespace": names::SYSTEM_NAMESPACE}]}),
    ];
    if let Some(acting) = &acting {
        all.extend(args.limits.objects(&tie, &acting.user)?);
    }
    all.push(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": own, "spec": {
        "replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {
            "serviceAccountName": "tombolo-agent",
            // Outlives the container, not the pod.
            "volumes": [{"name": "state", "emptyDir": {}}],
            "securityContext": {"fsGroup": 65532},
            "containers": [{"name": "agent", "image": args.image, "args": line,
                "volumeMounts": [{"name": "state", "mountPath": STATE}],
                "env": [{"name": "TOMBOLO_TOKEN", "valueFrom": {"secretKeyRef": {"name": "tombolo-join", "key": "token"}}}],
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true, "runAsUser": 65532,
                    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}}]}}}}));
    Ok(all)
}

/// An agent that acts as somebody else may look, and be that somebody; one that acts as itself may do everything.
fn rules(acting: Option<(&str, &[String])>) -> Value {
    let Some((user, groups)) = acting else {
        return json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]}]);
    };
    let mut rules = vec![
        json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}),
        json!({"apiGroups": [""], "resources": ["users"], "resourceNames": [user], "verbs": ["impersonate"]}),
    ];
    if !groups.is_empty() {
        rules.push(json!({"apiGroups": [""], "resources": ["groups"], "resourceNames": groups, "verbs": ["impersonate"]}));
    }
    json!(rules)
}

fn flags(d: &DescriptionArgs) -> Vec<String> {
    let tier = format!("{:?}", d.tier).to_lowercase();
    let mut line = vec!["--name".to_owned(), d.name.clone(), "--tier".into(), tier];
    let number = |n: Option<f64>| n.map(|n| n.to_string());
    for (flag, value) in [
        ("--region", d.region.clone()),
        ("--zone", d.zone.clone()),
        ("--lat", number(d.lat)),
        ("--lon", number(d.lon)),
        ("--jurisdiction", d.jurisdiction.clone()),
        ("--provider", d.provider.clone()),
        ("--labels", Some(d.labels.join(",")).filter(|l| !l.is_empty())),
    ] {
        line.extend(value.map(|value| format!("{flag}={value}")));
    }
    line
}
