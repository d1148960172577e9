//! Pods on the network of a cluster's own plugins (CNI), for a node that joins an existing Kubernetes.
//!
//! The cluster's network daemon puts a configuration into a folder and programs into another; the first configuration
//! in the order of file names counts. It is read again for every pod, because it usually arrives after the node.
//! What a pod was given is kept on disk until the pod is gone: a later configuration must not change how it is undone.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// A plugin that does not end by then is killed, and the pod's start is tried again.
const PATIENCE: Duration = Duration::from_secs(30);
const POD_LINK: &str = "eth0";

#[derive(Debug, Error)]
pub enum CniError {
    #[error(
        "no network configuration in {0}: the cluster's network plugin puts one there; see whether its pod runs on this node"
    )]
    NoConfiguration(PathBuf),
    #[error("network configuration {path}: {reason}")]
    Configuration { path: PathBuf, reason: String },
    #[error("network plugin {plugin} is in none of {searched:?}: install it there")]
    NoPlugin { plugin: String, searched: Vec<PathBuf> },
    #[error("network plugin {plugin} ({command}): {reason}")]
    Plugin { plugin: String, command: &'static str, reason: String },
    #[error("network {0} gave the pod no IPv4 address")]
    NoAddress(String),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

/// A pod as plugins know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodIdentity {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// The plugins of a cluster on this node.
#[derive(Clone, Debug)]
pub struct Plugins {
    configurations: PathBuf,
    programs: Vec<PathBuf>,
    /// One file per attached pod.
    attached: PathBuf,
}

/// A chain of plugins, as one file configures it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Chain {
    name: String,
    version: String,
    plugins: Vec<Value>,
}

/// What is needed to undo an attachment.
#[derive(Serialize, Deserialize)]
struct Attached {
    chain: Chain,
    programs: Vec<PathBuf>,
    pod: PodIdentity,
    /// Absent while the chain runs: a pod whose attachment was interrupted is undone like any other.
    result: Option<Value>,
}

impl Plugins {
    pub fn new(configurations: &Path, programs: &[PathBuf], attached: &Path) -> Plugins {
        Plugins {
            configurations: configurations.to_owned(),
            programs: programs.to_owned(),
            attached: attached.to_owned(),
        }
    }

    /// Whether the cluster's network is there; the node is not ready before.
    pub fn ready(&self) -> Result<(), CniError> {
        let chain = self.chain()?;
        chain.plugins.iter().try_for_each(|plugin| self.program(kind(plugin)).map(drop))
    }

    /// Connects the network namespace of process `pid` and says the pod's address.
    pub async fn attach(&self, pod: &PodIdentity, pid: u32) -> Result<Ipv4Addr, CniError> {
        self.detach(&pod.uid, None).await?;
        let chain = self.chain()?;
        let mut attached =
            Attached { chain, programs: self.programs.clone(), pod: pod.clone(), result: None };
        self.remember(&attached)?;
        let namespace = format!("/proc/{pid}/ns/net");
        for plugin in &attached.chain.plugins {
            let input = attached.chain.input(plugin, attached.result.as_ref());
            let output = self.run("ADD", plugin, input, pod, &namespace).await?;
            attached.result = Some(output);
        }
        self.remember(&attached)?;
        let address = attached.result.as_ref().and_then(address);
        address.ok_or_else(|| CniError::NoAddress(attached.chain.name.clone()))
    }

