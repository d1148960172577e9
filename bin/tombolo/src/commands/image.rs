//! `tombolo image`: the images of a node on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde_json::json;
use tombolo_node::image::Store;

use crate::output::{Output, Table, bytes};
use crate::registries::RegistryArgs;
use crate::up::progress::{Line, ticking};

/// Import, pull, list and remove the images of a node on this machine
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo image import app.tar --data-dir /var/lib/tombolo/site\n  tombolo image list --data-dir /var/lib/tombolo/site"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    /// The data folder of the site or node
    #[arg(long, global = true, default_value = "/var/lib/tombolo/site", value_name = "DIR")]
    data_dir: PathBuf,
}

#[derive(Subcommand)]
enum Action {
    /// Add the images of an OCI or Docker archive
    #[command(after_help = "Example:\n  tombolo image import app.tar --name example.com/app:1")]
    Import {
        /// The archive, as `docker save` or `podman save` write it
        file: PathBuf,
        /// Call the image this, whatever the archive says
        #[arg(long)]
        name: Option<String>,
    },
    /// Fetch an image from its registry
    #[command(after_help = "Example:\n  tombolo image pull docker.io/library/nginx:1.27")]
    Pull {
        /// The image, such as docker.io/library/nginx:1.27
        reference: String,
        #[command(flatten)]
        registries: RegistryArgs,
    },
    /// Show the images
    #[command(after_help = "Example:\n  tombolo image list -o json")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Remove an image
    #[command(visible_alias = "rm", after_help = "Example:\n  tombolo image remove example.com/app:1")]
    Remove {
        /// The image, by name or id
        reference: String,
    },
}

pub async fn run(args: Args) -> Result<()> {
    let store = open(&args.data_dir)?;
    match args.action {
        Action::Import { file, name } => {
            let added = store
                .import(&file, name.as_deref())
                .with_context(|| format!("cannot import {}", file.display()))?;
            for (image, names) in added {
                println!("{} {}", names.join(" "), image.id);
            }
        }
        Action::Pull { reference, registries } => {
            let registries = registries.registries()?;
            let line = Line::new(format!("pulling {reference}"));
            let image = ticking(&line, registries.pull(&store, &reference, &[])).await.with_context(|| {
                format!("cannot pull {reference}; without a registry, `tombolo image import FILE` takes an archive")
            })?;
            println!("{reference} {}", image.id);
        }
        Action::List { output } => {
            let mut table = Table::new(&["IMAGE", "ID", "SIZE"], 3);
            let found = store.list();
            for (image, names) in &found {
                let id: String = image.id.trim_start_matches("sha256:").chars().take(12).collect();
                table.row(vec![names.join(" "), id, bytes(i64::try_from(image.size).unwrap_or(i64::MAX))]);
            }
            let rows: Vec<_> = found
                .iter()
                .map(|(image, names)| json!({"names": names, "id": image.id, "size": image.size}))
                .collect();
            output.rows(&table, &rows, |row| row["id"].as_str().unwrap_or_default().to_owned())?;
        }
        Action::Remove { reference } => {
            store.remove(&reference)?;
            println!("{reference} removed");
        }
    }
    Ok(())
}

/// A site keeps its node below its own folder; a node on its own is the folder.
fn open(dir: &Path) -> Result<Arc<Store>> {
    let candidates = [dir.join("node/images"), dir.join("images")];
    let Some(root) = candidates.iter().find(|path| path.is_dir()) else {
        bail!(
            "no node has run in {}; start one with `tombolo site --node`, or give another --data-dir",
            dir.display()
        );
    };
    Ok(Arc::new(Store::open(root)?))
}
