//! Named network namespaces, made without the `ip` tool.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use rtnetlink::LinkUnspec;

const FOLDER: &str = "/run/netns";

/// A network namespace with a name, as `ip netns` keeps them. Removed when dropped, unless [`Namespace::keep`] was called.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    kept: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("cannot {what} network namespace {name:?}; this needs root")]
    System { what: &'static str, name: String, source: nix::Error },
    #[error("cannot {what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot bring up loopback in network namespace {name:?}")]
    Loopback { name: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the thread in network namespace {0:?} panicked")]
    Panicked(String),
}

impl Namespace {
    /// Makes a new namespace with nothing but loopback in it. One of the same name is replaced.
    pub fn create(name: &str) -> Result<Self, NamespaceError> {
        let path = path_of(name);
        if path.exists() {
            remove(name)?;
        }
        let file = |what| move |source| NamespaceError::File { what, path: path_of(name), source };
        fs::create_dir_all(FOLDER).map_err(file("create the folder of"))?;
        File::create(&path).map_err(file("create"))?;
        // A thread of its own: unsharing changes the network of the thread that asks, and that thread ends here.
        let made = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(Some("/proc/thread-self/ns/net"), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        });
        let made = made.join().map_err(|_| NamespaceError::Panicked(name.to_owned()))?;
        if let Err(source) = made {
            let _ = fs::remove_file(path_of(name));
            return Err(NamespaceError::System { what: "create", name: name.to_owned(), source });
        }
        let this = Self { name: name.to_owned(), kept: false };
        this.run(loopback)?.map_err(|source| NamespaceError::Loopback { name: name.to_owned(), source })?;
        Ok(this)
    }

    /// One that somebody else made and removes.
    pub fn of_another(name: &str) -> Self {
        Self { name: name.to_owned(), kept: true }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn path(&self) -> PathBuf {
        path_of(&self.name)
    }

    /// Leaves the namespace behind, for [`Namespace::remove`] later.
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// Runs `work` on a thread inside the namespace and gives what it returned.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NamespaceError> {
        let name = self.name.clone();
        let thread = std::thread::spawn(move || enter(&name).map(|()| work()));
        thread.join().map_err(|_| NamespaceError::Panicked(self.name.clone()))?
    }

    /// Names of the namespaces that start with `prefix`.
    pub fn list(prefix: &str) -> Vec<String> {
        let entries = fs::read_dir(FOLDER).into_iter().flatten().flatten();
        entries
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|name| name.starts_with(prefix))
            .collect()
    }

    /// Removes a namespace by name; one that is gone already is fine.
    pub fn remove(name: &str) -> Result<(), NamespaceError> {
        remove(name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if !self.kept {
            let _ = remove(&self.name);
        }
    }
}

/// Moves the calling thread into a named namespace. Called before other threads exist, it holds for the process.
pub fn enter(name: &str) -> Result<(), NamespaceError> {
    let path = path_of(name);
    let file = File::open(&path).map_err(|source| NamespaceError::File { what: "open", path, source })?;
    setns(file, CloneFlags::CLONE_NEWNET).map_err(|source| NamespaceError::System {
        what: "enter",
        name: name.to_owned(),
        source,
    })
}

/// Loopback is the first link of every namespace.
const LOOPBACK: u32 = 1;

/// Brings up loopback in the calling thread's namespace: without it a host cannot even reach its own addresses.
fn loopback() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection()?;
        tokio::spawn(connection);
        handle.link().change(LinkUnspec::new_with_index(LOOPBACK).up().build()).execute().await?;
        Ok(())
    })
}

fn path_of(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

fn remove(name: &str) -> Result<(), NamespaceError> {
    let path = path_of(name);
    // Not mounted is as good as unmounted.
    let _ = umount2(&path, MntFlags::MNT_DETACH);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(NamespaceError::File { what: "remove", path, source })
        }
        _ => Ok(()),
    }
}