    /// Undoes what [`Plugins::attach`] did, in the opposite order; nothing when it did nothing. `pid` is the pod's
    /// process while it lives: a number that may belong to another process by now must not be given.
    pub async fn detach(&self, uid: &str, pid: Option<u32>) -> Result<(), CniError> {
        let path = self.file(uid);
        let attached: Attached = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| CniError::Configuration { path: path.clone(), reason: error.to_string() })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(CniError::Io { what: format!("read {}", path.display()), source }),
        };
        let namespace = pid.map(|pid| format!("/proc/{pid}/ns/net")).unwrap_or_default();
        let then = Plugins { programs: attached.programs.clone(), ..self.clone() };
        for plugin in attached.chain.plugins.iter().rev() {
            let input = attached.chain.input(plugin, attached.result.as_ref());
            then.run("DEL", plugin, input, &attached.pod, &namespace).await?;
        }
        fs::remove_file(&path)
            .map_err(|source| CniError::Io { what: format!("remove {}", path.display()), source })
    }

    /// Undoes everything that was done with this folder of attachments; the pods' processes are gone.
    pub async fn detach_all(attached: &Path) -> Result<(), CniError> {
        let plugins = Plugins::new(Path::new(""), &[], attached);
        for uid in plugins.attached() {
            plugins.detach(&uid, None).await?;
        }
        Ok(())
    }

    /// The pods that are attached, as far as the disk knows.
    pub fn attached(&self) -> Vec<String> {
        let files = fs::read_dir(&self.attached).into_iter().flatten().flatten();
        files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".json")?.to_owned())).collect()
    }

    fn chain(&self) -> Result<Chain, CniError> {
        let mut files: Vec<PathBuf> = fs::read_dir(&self.configurations)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| matches!(extension(path), "conflist" | "conf" | "json"))
            .collect();
        files.sort();
        let path = files.first().ok_or_else(|| CniError::NoConfiguration(self.configurations.clone()))?;
        let wrong = |reason: String| CniError::Configuration { path: path.clone(), reason };
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Chain::parse(&text).map_err(wrong)
    }

    fn program(&self, plugin: &str) -> Result<PathBuf, CniError> {
        let found = self.programs.iter().map(|folder| folder.join(plugin)).find(|path| path.is_file());
        found.ok_or_else(|| CniError::NoPlugin { plugin: plugin.to_owned(), searched: self.programs.clone() })
    }

    fn file(&self, uid: &str) -> PathBuf {
        self.attached.join(format!("{uid}.json"))
    }

    fn remember(&self, attached: &Attached) -> Result<(), CniError> {
        let path = self.file(&attached.pod.uid);
        let bytes = serde_json::to_vec(attached).expect("maps with text keys");
        let draft = path.with_extension("draft");
        fs::create_dir_all(&self.attached)
            .and_then(|()| fs::write(&draft, bytes))
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(|source| CniError::Io { what: format!("write {}", path.display()), source })
    }

    async fn run(
        &self,
        command: &'static str,
        plugin: &Value,
        input: Value,
        pod: &PodIdentity,
        namespace: &str,
    ) -> Result<Value, CniError> {
        let program = self.program(kind(plugin))?;
        let failed = |reason: String| CniError::Plugin { plugin: kind(plugin).to_owned(), command, reason };
        let search = std::env::join_paths(&self.programs).map_err(|error| failed(error.to_string()))?;
        let mut child = Command::new(program)
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &pod.uid)
            .env("CNI_NETNS", namespace)
            .env("CNI_IFNAME", POD_LINK)
            .env("CNI_ARGS", arguments(pod))
            .env("CNI_PATH", search)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let text = input.to_string();
        let talk = async {
            // A plugin that fails early need not read all of it; what it says counts then.
            let _ = stdin.write_all(text.as_bytes()).await;
            drop(stdin);
            child.wait_with_output().await
        };
        let output = match tokio::time::timeout(PATIENCE, talk).await {
            Err(_) => return Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Ok(Ok(output)) => output,
        };
        let answer: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        if output.status.success() {
            return Ok(answer.unwrap_or(Value::Null));
        }
        Err(failed(complaint(answer.as_ref(), &output.stderr, output.status)))
    }
}

