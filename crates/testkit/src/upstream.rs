//! A real Kubernetes control plane on loopback.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{Fixture, Kubectl, Pki, Process, free_port, wait_for};

/// Which parts run beside etcd and the API server.
#[derive(Debug, Clone, Default)]
pub struct UpstreamOptions {
    /// `kube-controller-manager --controllers=…`; `None` leaves it out.
    pub controllers: Option<String>,
    pub scheduler: bool,
    /// Lift the clients' request limits, so that a comparison is fair.
    pub lift_limits: bool,
    pub release: Release,
}

/// The newest and the oldest Kubernetes that may be a member of a fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Release {
    #[default]
    Newest,
    Oldest,
}

impl Release {
    /// The programs of a control plane of that release.
    pub fn programs(self) -> [Fixture; 3] {
        match self {
            Self::Newest => [Fixture::KubeApiserver, Fixture::KubeControllerManager, Fixture::KubeScheduler],
            Self::Oldest => {
                [Fixture::KubeApiserverOld, Fixture::KubeControllerManagerOld, Fixture::KubeSchedulerOld]
            }
        }
    }
}

/// etcd, kube-apiserver and what was asked for beside them. Ends when dropped.
pub struct Upstream {
    pub kubeconfig: PathBuf,
    pub url: String,
    pub processes: Vec<Process>,
    _dir: tempfile::TempDir,
}

const TOKEN: &str = "admin-token";
/// What `default/kubernetes` gets of the range below.
const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

impl Upstream {
    pub fn start(options: &UpstreamOptions) -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST, options)
    }

    /// Serves at an address of the calling thread's network.
    pub fn start_at(address: Ipv4Addr, options: &UpstreamOptions) -> Result<Self> {
        Self::start_with(address, options, |_| Ok(Vec::new()))
    }

    /// A control plane with certificates of an authority of its own: nodes can prove who they are, and the API server proves
    /// to them who it is.
    pub fn start_with_certificates(options: &UpstreamOptions) -> Result<(Self, Pki)> {
        Self::start_with_certificates_at(Ipv4Addr::LOCALHOST, options)
    }

    /// The same at an address of the calling thread's network. Pods know the authority, and the API server by its Service.
    pub fn start_with_certificates_at(address: Ipv4Addr, options: &UpstreamOptions) -> Result<(Self, Pki)> {
        let mut made = None;
        let upstream = Self::start_with(address, options, |dir| {
            let pki = Pki::new(dir)?;
            let serving = pki.server("serving", &[address.into(), API_SERVICE.into()])?;
            let kubelets = pki.client("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")?;
            let file = |path: &Path| path.display().to_string();
            let args = [
                ("--tls-cert-file", file(&serving.certificate)),
                ("--tls-private-key-file", file(&serving.key)),
                ("--client-ca-file", file(&pki.ca())),
                ("--kubelet-client-certificate", file(&kubelets.certificate)),
                ("--kubelet-client-key", file(&kubelets.key)),
                ("--enable-admission-plugins", "NodeRestriction".into()),
            ];
            made = Some(pki);
            Ok(args.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect())
        })?;
        Ok((upstream, made.context("the authority is made before the API server starts")?))
    }

    fn start_with(
        address: Ipv4Addr,
        options: &UpstreamOptions,
        more: impl FnOnce(&Path) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path();
        let (etcd_port, peer_port, port) = (free_port(), free_port(), free_port());
        let address = address.to_string();
        let url = format!("https://{address}:{port}");
        let etcd = format!("http://127.0.0.1:{etcd_port}");
        service_account_keys(path)?;
        fs::write(path.join("tokens.csv"), format!("{TOKEN},admin,admin,system:masters\n"))?;
        let kubeconfig = path.join("admin.kubeconfig");
        fs::write(&kubeconfig, kubeconfig_text(&url))?;

        let mut command = Command::new(Fixture::Etcd.must());
        command.arg("--data-dir").arg(path.join("etcd")).args(["--listen-client-urls", &etcd]);
        command.args(["--advertise-client-urls", &etcd, "--log-level", "error"]);
        command.args(["--listen-peer-urls", &format!("http://127.0.0.1:{peer_port}")]);
        let mut processes = vec![Process::start("etcd", command, path)?];

        let [api_server, ..] = options.release.programs();
        let mut command = Command::new(api_server.must());
        command.args([
            "--etcd-servers",
            &etcd,
            "--bind-address",
            &address,
            "--secure-port",
            &port.to_string(),
        ]);
        command.arg("--cert-dir").arg(path.join("certs")).args(["--authorization-mode", "Node,RBAC"]);
        command.arg("--token-auth-file").arg(path.join("tokens.csv"));
        command.args(["--service-account-issuer", "https://kubernetes.default.svc"]);
        command.arg("--service-account-key-file").arg(path.join("sa.pub"));
        command.arg("--service-account-signing-key-file").arg(path.join("sa.key"));
        command.args([
            "--service-cluster-ip-range",
            "10.0.0.0/24",
            "--allow-privileged",
            "--profiling=false",
        ]);
        command.args(["--enable-bootstrap-token-auth", "--kubelet-preferred-address-types", "InternalIP"]);
        command.args(more(path)?);
        if options.lift_limits {
            command.args(["--max-requests-inflight", "3000", "--max-mutating-requests-inflight", "1500"]);
        }
        processes.push(Process::start("kube-apiserver", command, path)?);

        let mut upstream = Self { kubeconfig, url, processes, _dir: dir };
        let kubectl = Kubectl::new(&upstream.kubeconfig);
        wait_for("kube-apiserver to be ready", Duration::from_secs(60), || {
            upstream.processes.iter_mut().try_for_each(Process::alive)?;
            kubectl.run(&["get", "--raw", "/readyz"])?;
            kubectl.run(&["get", "namespace", "default"])
        })?;
        let beside = control_loops(&upstream.kubeconfig, upstream._dir.path(), options)?;
        upstream.processes.extend(beside);
        Ok(upstream)
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig)
    }
}

