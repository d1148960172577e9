//! `tombolo explain place`: for every site, why it was chosen or not, with numbers.

use anyhow::{Context, Result, bail};
use clap::Subcommand;

use crate::client::Target;

/// Say why things are where they are
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo explain place deploy/web")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Why an object runs at the sites it runs at
    #[command(after_help = "Example:\n  tombolo explain place deploy/web -n shop")]
    Place {
        /// KIND/NAME, such as deploy/web
        object: String,
        #[arg(short, long, default_value = "default")]
        namespace: String,
    },
}

/// The kinds people shorten, with what stands behind.
const KINDS: &[(&[&str], &str, &str)] = &[
    (&["deploy", "deployment", "deployments"], "apps/v1", "Deployment"),
    (&["sts", "statefulset", "statefulsets"], "apps/v1", "StatefulSet"),
    (&["ds", "daemonset", "daemonsets"], "apps/v1", "DaemonSet"),
    (&["rs", "replicaset", "replicasets"], "apps/v1", "ReplicaSet"),
    (&["job", "jobs"], "batch/v1", "Job"),
    (&["cj", "cronjob", "cronjobs"], "batch/v1", "CronJob"),
    (&["po", "pod", "pods"], "v1", "Pod"),
    (&["svc", "service", "services"], "v1", "Service"),
    (&["cm", "configmap", "configmaps"], "v1", "ConfigMap"),
    (&["secret", "secrets"], "v1", "Secret"),
];
/// What the hub takes for lost; only the wording of silent sites depends on it.
const LEASE_SECONDS: i64 = 40;

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let What::Place { object, namespace } = args.what;
    let Some((kind, name)) = object.split_once('/') else {
        bail!("{object:?} names no object; write KIND/NAME, such as deploy/web");
    };
    let Some((_, version, kind)) =
        KINDS.iter().find(|(names, ..)| names.contains(&kind.to_lowercase().as_str()))
    else {
        let known: Vec<_> = KINDS.iter().map(|(names, ..)| names[0]).collect();
        bail!("no kind {kind:?} is known here; one of {}", known.join(", "));
    };
    let client = target.connect().await?.client;
    let text = tombolo_fleet::explain(&client, version, kind, &namespace, name, LEASE_SECONDS)
        .await
        .with_context(|| format!("cannot explain {kind} {name} in namespace {namespace}"))?;
    print!("{text}");
    Ok(())
}
