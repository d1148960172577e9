//! `tombolo support`: what a maintainer needs to understand a fault, in one file, with no secrets in it.
//!
//! Secrets and ConfigMaps are not read at all. Of everything else only what [`scrub`] lets through is packed.

mod scrub;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;

use super::check;
use crate::client::{Connected, Target};
use crate::fault::words;
use crate::up;

/// Objects that are packed. Never `Secret` or `ConfigMap`.
const KINDS: &[(&str, &str, &str)] = &[
    ("tombolo.dev", "v1alpha1", "Site"),
    ("tombolo.dev", "v1alpha1", "SiteGroup"),
    ("tombolo.dev", "v1alpha1", "Placement"),
    ("tombolo.dev", "v1alpha1", "Work"),
    ("", "v1", "Node"),
    ("", "v1", "Namespace"),
    ("", "v1", "Pod"),
    ("", "v1", "Service"),
    ("", "v1", "Event"),
    ("", "v1", "PersistentVolumeClaim"),
    ("apps", "v1", "Deployment"),
    ("apps", "v1", "ReplicaSet"),
    ("apps", "v1", "StatefulSet"),
    ("apps", "v1", "DaemonSet"),
    ("batch", "v1", "Job"),
    ("batch", "v1", "CronJob"),
    ("coordination.k8s.io", "v1", "Lease"),
    ("certificates.k8s.io", "v1", "CertificateSigningRequest"),
];
/// Of each log, so much from its end.
const LOG_BYTES: usize = 2 << 20;

/// Pack what a maintainer needs to understand a fault, without secrets
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo support\n  tombolo support --data-dir /var/lib/tombolo/site --file case-17.tar.gz\n\nSecrets and ConfigMaps are not read; values of variables, arguments and annotations, tokens, keys and\ncertificates are left out. Look into the file before you hand it on: names of your objects and log lines are in it."
)]
pub struct Args {
    /// The file to write
    #[arg(long, default_value = "tombolo-support.tar.gz", value_name = "FILE")]
    file: PathBuf,
    /// Folders whose logs are packed too; the fleet of `tombolo up`, if there is one, when left out
    #[arg(long = "data-dir", value_name = "DIR")]
    data_dirs: Vec<PathBuf>,
}

type Pack = tar::Builder<GzEncoder<fs::File>>;

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let file =
        fs::File::create(&args.file).with_context(|| format!("cannot write {}", args.file.display()))?;
    let mut pack = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    add(&mut pack, "version.txt", concat!("tombolo ", env!("CARGO_PKG_VERSION"), "\n"))?;
    machine(&mut pack)?;
    let default = PathBuf::from("/var/lib/tombolo");
    let findings = check::look(&[], args.data_dirs.first().unwrap_or(&default), target).await;
    add(&mut pack, "check.json", &scrub::text(&serde_json::to_string_pretty(&findings)?))?;
    match target.connect().await {
        Ok(connected) => cluster(&mut pack, &connected).await?,
        Err(error) => add(&mut pack, "cluster.txt", &format!("no cluster: {}\n", words(&error)))?,
    }
    let mut dirs = args.data_dirs.clone();
    if dirs.is_empty() && Path::new(up::DATA_DIR).exists() {
        dirs.push(up::DATA_DIR.into());
    }
    for dir in &dirs {
        logs(&mut pack, dir)?;
    }
    journal(&mut pack)?;
    pack.into_inner()?.finish()?.flush()?;
    println!(
        "{} is written; it has no secrets in it, but names of your objects: look into it before you hand it on",
        args.file.display()
    );
    Ok(())
}

fn add(pack: &mut Pack, name: &str, text: &str) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o600);
    header.set_cksum();
    pack.append_data(&mut header, format!("tombolo-support/{name}"), text.as_bytes())?;
    Ok(())
}

fn machine(pack: &mut Pack) -> Result<()> {
    for path in [
        "/etc/os-release",
        "/proc/version",
        "/proc/meminfo",
        "/proc/loadavg",
        "/proc/mounts",
        "/proc/net/dev",
        "/proc/uptime",
    ] {
        let text = fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
        add(pack, &format!("machine{path}"), &scrub::text(&text))?;
    }
    Ok(())
}

async fn cluster(pack: &mut Pack, connected: &Connected) -> Result<()> {
    for (group, version, kind) in KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = Api::all_with(connected.client.clone(), &resource);
        let text = match api.list(&ListParams::default()).await {
            Ok(list) => {
                let items = list.items.into_iter().filter_map(|item| serde_json::to_value(item).ok());
                let items: Vec<_> = items.map(scrub::object).collect();
                serde_json::to_string_pretty(&items)?
            }
            // A site has no Sites: that is told too, it is no fault.
            Err(error) => words(&error.into()),
        };
        add(pack, &format!("objects/{kind}.json"), &scrub::text(&text))?;
    }
    for path in ["/version", "/metrics", "/readyz?verbose"] {
        let request = http::Request::get(path).body(Vec::new())?;
        let text = match connected.client.request_text(request).await {
            Ok(text) => text,
            Err(error) => words(&error.into()),
        };
        let name = path.trim_start_matches('/').split('?').next().unwrap_or_default();
        add(pack, &format!("server/{name}.txt"), &scrub::text(&text))?;
    }
    Ok(())
}

/// The files named `log` of a folder and of those right below it. Nothing else is a log of ours: a store's segments, which
/// hold every Secret, end in `.log`, and the logs of containers are their owners'.
fn logs(pack: &mut Pack, dir: &Path) -> Result<()> {
    let folders = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).filter(|p| p.is_dir());
    for folder in std::iter::once(dir.to_owned()).chain(folders) {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.file_name().is_some_and(|name| name == "log") && path.is_file() {
                let bytes = fs::read(&path).unwrap_or_default();
                let tail = &bytes[bytes.len().saturating_sub(LOG_BYTES)..];
                add(pack, &format!("logs{}", path.display()), &scrub::text(&String::from_utf8_lossy(tail)))?;
            }
        }
    }
    Ok(())
}

fn journal(pack: &mut Pack) -> Result<()> {
    let output = Command::new("journalctl").args(["-u", "tombolo-*", "-n", "5000", "--no-pager"]).output();
    if let Ok(output) = output.as_ref().map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        && !output.is_empty()
    {
        add(pack, "logs/journal.txt", &scrub::text(&output))?;
    }
    Ok(())
}
