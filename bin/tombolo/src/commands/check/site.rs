//! The cluster of the kubeconfig: whether it answers, its nodes and pods, certificates and clock.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};

use super::cluster::{SOON_DAYS, ahead, days_left, some};
use super::{Area, Finding};
use crate::client::Connected;
use crate::commands::join::{TIE_LABEL, Tie, fault_of, state_name, ties};
use crate::fault::words;

pub const ANSWERS: &str = "API server";
/// Certificates of sites are valid from five minutes before they were signed.
const MOST_SKEW: i64 = 120;

pub async fn look(cluster: &Connected) -> Vec<Finding> {
    let mut findings = match answers(cluster).await {
        Ok(found) => found,
        Err(error) => {
            let url = &cluster.config.cluster_url;
            let mend = "start it (systemctl status tombolo-hub tombolo-site), or use another kubeconfig";
            let found = format!("{url}: {}", words(&error));
            return vec![Finding::wrong(Area::Site, ANSWERS, found, mend)];
        }
    };
    findings.extend(own_certificate(cluster));
    findings.extend(nodes(cluster).await);
    findings.extend(pods(cluster).await);
    findings.extend(tied(cluster).await);
    findings
}

async fn answers(cluster: &Connected) -> anyhow::Result<Vec<Finding>> {
    let version = cluster.client.apiserver_version().await?;
    let request = http::Request::get("/readyz").body(kube::client::Body::empty())?;
    let answer = cluster.client.send(request).await?;
    let ready = if answer.status().is_success() {
        Finding::ok(Area::Site, ANSWERS, format!("{} is ready", version.git_version))
    } else {
        let mend = "kubectl get --raw '/readyz?verbose' names the part that is not";
        Finding::wrong(Area::Site, ANSWERS, format!("{}, but not ready", version.git_version), mend)
    };
    let date = answer.headers().get("date").and_then(|d| d.to_str().ok());
    let clock = date.and_then(|date| ahead(date, Timestamp::now())).map(|seconds| {
        if seconds.abs() <= MOST_SKEW {
            return Finding::ok(Area::Site, "its clock", "agrees with this machine's");
        }
        let found = format!("{seconds} s ahead of this machine's");
        Finding::wrong(
            Area::Site,
            "its clock",
            found,
            "set the time on the one that is wrong: chronyc makestep; then restart its processes",
        )
    });
    Ok(std::iter::once(ready).chain(clock).collect())
}

fn own_certificate(cluster: &Connected) -> Option<Finding> {
    let pem = cluster.config.auth_info.client_certificate_data.as_ref()?;
    let pem = k8s_openapi::serde_json::from_value::<k8s_openapi::ByteString>(pem.clone().into()).ok()?;
    let days = days_left(&pem.0, Timestamp::now())?;
    let found = format!("ends in {days} days");
    Some(if days > SOON_DAYS {
        Finding::ok(Area::Site, "your certificate", found)
    } else {
        let mend = "restart the hub or site: it writes a new admin.kubeconfig at every start";
        Finding::warning(Area::Site, "your certificate", found, mend)
    })
}

async fn nodes(cluster: &Connected) -> Option<Finding> {
    let nodes = Api::<Node>::all(cluster.client.clone()).list(&ListParams::default()).await.ok()?.items;
    let is_ready = |node: &Node| {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
    };
    let bad: Vec<_> = nodes.iter().filter(|n| !is_ready(n)).filter_map(|n| n.metadata.name.clone()).collect();
    Some(if nodes.is_empty() {
        let mend = "nothing can run: start a site with `--node`, or tie a site to this hub with `tombolo token create`";
        Finding::warning(Area::Site, "nodes", "none", mend)
    } else if bad.is_empty() {
        Finding::ok(Area::Site, "nodes", format!("{} ready", nodes.len()))
    } else {
        let mend =
            "kubectl describe node NAME tells why; at a hub, a node is a site: see `tombolo sites -o wide`";
        Finding::wrong(Area::Site, "nodes", format!("not ready: {}", some(&bad)), mend)
    })
}

async fn pods(cluster: &Connected) -> Option<Finding> {
    let pods = Api::<Pod>::all(cluster.client.clone()).list(&ListParams::default()).await.ok()?.items;
    let stuck = |pod: &&Pod| {
        let status = pod.status.clone().unwrap_or_default();
        let unscheduled = status.conditions.iter().flatten().any(|c| {
            c.type_ == "PodScheduled" && c.status == "False" && c.reason.as_deref() == Some("Unschedulable")
        });
        let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
        let failing =
            containers.filter_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.as_deref()).any(|reason| {
                // The others say that it starts: ContainerCreating, PodInitializing.
                reason.contains("BackOff")
                    || reason.starts_with("Err")
                    || reason.ends_with("Error")
                    || reason == "InvalidImageName"
            });
        unscheduled || failing
    };
    let name = |pod: &Pod| {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        format!("{}/{}", part(&pod.metadata.namespace), part(&pod.metadata.name))
    };
    let bad: Vec<_> = pods.iter().filter(stuck).map(name).collect();
    Some(if bad.is_empty() {
        Finding::ok(Area::Site, "pods", format!("{}, none stuck", pods.len()))
    } else {
        let mend = "kubectl describe pod NAME -n NAMESPACE; `tombolo logs pod/NAME -n NAMESPACE`";
        Finding::warning(Area::Site, "pods", format!("stuck: {}", some(&bad)), mend)
    })
}

/// The hubs that this site was asked to join, and how long its certificates there are good for.
async fn tied(cluster: &Connected) -> Vec<Finding> {
    let secrets = ties(&cluster.client);
    let Ok(list) = secrets.list(&ListParams::default().labels(TIE_LABEL)).await else { return Vec::new() };
    let mut findings = Vec::new();
    for (secret, tie) in list.items.iter().filter_map(|secret| Some((secret, Tie::from_secret(secret)?))) {
        if let Some(why) = fault_of(secret) {
            let found = format!("{}: {why}", tie.url);
            findings.push(Finding::wrong(
                Area::Site,
                "tie to a hub",
                found,
                "mend that, then `tombolo join` again",
            ));
            continue;
        }
        let state = secrets
            .get_opt(&state_name(&tie.url))
            .await
            .ok()
            .flatten()
            .and_then(|s| s.data)
            .unwrap_or_default();
        let days = state.get("tls.crt").and_then(|pem| days_left(&pem.0, Timestamp::now()));
        let rejoin = "at the hub: `tombolo sites remove NAME --keep` and `tombolo token create`; here: the `tombolo join` line it prints";
        findings.push(match days {
            None => Finding::wrong(
                Area::Site,
                "tie to a hub",
                format!("{} has not let this site in", tie.url),
                "the log of the site's process tells why; at the hub, `kubectl get csr` shows requests that wait for `tombolo sites approve`",
            ),
            Some(days) if days < 0 => {
                Finding::wrong(Area::Site, "tie to a hub", format!("the certificate for {} is over", tie.url), rejoin)
            }
            Some(days) if days < SOON_DAYS => Finding::warning(
                Area::Site,
                "tie to a hub",
                format!("the certificate for {} ends in {days} days and was not renewed", tie.url),
                "can the site reach the hub? The log of the site's process tells",
            ),
            Some(days) => Finding::ok(Area::Site, "tie to a hub", format!("{}, certificate good for {days} days", tie.url)),
        });
    }
    findings
}