impl Chain {
    /// A file is a list of plugins, or one plugin by itself.
    fn parse(text: &str) -> Result<Chain, String> {
        let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let said = |field: &str| file[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let plugins = match file["plugins"].as_array() {
            Some(plugins) => plugins.clone(),
            None => vec![file.clone()],
        };
        if plugins.is_empty() || plugins.iter().any(|plugin| kind(plugin).is_empty()) {
            return Err("every plugin needs a \"type\", and there must be one".into());
        }
        // The name of a program, not a way through the file system.
        if let Some(plugin) = plugins.iter().find(|plugin| kind(plugin).contains('/')) {
            return Err(format!("type {:?} is not the name of a program", kind(plugin)));
        }
        Ok(Chain {
            name: said("name").ok_or("it has no \"name\"")?,
            version: said("cniVersion").unwrap_or_else(|| "0.2.0".into()),
            plugins,
        })
    }

    /// What one plugin of the chain reads: its own part, the chain's name and version, and what was done before it.
    fn input(&self, plugin: &Value, before: Option<&Value>) -> Value {
        let mut input = plugin.clone();
        input["name"] = json!(self.name);
        input["cniVersion"] = json!(self.version);
        if let Some(before) = before {
            input["prevResult"] = before.clone();
        }
        input
    }
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

fn kind(plugin: &Value) -> &str {
    plugin["type"].as_str().unwrap_or_default()
}

fn arguments(pod: &PodIdentity) -> String {
    let PodIdentity { uid, namespace, name } = pod;
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={uid};K8S_POD_UID={uid}"
    )
}

/// The pod's first IPv4 address, in the form of version 0.3 and later (`ips`) or of 0.2 (`ip4`).
fn address(result: &Value) -> Option<Ipv4Addr> {
    let listed = result["ips"].as_array().into_iter().flatten().filter_map(|ip| ip["address"].as_str());
    let mut all = listed.chain(result["ip4"]["ip"].as_str());
    all.find_map(|text| text.split('/').next()?.parse().ok())
}

fn complaint(answer: Option<&Value>, stderr: &[u8], status: std::process::ExitStatus) -> String {
    let said = |field: &str| answer.and_then(|answer| answer[field].as_str()).filter(|text| !text.is_empty());
    match (said("msg"), said("details")) {
        (Some(message), Some(details)) => format!("{message}: {details}"),
        (Some(message), None) => message.to_owned(),
        _ if !stderr.is_empty() => String::from_utf8_lossy(stderr).trim().to_owned(),
        _ => format!("it ended with {status} and said nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_chain_or_one_plugin() {
        let chain = Chain::parse(
            r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"},{"type":"portmap"}]}"#,
        );
        let chain = chain.expect("a chain");
        assert_eq!(chain.plugins.len(), 2);
        let one = Chain::parse(r#"{"name":"net","type":"ptp","mtu":1400}"#).expect("one plugin");
        assert_eq!((one.version.as_str(), kind(&one.plugins[0])), ("0.2.0", "ptp"));
    }

    #[test]
    fn a_plugin_reads_its_part_the_name_and_what_was_done_before_it() {
        let chain = Chain { name: "net".into(), version: "1.0.0".into(), plugins: vec![] };
        let input = chain.input(&json!({"type": "portmap", "snat": true}), Some(&json!({"ips": []})));
        let expected = json!({
            "type": "portmap", "snat": true, "name": "net", "cniVersion": "1.0.0", "prevResult": {"ips": []}
        });
        assert_eq!(input, expected);
    }

    #[test]
    fn addresses_are_found_in_old_and_new_results() {
        let new = json!({"ips": [{"address": "fd00::2/64"}, {"address": "10.1.2.3/24"}]});
        assert_eq!(address(&new), Some(Ipv4Addr::new(10, 1, 2, 3)));
        assert_eq!(address(&json!({"ip4": {"ip": "10.9.0.4/16"}})), Some(Ipv4Addr::new(10, 9, 0, 4)));
        assert_eq!(address(&json!({"ips": []})), None);
    }

    #[test]
    fn what_cannot_be_a_configuration_is_refused_with_a_reason() {
        for (text, reason) in [
            ("{", "EOF"),
            ("{}", "type"),
            (r#"{"name":"n","plugins":[]}"#, "type"),
            (r#"{"plugins":[{"type":"bridge"}]}"#, "name"),
            (r#"{"name":"n","plugins":[{"type":"../../bin/sh"}]}"#, "not the name of a program"),
        ] {
            let refused = Chain::parse(text).expect_err(text);
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }
}
