//! Finding the real programs that `cargo xtask fixtures` provides.

use std::path::PathBuf;

/// A program that tests compare with or drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fixture {
    Kubectl,
    KubectlOld,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    /// The oldest release that may be a member of a fleet.
    KubeApiserverOld,
    KubeControllerManagerOld,
    KubeSchedulerOld,
    Kubelet,
    Etcd,
    Helm,
    Pause,
    Mdbook,
    /// This program as it was some commits ago.
    Earlier,
}

impl Fixture {
    /// The variable `cargo xtask test` sets, and where the cache keeps the program.
    fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::Kubectl => ("TOMBOLO_KUBECTL", "k8s-1.36.3/kubectl"),
            Self::KubectlOld => ("TOMBOLO_KUBECTL_OLD", "k8s-1.30.14/kubectl"),
            Self::KubeApiserver => ("TOMBOLO_KUBE_APISERVER", "k8s-1.36.3/kube-apiserver"),
            Self::KubeControllerManager => {
                ("TOMBOLO_KUBE_CONTROLLER_MANAGER", "k8s-1.36.3/kube-controller-manager")
            }
            Self::KubeScheduler => ("TOMBOLO_KUBE_SCHEDULER", "k8s-1.36.3/kube-scheduler"),
            Self::KubeApiserverOld => ("TOMBOLO_KUBE_APISERVER_OLD", "k8s-1.30.14/kube-apiserver"),
            Self::KubeControllerManagerOld => {
                ("TOMBOLO_KUBE_CONTROLLER_MANAGER_OLD", "k8s-1.30.14/kube-controller-manager")
            }
            Self::KubeSchedulerOld => ("TOMBOLO_KUBE_SCHEDULER_OLD", "k8s-1.30.14/kube-scheduler"),
            Self::Kubelet => ("TOMBOLO_KUBELET", "k8s-1.36.3/kubelet"),
            Self::Etcd => ("TOMBOLO_ETCD", "etcd-3.6.16/etcd"),
            Self::Pause => ("TOMBOLO_PAUSE", "k8s-1.36.3/pause"),
            Self::Helm => ("TOMBOLO_HELM", "helm-3.21.4/helm"),
            Self::Mdbook => ("TOMBOLO_MDBOOK", "mdbook-0.5.3/bin/mdbook"),
            Self::Earlier => ("TOMBOLO_EARLIER", "tombolo-d155affcb045/tombolo"),
        }
    }

    /// Where the program is, if it is anywhere.
    pub fn path(self) -> Option<PathBuf> {
        let (variable, cached) = self.place();
        let cache = || {
            let root = std::env::var_os("TOMBOLO_CACHE").map(PathBuf::from);
            root.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/tombolo")))
        };
        let path = std::env::var_os(variable)
            .map(PathBuf::from)
            .or_else(|| Some(cache()?.join("bin").join(cached)))?;
        path.exists().then_some(path)
    }

    /// The program's path.
    ///
    /// # Panics
    /// When it is missing: call [`require`] first.
    pub fn must(self) -> PathBuf {
        self.path().unwrap_or_else(|| panic!("{self:?} is missing; run `cargo xtask fixtures`"))
    }
}

/// Whether all of these are there. In CI a missing one fails the test; elsewhere the test is skipped, loudly.
pub fn require(fixtures: &[Fixture]) -> bool {
    let missing: Vec<_> = fixtures.iter().filter(|f| f.path().is_none()).collect();
    if missing.is_empty() {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "{missing:?} missing in CI; `cargo xtask fixtures` builds them"
    );
    eprintln!("SKIPPED: {missing:?} missing; run `cargo xtask fixtures`, then this test again");
    false
}

/// A binary of this workspace, built by the same cargo run or by `cargo xtask test`. `TOMBOLO_BINARY` names another
/// `tombolo`, such as the one of an earlier commit, to see which tests it fails.
pub fn cargo_binary(name: &str) -> PathBuf {
    if let Some(other) = std::env::var_os("TOMBOLO_BINARY").filter(|_| name == "tombolo") {
        return other.into();
    }
    let mut dir = std::env::current_exe().expect("a running test has an executable");
    dir.pop();
    if dir.ends_with("deps") {
        dir.pop();
    }
    dir.join(name)
}
