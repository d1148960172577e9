//! Which API server a client command talks to: flags first, then the environment, then the sample fleet or the pod's own cluster.

use std::path::PathBuf;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};

/// The flags kubectl users expect.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Target {
    /// Path of the kubeconfig; else KUBECONFIG, else ~/.kube/config, else the fleet of `tombolo up`
    #[arg(long, global = true, value_name = "FILE", help_heading = "Which cluster")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME", help_heading = "Which cluster")]
    pub context: Option<String>,
}

/// A client, and what the kubeconfig said.
pub struct Connected {
    pub client: kube::Client,
    pub config: kube::Config,
}

/// Says that a cluster is no hub, where that is why it does not know what was asked for.
pub fn only_at_a_hub(error: kube::Error) -> anyhow::Error {
    let unknown = matches!(&error, kube::Error::Api(status) if status.code == 404);
    let error = anyhow::Error::from(error);
    if unknown { error.context("this cluster is no hub; give the kubeconfig of one") } else { error }
}

impl Target {
    /// Whether the user named no cluster at all.
    pub fn is_default(&self) -> bool {
        self.kubeconfig.is_none() && self.context.is_none() && std::env::var_os("KUBECONFIG").is_none()
    }

    pub async fn connect(&self) -> Result<Connected> {
        let config = self.config().await?;
        let client = kube::Client::try_from(config.clone()).context("the kubeconfig cannot be used")?;
        Ok(Connected { client, config })
    }

    async fn config(&self) -> Result<kube::Config> {
        let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        let path = self.kubeconfig.clone().or_else(sample_fleet);
        let kubeconfig = match &path {
            Some(path) => {
                Kubeconfig::read_from(path).with_context(|| format!("cannot read the kubeconfig {}", path.display()))?
            }
            None if in_cluster() => {
                return kube::Config::incluster().context("this pod's service account cannot be used");
            }
            None => from_environment()
                .context("no kubeconfig: give one with --kubeconfig or KUBECONFIG, or start a sample fleet with `tombolo up`")?,
        };
        kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .context("the kubeconfig cannot be used")
    }
}

/// The files of `KUBECONFIG` as one, as kubectl takes them: what is not there does not count, and the first word does.
fn from_environment() -> Result<Kubeconfig> {
    let Some(list) = std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) else {
        return Ok(Kubeconfig::read()?);
    };
    let mut merged: Option<Kubeconfig> = None;
    for path in std::env::split_paths(&list).filter(|path| path.exists()) {
        let next = Kubeconfig::read_from(&path)
            .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
        merged = Some(match merged {
            Some(first) => first.merge(next)?,
            None => next,
        });
    }
    merged.with_context(|| format!("KUBECONFIG is {}, and no such file is there", list.to_string_lossy()))
}

/// Whether this is a pod, and nobody named another cluster.
fn in_cluster() -> bool {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
        && std::env::var_os("KUBECONFIG").is_none()
        && !home.is_some_and(|home| home.join(".kube/config").exists())
}

/// The hub of `tombolo up`, when it is there and the user named nothing else.
fn sample_fleet() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let named =
        std::env::var_os("KUBECONFIG").is_some() || home.is_some_and(|h| h.join(".kube/config").exists());
    let hub = PathBuf::from(crate::up::DATA_DIR).join("hub/admin.kubeconfig");
    (!named && hub.exists()).then_some(hub)
}
