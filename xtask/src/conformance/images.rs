//! The images that `e2e.test` asks for by name, made from files: nothing is pulled.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;
use tombolo_testkit::Image;

use crate::fixtures;

const BUSYBOX: &[&str] =
    &["registry.k8s.io/e2e-test-images/busybox:1.37.0-1", "registry.k8s.io/e2e-test-images/busybox:1.36.1-1"];
const AGNHOST: &[&str] =
    &["registry.k8s.io/e2e-test-images/agnhost:2.63.0", "registry.k8s.io/e2e-test-images/agnhost:2.55"];
const PAUSE: &[&str] = &["registry.k8s.io/pause:3.10.2"];

/// Makes them in `folder`.
pub fn make(folder: &Path) -> Result<Vec<PathBuf>> {
    let sources = fixtures::agnhost()?;
    let file = |name: &str| folder.join(format!("{name}.tar"));

    // Debian's busybox is older than the tests' and its shell hides variables whose names have dashes; bash does not, and is
    // found first by those who ask for `sh`. `/bin/sh` complains in busybox's words.
    let mut busybox = Image::new(BUSYBOX).with("Cmd", json!(["sh"]));
    busybox.program("/bin/bash")?.file("usr/bin/sh", 0o755, &fs::read("/bin/bash")?)?;
    busybox.add_busybox()?;
    busybox.save(&file("busybox"))?;

    let mut agnhost =
        Image::new(AGNHOST).with("Entrypoint", json!(["/agnhost"])).with("Cmd", json!(["pause"]));
    // The tests run these inside it; what is there first stays.
    agnhost.file("bin/nc", 0o755, &fs::read("/bin/nc.openbsd")?)?;
    // busybox's shell takes its own tools instead of these.
    agnhost.file("bin/sh", 0o755, &fs::read("/bin/bash")?)?;
    for program in ["/usr/bin/curl", "/bin/bash", "/usr/bin/dig", "/bin/ss", "/bin/nc.openbsd"] {
        agnhost.program(program)?;
    }
    agnhost.add_busybox()?;
    agnhost.file("agnhost", 0o755, &fs::read(&sources.agnhost)?)?.link("agnhost-2", "agnhost")?;
    agnhost.folder("uploads", 0o755)?;
    for name in ["localhost.crt", "localhost.key"] {
        let path = sources.module.join("test/images/agnhost/porter").join(name);
        let content = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        agnhost.file(name, 0o644, &content)?;
    }
    agnhost.save(&file("agnhost"))?;

    let mut pause =
        Image::new(PAUSE).with("Entrypoint", json!(["/pause"])).with("User", json!("65535:65535"));
    pause.file("pause", 0o755, &fs::read(&sources.pause)?)?;
    pause.save(&file("pause"))?;
    Ok(["busybox", "agnhost", "pause"].map(file).to_vec())
}
