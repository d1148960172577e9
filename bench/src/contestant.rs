//! The two API servers, started the same way.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tombolo_testkit::{Tombolo, Upstream, UpstreamOptions};

use crate::fan_out::{Access, SERVER};

pub enum Contestant {
    Upstream(Box<Upstream>),
    Tombolo { server: Box<Tombolo>, _dir: tempfile::TempDir },
}

impl Contestant {
    /// Starts one and says how long it took until it was ready.
    pub fn start(name: &str) -> Result<(Self, Duration)> {
        let started = Instant::now();
        let contestant = if name == "upstream" {
            let options = UpstreamOptions { lift_limits: true, ..Default::default() };
            Self::Upstream(Box::new(Upstream::start_at(SERVER, &options)?))
        } else {
            let dir = tempfile::tempdir()?;
            let server = Tombolo::start("serve", dir.path(), &["--listen", &format!("{SERVER}:0")])?;
            Self::Tombolo { server: Box::new(server), _dir: dir }
        };
        Ok((contestant, started.elapsed()))
    }

    pub fn pids(&self) -> Vec<u32> {
        match self {
            Self::Upstream(upstream) => upstream.processes.iter().map(|p| p.pid()).collect(),
            Self::Tombolo { server, .. } => vec![server.process.pid()],
        }
    }

    pub fn kubeconfig(&self) -> &PathBuf {
        match self {
            Self::Upstream(upstream) => &upstream.kubeconfig,
            Self::Tombolo { server, .. } => &server.kubeconfig,
        }
    }

    /// A client with a connection of its own.
    pub async fn client(&self) -> Result<kube::Client> {
        let mut config = self.config().await?;
        config.read_timeout = Some(Duration::from_secs(120));
        Ok(kube::Client::try_from(config)?)
    }

    /// What a client without `kube` needs to know.
    pub async fn access(&self) -> Result<Access> {
        let config = self.config().await?;
        let url = &config.cluster_url;
        let address = format!("{}:{}", url.host().context("no host")?, url.port_u16().context("no port")?);
        let kubeconfig = serde_json::to_value(Kubeconfig::read_from(self.kubeconfig())?)?;
        let token = kubeconfig["users"][0]["user"]["token"].as_str().map(str::to_owned);
        Ok(Access { address, tls: Arc::new(config.rustls_client_config()?), token })
    }

    async fn config(&self) -> Result<kube::Config> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig())?;
        Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
    }
}
