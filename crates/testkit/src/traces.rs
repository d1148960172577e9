//! What a node leaves on a machine, as somebody sees it who does not trust the node's own books.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tombolo_wan::Namespace;

use crate::{cargo_binary, wait_for};

/// Removes what a stopped `tombolo site --node` or `tombolo node` left running, and checks that all of it is gone.
/// `data` is the node's own folder (`<site>/node`).
pub fn wipe(data: &Path, space: Option<&Namespace>) -> Result<()> {
    let mut command = Command::new(cargo_binary("tombolo"));
    command.arg("wipe").arg("--data-dir").arg(data);
    command.args(space.iter().flat_map(|space| ["--netns", space.name()]));
    let output = command.output().context("could not start tombolo wipe")?;
    ensure!(output.status.success(), "tombolo wipe: {}", String::from_utf8_lossy(&output.stderr));
    // The kernel takes a moment to let go of namespaces whose last process ended.
    wait_for("nothing to be left of a node", std::time::Duration::from_secs(5), || {
        let data = data.to_owned();
        let left = match space {
            Some(space) => space.run(move || traces(&data))?,
            None => traces(&data),
        };
        ensure!(left.is_empty(), "{} left:\n{}", left.len(), left.join("\n"));
        Ok(())
    })
}

/// Everything of the node in a data folder that is to be found on this machine: processes, mounts, cgroups, and in the
/// calling thread's network namespace links, pod addresses and rules.
pub fn traces(data: &Path) -> Vec<String> {
    let folder = data.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let program = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        let own = entry.file_name().to_string_lossy() == std::process::id().to_string();
        if !own && (line.contains(&folder) || program.starts_with(data)) {
            found.push(format!("process {}: {line}", entry.file_name().to_string_lossy()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    // The folder itself may be a disk of its own.
    found.extend(
        points.filter(|p| *p != folder && Path::new(p).starts_with(data)).map(|p| format!("mount {p}")),
    );
    let Some(id) = identity(data) else { return found };
    found.extend(control_groups(data).iter().map(|group| format!("cgroup {}", group.display())));
    let lines = |program: &str, args: &[&str]| {
        let output =
            Command::new(program).args(args).output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let links = lines("ip", &["-o", "link"]);
    let ours = links.iter().filter(|link| link.contains(&id) || link.contains(": tmb"));
    // Without flags and state, which the kernel may settle much later.
    found.extend(ours.filter_map(|link| link.split(" <").next()).map(|link| format!("link {link}")));
    let tables = lines("nft", &["list", "tables"]);
    found.extend(tables.into_iter().filter(|table| table.contains(&id)).map(|t| format!("rules {t}")));
    found
}

/// The control groups of the node in a data folder; those of its pods are below each of them.
pub fn control_groups(data: &Path) -> Vec<PathBuf> {
    identity(data).map(|id| groups(Path::new("/sys/fs/cgroup"), &id).collect()).unwrap_or_default()
}

/// A node's control groups: one per controller in version 1, one at the root in version 2.
fn groups(root: &Path, id: &str) -> impl Iterator<Item = PathBuf> {
    let group = format!("tombolo-{id}");
    let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    hierarchies.chain([root.to_owned()]).map(move |path| path.join(&group)).filter(|path| path.exists())
}

fn identity(data: &Path) -> Option<String> {
    let identity: serde_json::Value = serde_json::from_slice(&fs::read(data.join("node.json")).ok()?).ok()?;
    Some(identity["id"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_are_found_in_both_versions() {
        let dir = tempfile::tempdir().expect("folder");
        let one = |path: &str| {
            fs::create_dir_all(dir.path().join(path)).expect("folder");
            groups(dir.path(), "x").count()
        };
        assert_eq!(one("memory/tombolo-y"), 0);
        assert_eq!(one("memory/tombolo-x"), 1);
        assert_eq!(one("tombolo-x/pod"), 2);
    }
}
