//! One process at a time on a node's data folder: the node that runs there, or whoever takes away what it left.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::config::NodeError;

const FILE: &str = "LOCK";
/// A process that was just killed is gone after a moment.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// Holds the folder for as long as it is not dropped; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the folder, which must exist, and notes who has it.
    pub async fn take(data_dir: &Path) -> Result<Self, NodeError> {
        let path = data_dir.join(FILE);
        let io = |source| NodeError::Io { what: "cannot lock", path: path.clone(), source };
        let open = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
        let mut file = open.map_err(io)?;
        let give_up = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(io(source)),
                Err(TryLockError::WouldBlock) if Instant::now() < give_up => tokio::time::sleep(LOOK).await,
                Err(TryLockError::WouldBlock) => {
                    let mut text = String::new();
                    let _ = file.read_to_string(&mut text);
                    return Err(running(data_dir, text.trim().parse().ok()));
                }
            }
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(io)?;
        Ok(Self { _file: file })
    }
}

fn running(data_dir: &Path, pid: Option<u32>) -> NodeError {
    let path = data_dir.to_owned();
    let Some(pid) = pid else {
        return NodeError::Running { path, what: "another process".into(), stop: "end it".into() };
    };
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let name = command(&read("cmdline")).unwrap_or_else(|| "a process".into());
    let unit = unit(&read("cgroup")).filter(|_| is_systemds(&read("stat"))).map(str::to_owned);
    let stop = unit.map_or_else(|| format!("`kill {pid}`"), |unit| format!("`systemctl stop {unit}`"));
    NodeError::Running { path, what: format!("`{name}`, process {pid}"), stop }
}

/// The program and its command, `tombolo site`.
fn command(cmdline: &str) -> Option<String> {
    let mut words = cmdline.split('\0').filter(|word| !word.is_empty());
    let program = Path::new(words.next()?).file_name()?.to_str()?.to_owned();
    let word = words.next().filter(|word| !word.starts_with('-'));
    Some(word.map_or_else(|| program.clone(), |word| format!("{program} {word}")))
}

/// The service that a process belongs to, by its `/proc/PID/cgroup`.
fn unit(cgroup: &str) -> Option<&str> {
    let mut paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.find_map(|path| path.strip_prefix("/system.slice/")?.split('/').next()?.strip_suffix(".service"))
}

/// Whether systemd started the process itself, by its `/proc/PID/stat`. What a service's processes started may be anything.
fn is_systemds(stat: &str) -> bool {
    // The name in the second field may hold blanks and brackets.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().nth(1) == Some("1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Node;
    use crate::identity::Identity;

    #[tokio::test]
    async fn a_folder_has_one_user_until_it_lets_go() {
        let dir = tempfile::tempdir().expect("folder");
        let held = Lock::take(dir.path()).await.expect("free");
        let refused = Lock::take(dir.path()).await.expect_err("taken").to_string();
        assert!(refused.contains(&format!("kill {}`", std::process::id())), "{refused}");
        assert!(!refused.contains('\n'), "{refused}");
        drop(held);
        Lock::take(dir.path()).await.expect("free again");
    }

    #[tokio::test]
    async fn nothing_is_taken_away_from_under_a_node_that_runs() {
        let dir = tempfile::tempdir().expect("folder");
        Identity::open(dir.path(), "a").expect("a node's folder");
        let pod = dir.path().join("pods/uid");
        fs::create_dir_all(&pod).expect("folder");
        let _node = Lock::take(dir.path()).await.expect("free");
        let refused = Node::destroy(dir.path()).await;
        assert!(matches!(refused, Err(NodeError::Running { .. })), "{refused:?}");
        assert!(pod.exists());
    }

    #[test]
    fn a_process_is_named_by_its_command_and_stopped_by_whoever_started_it() {
        assert_eq!(command("/usr/bin/tombolo\0site\0--node\0").as_deref(), Some("tombolo site"));
        assert_eq!(command("tombolo\0--help\0").as_deref(), Some("tombolo"));
        assert_eq!(command(""), None);
        assert_eq!(unit("0::/system.slice/tombolo-site.service\n"), Some("tombolo-site"));
        assert_eq!(unit("1:name=systemd:/system.slice/a.service/sub\n0::/\n"), Some("a"));
        assert_eq!(unit("0::/user.slice/user-0.slice/session-3.scope\n"), None);
        assert!(is_systemds("42 (a (b) c) S 1 42 42 0"));
        assert!(!is_systemds("42 (tombolo) S 77 42 42 0"));
    }
}
