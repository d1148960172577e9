//! The Helm chart and the tool that installs it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use tombolo_testkit::Fixture;

/// The folder of the chart.
pub fn folder() -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/tombolo");
    path.display().to_string()
}

/// Runs Helm against a cluster; a failure is an error with what it printed.
pub fn helm(kubeconfig: &Path, args: &[&str]) -> Result<String> {
    let output = Command::new(Fixture::Helm.must())
        .args(args)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .env("HELM_CACHE_HOME", kubeconfig.with_extension("helm"))
        .output()?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "helm {}: {text}", args.join(" "));
    Ok(text)
}

/// What `tombolo token create` printed: `tombolo join URL --token T --ca-hash H`.
pub struct Ticket {
    pub url: String,
    pub token: String,
    pub ca_hash: String,
}

impl Ticket {
    pub fn read(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |flag: &str| words.iter().skip_while(|w| **w != flag).nth(1).map(|w| (*w).to_owned());
        let (token, ca_hash) = (after("--token").unwrap_or_default(), after("--ca-hash").unwrap_or_default());
        ensure!(words.len() > 6 && !token.is_empty() && !ca_hash.is_empty(), "no ticket: {line}");
        Ok(Self { url: words[2].to_owned(), token, ca_hash })
    }

    /// The values that tie a cluster called `name`.
    pub fn values(&self, name: &str) -> String {
        let Self { url, token, ca_hash } = self;
        format!(
            "agent.enabled=true,agent.hub={url},agent.token={token},agent.caHash={ca_hash},agent.name={name}"
        )
    }
}