/// The real controller manager and scheduler, as far as `options` ask for them, against any API server.
pub fn control_loops(kubeconfig: &Path, dir: &Path, options: &UpstreamOptions) -> Result<Vec<Process>> {
    let [_, controller_manager, scheduler] = options.release.programs();
    let mut processes = Vec::new();
    if let Some(controllers) = &options.controllers {
        let mut command = Command::new(controller_manager.must());
        command.arg("--kubeconfig").arg(kubeconfig).args(["--leader-elect=false", "--secure-port=0"]);
        command.arg(format!("--controllers={controllers}"));
        command.args(["--allocate-node-cidrs", "--cluster-cidr", "10.70.0.0/16"]);
        let (ca, ca_key) = (dir.join("ca.crt"), dir.join("ca.key"));
        if ca_key.exists() {
            command.arg("--cluster-signing-cert-file").arg(ca).arg("--cluster-signing-key-file").arg(ca_key);
        }
        let key = dir.join("sa.key");
        if key.exists() {
            command.arg("--service-account-private-key-file").arg(key);
        }
        let authority = dir.join("ca.crt");
        if authority.exists() {
            command.arg("--root-ca-file").arg(authority);
        }
        if options.lift_limits {
            command.args(["--kube-api-qps", "5000", "--kube-api-burst", "5000"]);
            command.args(["--concurrent-deployment-syncs", "20", "--concurrent-replicaset-syncs", "20"]);
        }
        processes.push(Process::start("kube-controller-manager", command, dir)?);
    }
    if options.scheduler {
        let config = dir.join("scheduler.yaml");
        let limits = if options.lift_limits { "  qps: 5000\n  burst: 5000\n" } else { "" };
        let kubeconfig = kubeconfig.display();
        fs::write(
            &config,
            format!(
                "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection:\n  leaderElect: false\nclientConnection:\n  kubeconfig: {kubeconfig}\n{limits}"
            ),
        )?;
        let mut command = Command::new(scheduler.must());
        command.arg("--config").arg(config).args(["--secure-port=0"]);
        processes.push(Process::start("kube-scheduler", command, dir)?);
    }
    Ok(processes)
}

fn service_account_keys(dir: &Path) -> Result<()> {
    let key = rcgen::KeyPair::generate()?;
    fs::write(dir.join("sa.key"), key.serialize_pem())?;
    let public = key.public_key_pem();
    if !public.contains("PUBLIC KEY") {
        bail!("rcgen gave no public key");
    }
    fs::write(dir.join("sa.pub"), public)?;
    Ok(())
}

/// kube-apiserver signs its own certificate here, so the client cannot check it; this is loopback in a test.
fn kubeconfig_text(url: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: upstream\n  cluster:\n    server: {url}\n    insecure-skip-tls-verify: true\nusers:\n- name: admin\n  user:\n    token: {TOKEN}\ncontexts:\n- name: upstream\n  context:\n    cluster: upstream\n    user: admin\ncurrent-context: upstream\n"
    )
}
