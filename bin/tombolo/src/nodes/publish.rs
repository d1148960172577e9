//! What newcomers read before they trust anything: `kube-public/cluster-info`, signed with every token that is for that.
//!
//! It is the ConfigMap that kubeadm's clusters have, so kubeadm's way of joining works here too.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tombolo_api::names;
use tombolo_node::join::{Cluster, sign_cluster_info};

const MANAGER: &str = "tombolo-site";
const LOOK: Duration = Duration::from_secs(2);
const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";

/// What a site says about itself.
pub struct Published {
    pub ca: String,
    pub url: String,
    /// Where it is reached now, if it listens everywhere and its machine has a network: that may come later, and change.
    pub now: Box<dyn Fn() -> Option<String> + Send + Sync>,
    pub pod_cidr: String,
    pub service_cidr: String,
}

impl Published {
    fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  cluster:\n    certificate-authority-data: {}\n    server: {}\n",
            STANDARD.encode(&self.ca),
            self.url
        )
    }

    fn about(&self) -> String {
        let cluster = Cluster {
            url: self.url.clone(),
            pod_cidr: Some(self.pod_cidr.clone()),
            service_cidr: Some(self.service_cidr.clone()),
            tunnel: Some(names::NODE_TUNNEL_PATH.into()),
        };
        json!(cluster).to_string()
    }
}

/// Writes the rights and the ConfigMap, then keeps the signatures in step with the tokens until `stop`.
pub async fn publish(site: kube::Client, mut what: Published, stop: CancellationToken) -> Result<()> {
    for object in rights() {
        apply(&site, object).await.context("cannot write the rights of joining nodes")?;
    }
    write(&site, &what, &BTreeMap::new()).await.context("cannot write kube-public/cluster-info")?;
    tokio::spawn(async move {
        tokio::select! {
            () = sign(&site, &mut what) => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(())
}

async fn sign(site: &kube::Client, what: &mut Published) {
    let secrets: Api<Secret> = Api::namespaced(site.clone(), "kube-system");
    let config = watcher::Config::default().fields(&format!("type={TOKEN_TYPE}"));
    let mut events = Box::pin(watcher(secrets, config).default_backoff());
    let mut tokens: BTreeMap<String, String> = BTreeMap::new();
    let mut listed = false;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            url = moved(what), if listed => {
                what.url = url;
                Some(Ok(Event::InitDone))
            }
        };
        let Some(event) = event else { return };
        match event {
            Ok(Event::Init) => {
                listed = false;
                tokens.clear();
                continue;
            }
            Ok(Event::InitApply(secret)) => {
                tokens.extend(signing_token(&secret));
                continue;
            }
            Ok(Event::InitDone) => listed = true,
            Ok(Event::Apply(secret)) => tokens.extend(signing_token(&secret)),
            Ok(Event::Delete(secret)) => {
                if let Some((id, _)) = signing_token(&secret) {
                    tokens.remove(&id);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "the watch on tokens broke");
                continue;
            }
        }
        if let Err(error) = write(site, what, &tokens).await {
            tracing::warn!(%error, "cluster-info could not be signed; joining needs --ca-hash until it is");
        }
    }
}

/// Where the site is reached, once that is not where it was.
async fn moved(what: &Published) -> String {
    loop {
        tokio::time::sleep(LOOK).await;
        if let Some(url) = (what.now)().filter(|url| *url != what.url) {
            return url;
        }
    }
}

/// Id and whole text of a token that vouches for `cluster-info`.
fn signing_token(secret: &Secret) -> Option<(String, String)> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| data.get(key).map(|b| String::from_utf8_lossy(&b.0).into_owned());
    if text("usage-bootstrap-signing").as_deref() != Some("true") {
        return None;
    }
    let (id, key) = (text("token-id")?, text("token-secret")?);
    Some((id.clone(), format!("{id}.{key}")))
}

async fn write(site: &kube::Client, what: &Published, tokens: &BTreeMap<String, String>) -> kube::Result<()> {
    let kubeconfig = what.kubeconfig();
    let mut data = BTreeMap::from([("tombolo".to_owned(), what.about())]);
    for (id, token) in tokens {
        data.extend(sign_cluster_info(&kubeconfig, token).map(|s| (format!("jws-kubeconfig-{id}"), s)));
    }
    data.insert("kubeconfig".to_owned(), kubeconfig);
    let info =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": data});
    let api: Api<ConfigMap> = Api::namespaced(site.clone(), "kube-public");
    // Applying leaves out the signatures of tokens that are gone, and so removes them.
    api.patch("cluster-info", &PatchParams::apply(MANAGER).force(), &Patch::Apply(&info)).await.map(drop)
}

fn rights() -> Vec<Value> {
    const RBAC: &str = "rbac.authorization.k8s.io/v1";
    const GROUP: &str = "rbac.authorization.k8s.io";
    let subject = |kind: &str, name: &str| json!({"apiGroup": GROUP, "kind": kind, "name": name});
    let bound = |role: &str, groups: &[&str]| {
        let subjects: Vec<Value> = groups.iter().map(|name| subject("Group", name)).collect();
        json!({"apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": role},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}, "subjects": subjects})
    };
    let requests = json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
        "verbs": ["create", "get", "list", "watch"]}]);
    let tunnel = json!([{"nonResourceURLs": [names::NODE_TUNNEL_PATH], "verbs": ["get"]}]);
    let info = "tombolo:cluster-info";
    vec![
        json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": "tombolo:node-join"}, "rules": requests}),
        bound("tombolo:node-join", &[names::NODE_JOIN_GROUP, names::EXPIRED_NODE_GROUP]),
        json!({"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": "tombolo:node-tunnel"}, "rules": tunnel}),
        bound("tombolo:node-tunnel", &["system:nodes"]),
        json!({"apiVersion": RBAC, "kind": "Role", "metadata": {"name": info, "namespace": "kube-public"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]}]}),
        json!({"apiVersion": RBAC, "kind": "RoleBinding", "metadata": {"name": info, "namespace": "kube-public"},
            "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": info},
            "subjects": [subject("User", "system:anonymous"), subject("Group", "system:authenticated")]}),
    ]
}

async fn apply(site: &kube::Client, object: Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.clone().unwrap_or_default();
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &types.kind));
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(site.clone(), namespace, &resource),
        None => Api::all_with(site.clone(), &resource),
    };
    let name = object.metadata.name.clone().unwrap_or_default();
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object)).await?;
    Ok(())
}
