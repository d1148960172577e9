//! The network of pods that another runtime makes: it asks the plugins that its CNI configuration names. Where the
//! machine has none, ours ties pods to the node's own bridge.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tombolo_net::Subnet;

use crate::runtime::RuntimeError;

const FILE: &str = "10-tombolo.conflist";

/// Where the runtime looks for its CNI configuration, as its verbose status says.
pub(super) fn folder(config: &Value) -> PathBuf {
    let named = config["cni"]["confDir"].as_str().filter(|dir| !dir.is_empty());
    named.map_or_else(|| PathBuf::from("/etc/cni/net.d"), PathBuf::from)
}

fn configuration(bridge: &str, subnet: Subnet, data: &Path) -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "tombolo",
        "plugins": [{
            "type": "bridge",
            "bridge": bridge,
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": data,
                "ranges": [[{"subnet": subnet.to_string(), "gateway": subnet.gateway().to_string()}]],
                "routes": [{"dst": "0.0.0.0/0"}]
            }
        }]
    })
}

/// Writes our configuration, with which addresses are remembered in `data`, unless the machine has one that is not ours.
pub(super) fn configure(
    folder: &Path,
    bridge: &str,
    subnet: Subnet,
    data: &Path,
) -> Result<(), RuntimeError> {
    fs::create_dir_all(folder).map_err(RuntimeError::io(format!("CNI folder {}", folder.display())))?;
    let entries =
        fs::read_dir(folder).map_err(RuntimeError::io(format!("CNI folder {}", folder.display())))?;
    let others =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).any(|name| {
            let known = [".conf", ".conflist", ".json"].iter().any(|end| name.ends_with(end));
            known && name != FILE
        });
    let (file, wanted) = (folder.join(FILE), format!("{:#}\n", configuration(bridge, subnet, data)));
    if others || fs::read_to_string(&file).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    crate::disk::replace(&file, wanted.as_bytes(), 0o644)
        .map_err(RuntimeError::io(format!("CNI configuration {}", file.display())))
}

/// Takes our configuration away again, if it is the one for this bridge.
pub(super) fn forget(folder: &Path, bridge: &str) {
    let file = folder.join(FILE);
    if fs::read_to_string(&file).is_ok_and(|text| text.contains(&format!("\"{bridge}\""))) {
        let _ = fs::remove_file(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_a_network_of_its_own_keeps_it() {
        let dir = tempfile::tempdir().expect("folder");
        let subnet: Subnet = "10.1.2.0/24".parse().expect("subnet");
        configure(dir.path(), "tbr0", subnet, Path::new("/d")).expect("written");
        let text = fs::read_to_string(dir.path().join(FILE)).expect("file");
        assert!(text.contains("10.1.2.0/24") && text.contains("tbr0"), "{text}");
        forget(dir.path(), "tbr1");
        assert!(dir.path().join(FILE).exists(), "it is another node's");
        forget(dir.path(), "tbr0");
        assert!(!dir.path().join(FILE).exists());
        let other = tempfile::tempdir().expect("folder");
        fs::write(other.path().join("10-flannel.conflist"), "{}").expect("theirs");
        configure(other.path(), "tbr0", subnet, Path::new("/d")).expect("left alone");
        assert!(!other.path().join(FILE).exists());
    }

    #[test]
    fn the_folder_is_the_one_the_runtime_names() {
        assert_eq!(folder(&json!({"cni": {"confDir": "/x"}})), Path::new("/x"));
        assert_eq!(folder(&json!({})), Path::new("/etc/cni/net.d"));
    }
}
