//! How registries are reached: the options that `site`, `node` and `image pull` share.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tombolo_node::RuntimeChoice;
use tombolo_node::image::Registries;

#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Registries")]
pub struct RegistryArgs {
    /// Ask this address before the registry (docker.io=https://mirror.example:5000); several of one registry are asked in order
    #[arg(long = "registry-mirror", value_name = "REGISTRY=URL", value_parser = mirror)]
    mirrors: Vec<(String, String)>,
    /// Trust the certificate authorities in this file (PEM) too
    #[arg(long = "registry-ca", value_name = "FILE")]
    authorities: Vec<PathBuf>,
    /// Speak to this registry without TLS
    #[arg(long = "registry-insecure", value_name = "REGISTRY")]
    insecure: Vec<String>,
}

impl RegistryArgs {
    pub fn registries(&self) -> Result<Registries> {
        let mut registries = Registries { insecure: self.insecure.clone(), ..Default::default() };
        for (registry, url) in &self.mirrors {
            registries.mirrors.entry(registry.clone()).or_default().push(url.clone());
        }
        for file in &self.authorities {
            let pem = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read --registry-ca {}", file.display()))?;
            let found = pem.contains("-----BEGIN CERTIFICATE-----");
            ensure!(found, "--registry-ca {} holds no certificate in PEM", file.display());
            registries.authorities.push(pem);
        }
        Ok(registries)
    }

    /// The same for a node with this runtime: one of its own pulls images in its own ways.
    pub fn registries_for(&self, runtime: &RuntimeChoice) -> Result<Registries> {
        let registries = self.registries()?;
        ensure!(
            matches!(runtime, RuntimeChoice::Embedded) || registries == Registries::default(),
            "with --runtime cri=SOCKET the runtime pulls images: set up its registries there (for containerd in /etc/containerd/certs.d)"
        );
        Ok(registries)
    }
}

fn mirror(text: &str) -> Result<(String, String), String> {
    let (registry, url) = text.split_once('=').ok_or("write REGISTRY=URL")?;
    let is_address = url.starts_with("https://") || url.starts_with("http://");
    if registry.is_empty() || !is_address {
        return Err(
            "write REGISTRY=URL with an https:// address, such as docker.io=https://mirror.example:5000"
                .into(),
        );
    }
    Ok((registry.to_owned(), url.trim_end_matches('/').to_owned()))
}
