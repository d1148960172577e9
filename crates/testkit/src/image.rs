//! Container images made from files of this machine: nothing is pulled from anywhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// An image of one layer, in the making.
pub struct Image {
    names: Vec<String>,
    config: Value,
    layer: Layer,
}

struct Layer {
    tar: tar::Builder<Vec<u8>>,
    made: BTreeSet<PathBuf>,
}

/// An archive in `dir` with busybox, called `name`, that runs `command`.
pub fn busybox_archive(dir: &Path, name: &str, command: &[&str]) -> Result<PathBuf> {
    let file = dir.join(format!("{}.tar", name.replace(['/', ':'], "-")));
    Image::busybox(&[name])?.with("Cmd", json!(command)).save(&file)?;
    Ok(file)
}

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Image {
    pub fn new(names: &[&str]) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            names,
            config: json!({"Env": [PATH]}),
            layer: Layer { tar: tar::Builder::new(Vec::new()), made: BTreeSet::new() },
        }
    }

    /// The shell and tools of Debian's `busybox-static`, with the few files and folders programs expect.
    pub fn busybox(names: &[&str]) -> Result<Self> {
        let mut image = Self::new(names).with("Cmd", json!(["sh"]));
        image.add_busybox()?;
        Ok(image)
    }

    /// Adds them to an image; files that are there already stay.
    pub fn add_busybox(&mut self) -> Result<&mut Self> {
        let image = self;
        image
            .folder("tmp", 0o1777)?
            .folder("root", 0o700)?
            .folder("home", 0o755)?
            .folder("var/run", 0o755)?;
        image.file("etc/passwd", 0o644, PASSWD.as_bytes())?.file("etc/group", 0o644, GROUP.as_bytes())?;
        let program = fs::read("/bin/busybox").context("/bin/busybox is missing; install busybox-static")?;
        image.file("bin/busybox", 0o755, &program)?;
        let list = Command::new("/bin/busybox").arg("--list").output()?;
        for tool in String::from_utf8_lossy(&list.stdout).lines().filter(|tool| *tool != "busybox") {
            image.link(&format!("bin/{tool}"), "busybox")?;
        }
        image.link("usr/bin/env", "/bin/busybox")
    }

    /// A field of the image's configuration: `Entrypoint`, `Cmd`, `User`, ….
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.config[field] = value;
        self
    }

    pub fn folder(&mut self, path: &str, mode: u32) -> Result<&mut Self> {
        self.layer.folder(Path::new(path), mode)?;
        Ok(self)
    }

    /// A file; one that is there already stays.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<&mut Self> {
        if self.layer.claim(path)? {
            let mut header = header(tar::EntryType::Regular, mode);
            header.set_size(content.len() as u64);
            self.layer.tar.append_data(&mut header, path, content)?;
        }
        Ok(self)
    }

    pub fn link(&mut self, path: &str, target: &str) -> Result<&mut Self> {
        if self.layer.claim(path)? {
            self.layer.tar.append_link(&mut header(tar::EntryType::Symlink, 0o777), path, target)?;
        }
        Ok(self)
    }

    /// A program of this machine with the libraries that it needs, at the same places.
    pub fn program(&mut self, path: &str) -> Result<&mut Self> {
        self.libraries(Path::new(path))?;
        let content = fs::read(path).with_context(|| format!("cannot read {path}"))?;
        self.file(path.trim_start_matches('/'), 0o755, &content)
    }

    /// The libraries that a program needs, where it looks for them.
    pub fn libraries(&mut self, program: &Path) -> Result<&mut Self> {
        let listed = Command::new("ldd").arg(program).output().context("could not start ldd")?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for file in listed.lines().filter_map(|line| line.split_whitespace().find(|w| w.starts_with('/'))) {
            let content = fs::read(file).with_context(|| format!("cannot read {file}"))?;
            self.file(file.trim_start_matches('/'), 0o755, &content)?;
        }
        Ok(self)
    }

    /// Writes an archive as `docker save` does: `tombolo image import`, `ctr images import` and `docker load` read it.
    pub fn save(self, file: &Path) -> Result<()> {
        ensure!(!self.names.is_empty(), "an image needs a name");
        let layer = self.layer.tar.into_inner()?;
        let digest = hex(&Sha256::digest(&layer));
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({"architecture": architecture, "os": "linux", "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]}})
        .to_string();
        let config_name = format!("{}.json", hex(&Sha256::digest(config.as_bytes())));
        let layer_name = format!("{digest}/layer.tar");
        let manifest =
            json!([{"Config": config_name, "RepoTags": self.names, "Layers": [layer_name]}]).to_string();
        let mut archive = tar::Builder::new(fs::File::create(file)?);
        let parts = [
            ("manifest.json", manifest.as_bytes()),
            (&config_name, config.as_bytes()),
            (&layer_name, &layer),
        ];
        for (name, content) in parts {
            let mut header = header(tar::EntryType::Regular, 0o644);
            header.set_size(content.len() as u64);
            archive.append_data(&mut header, name, content)?;
        }
        Ok(archive.finish()?)
    }
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n";
const GROUP: &str =
    "root:x:0:\ndefault:x:1000:\nnogroup:x:65534:\ngroup-defined-in-image:x:50000:user-defined-in-image\n";

impl Layer {
    fn folder(&mut self, path: &Path, mode: u32) -> Result<()> {
        if path.as_os_str().is_empty() || !self.made.insert(path.to_owned()) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.folder(parent, 0o755)?;
        }
        self.tar.append_data(&mut header(tar::EntryType::Directory, mode), path, std::io::empty())?;
        Ok(())
    }

    /// Makes the folders above `path`; whether the place was free.
    fn claim(&mut self, path: &str) -> Result<bool> {
        let path = Path::new(path);
        if let Some(parent) = path.parent() {
            self.folder(parent, 0o755)?;
        }
        Ok(self.made.insert(path.to_owned()))
    }
}

fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(0);
    header
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
