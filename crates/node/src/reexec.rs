//! What our own binary does when it is started again to make a container.
//!
//! The node has many threads, and a process with threads must not enter namespaces or clone itself. So the pod's
//! shim starts the binary anew as `container-create DIR`, and the node starts it as `container-exec DIR PROCESS`;
//! both are single-threaded from beginning to end.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::exit;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::syscall::syscall::SyscallType;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitStatus, waitpid};
use serde::{Deserialize, Serialize};

use crate::embedded::launch::Launch;

pub(crate) const CREATE: &str = "container-create";
pub(crate) const EXEC: &str = "container-exec";

/// The code `container-exec` ends with when the command could not be started; the reason is in the error file.
pub(crate) const NOT_STARTED: i32 = 255;

/// What `container-create` needs beside the OCI configuration, in `DIR/create.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Create {
    pub id: String,
    /// Read-only image layers, topmost first.
    pub layers: Vec<String>,
    pub launch: Launch,
}

/// Must be the first statement of `main`, before any thread is started: if this process was started to make a
/// container, it does so and never returns.
pub fn maybe_run() {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [_, CREATE, dir] => {
            open_up();
            report(Path::new(dir).join("error").as_path(), create(Path::new(dir)).map(|()| 0))
        }
        [_, EXEC, dir, process] => {
            open_up();
            report(Path::new(&format!("{process}.error")), exec(Path::new(dir), Path::new(process)))
        }
        _ => {}
    }
}

/// Who runs us keeps its files to itself; what a container makes, and the folders made for its mounts, anybody in it may
/// read, as with other runtimes.
fn open_up() {
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
}

fn report(error_file: &Path, outcome: Result<i32, anyhow::Error>) -> ! {
    match outcome {
        Ok(code) => exit(code),
        Err(error) => {
            // The standard streams belong to the container: the reason goes to a file beside it.
            let _ = fs::write(error_file, format!("{error:#}"));
            exit(NOT_STARTED);
        }
    }
}

fn create(dir: &Path) -> Result<(), anyhow::Error> {
    use anyhow::Context;
    let create: Create = serde_json::from_slice(&fs::read(dir.join("create.json")).context("create.json")?)
        .context("create.json")?;
    // The root file system is mounted in a namespace of its own: it vanishes with the container, whatever happens to us.
    unshare(CloneFlags::CLONE_NEWNS).context("new mount namespace")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
        .context("private mounts")?;
    mount_root(dir, &create.layers)?;
    give_streams_to_user(dir)?;
    let state = dir.join("oci");
    fs::create_dir_all(&state)?;
    let mut container = ContainerBuilder::new(create.id, SyscallType::default())
        .with_root_path(state)?
        .with_pid_file(Some(dir.join("pid")))?
        .with_executor(create.launch)
        .as_init(dir)
        .with_systemd(false)
        .with_detach(true)
        .build()
        .map_err(plain)?;
    container.start().map_err(plain)?;
    Ok(())
}

/// libcontainer nests "failed to create container: …" several times; the cause is what a user needs.
fn plain(error: libcontainer::error::LibcontainerError) -> anyhow::Error {
    anyhow::Error::from(error)
}

fn mount_root(dir: &Path, layers: &[String]) -> Result<(), anyhow::Error> {
    use anyhow::Context;
    // Layer folders are named relative to the image store to stay below the one page the kernel takes as options.
    let (first, rest) = layers.split_first().context("the image has no layers")?;
    let store = Path::new(first).parent().context("layer path")?;
    std::env::set_current_dir(store).context("image store")?;
    let names = std::iter::once(first).chain(rest);
    let lower: Vec<_> = names.map(|layer| layer.rsplit('/').next().unwrap_or(layer).to_owned()).collect();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.join(":"),
        dir.join("upper").display(),
        dir.join("work").display()
    );
    mount(Some("overlay"), &dir.join("rootfs"), Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .with_context(|| format!("overlay of {} layers", lower.len()))?;
    std::env::set_current_dir("/")?;
    Ok(())
}

/// The program may reopen its streams by name (`/dev/stdout`), which the kernel allows only to their owner.
fn give_streams_to_user(dir: &Path) -> Result<(), anyhow::Error> {
    let config: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("config.json"))?)?;
    let id = |name: &str| config["process"]["user"][name].as_u64().unwrap_or(0) as u32;
    let (uid, gid) = (nix::unistd::Uid::from_raw(id("uid")), nix::unistd::Gid::from_raw(id("gid")));
    let streams = [
        std::io::stdin().as_fd().try_clone_to_owned(),
        std::io::stdout().as_fd().try_clone_to_owned(),
        std::io::stderr().as_fd().try_clone_to_owned(),
    ];
    for stream in streams.into_iter().flatten() {
        // /dev/null is shared with the host and stays as it is.
        let kind =
            nix::sys::stat::SFlag::from_bits_truncate(nix::sys::stat::fstat(&stream)?.st_mode & 0o170000);
        let null = kind == nix::sys::stat::SFlag::S_IFCHR && !nix::unistd::isatty(&stream).unwrap_or(false);
        if !null {
            let _ = nix::unistd::fchown(&stream, Some(uid), Some(gid));
        }
    }
    Ok(())
}

fn exec(dir: &Path, process: &Path) -> Result<i32, anyhow::Error> {
    use anyhow::Context;
    let create: Create = serde_json::from_slice(&fs::read(dir.join("create.json")).context("create.json")?)
        .context("create.json")?;
    let spec: serde_json::Value = serde_json::from_slice(&fs::read(process)?)?;
    let launch = Launch { terminal: spec["terminal"] == true, dies_with_parent: true, ..create.launch };
    // The pseudo-terminal is already our standard input: the runtime need not make one.
    let mut spec = spec;
    spec["terminal"] = false.into();
    fs::write(process, serde_json::to_vec(&spec)?)?;
    let pid = ContainerBuilder::new(create.id, SyscallType::default())
        .with_root_path(dir.join("oci"))?
        .with_executor(launch)
        .as_tenant()
        .with_process(Some(process))
        .with_detach(false)
        .build()
        .map_err(plain)?;
    let _ = fs::remove_file(process);
    loop {
        match waitpid(nix::unistd::Pid::from_raw(pid.as_raw()), None) {
            Ok(WaitStatus::Exited(_, code)) => return Ok(code),
            Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(128 + signal as i32),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error).context("wait for the command"),
        }
    }
}
