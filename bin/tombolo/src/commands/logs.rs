//! `tombolo logs`: what all pods of an object say, at whichever sites they are.

use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use futures::io::AsyncBufReadExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, LogParams};
use kube::core::GroupVersionKind;

use crate::client::Target;
use crate::kinds;

/// Lines that wait while the terminal is slow; past that the slowest reader sets the pace.
const WAITING: usize = 256;

/// Print the logs of all pods of an object, wherever they run
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo logs deploy/hello\n  tombolo logs deploy/hello --site edge-1 -f\n  tombolo logs pod/hello-7d9.edge-1 --tail 20"
)]
pub struct Args {
    /// KIND/NAME, such as deploy/web
    object: String,
    /// Namespace of the object; that of the context if left out
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Only pods at this site
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
    /// Only this container; all of a pod if left out
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Go on as new lines come
    #[arg(short, long)]
    follow: bool,
    /// So many lines from the end of each log
    #[arg(long, value_name = "LINES", default_value_t = 10)]
    tail: i64,
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let connected = target.connect().await?;
    let namespace = args.namespace.clone().unwrap_or(connected.config.default_namespace.clone());
    let api: Api<Pod> = Api::namespaced(connected.client.clone(), &namespace);
    let mut pods = find(&connected.client, &api, &namespace, &args.object).await?;
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.node_name.clone());
    pods.retain(|pod| args.site.is_none() || node(pod) == args.site);
    let sources = sources(&pods, args.container.as_deref());
    if sources.is_empty() {
        let wanted = |what: &str, name: &Option<String>| {
            name.as_ref().map(|name| format!(" with {what} {name}")).unwrap_or_default()
        };
        bail!(
            "no pod of {}{}{} in namespace {namespace}; `tombolo place -n {namespace}` shows what runs where",
            args.object,
            wanted("site", &args.site),
            wanted("container", &args.container),
        );
    }
    let several = sources.len() > 1;
    let (lines, mut print) = tokio::sync::mpsc::channel::<String>(WAITING);
    for (pod, container) in sources {
        let params = LogParams {
            container: Some(container.clone()),
            follow: args.follow,
            tail_lines: Some(args.tail),
            ..Default::default()
        };
        let (api, lines) = (api.clone(), lines.clone());
        let prefix = if several { format!("{pod}/{container}  ") } else { String::new() };
        tokio::spawn(async move {
            let outcome = async {
                let mut log = api.log_stream(&pod, &params).await?.lines();
                while let Some(line) = log.try_next().await? {
                    if lines.send(format!("{prefix}{line}")).await.is_err() {
                        break;
                    }
                }
                anyhow::Ok(())
            };
            if let Err(error) = outcome.await {
                let _ = lines.send(format!("{prefix}({})", crate::fault::words(&error))).await;
            }
        });
    }
    drop(lines);
    while let Some(line) = print.recv().await {
        println!("{line}");
    }
    Ok(())
}

async fn find(client: &kube::Client, api: &Api<Pod>, namespace: &str, object: &str) -> Result<Vec<Pod>> {
    let (kind, name) = kinds::parse(object)?;
    if kind.name == "Pod" {
        let pod = api.get_opt(name).await?;
        return Ok(vec![pod.with_context(|| missing(object, namespace))?]);
    }
    let resource = ApiResource::from_gvk(&GroupVersionKind::from(kind));
    let owners: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let owner = owners.get_opt(name).await?;
    let owner = owner.with_context(|| missing(object, namespace))?;
    let selector = owner.data.pointer("/spec/selector").cloned().unwrap_or_default();
    let labels = selector.get("matchLabels").unwrap_or(&selector);
    let labels: Vec<_> = labels
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
        .collect();
    if labels.is_empty() {
        bail!("{object} selects no pods; name what runs them, such as deploy/web, or one pod: pod/NAME");
    }
    Ok(api.list(&ListParams::default().labels(&labels.join(","))).await?.items)
}

fn missing(object: &str, namespace: &str) -> String {
    format!(
        "no {object} in namespace {namespace}; name another with -n, or `kubectl get all -A` shows what there is"
    )
}

/// Pod and container of every log that can be read.
fn sources(pods: &[Pod], only: Option<&str>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for pod in pods {
        let Some(name) = pod.metadata.name.clone() else { continue };
        for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
            if only.is_none_or(|wanted| wanted == container.name) {
                found.push((name.clone(), container.name.clone()));
            }
        }
    }
    found.sort();
    found
}
