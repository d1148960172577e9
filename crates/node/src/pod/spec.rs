//! From a pod's specification to what the runtime is asked for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, SecurityContext, VolumeMount};

use super::env::expand;
use super::quantity;
use crate::objects::ObjectsError;
use crate::runtime::{ContainerSpec, Mount, SandboxSpec, Security};
use crate::volumes::Place;

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(crate) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

/// Every container of a pod by name: main, init and ephemeral alike.
pub(crate) fn container<'a>(pod: &'a Pod, name: &str) -> Option<Cow<'a, Container>> {
    let spec = pod.spec.as_ref()?;
    let lasting = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let ephemeral = || ephemeral(pod).into_iter().find(|c| c.name == name).map(Cow::Owned);
    lasting.into_iter().find(|c| c.name == name).map(Cow::Borrowed).or_else(ephemeral)
}

/// The containers that somebody added to look into a running pod. They are containers like others but for what they may not
/// have, and are never started again.
pub(crate) fn ephemeral(pod: &Pod) -> Vec<Container> {
    let added = pod.spec.iter().flat_map(|s| s.ephemeral_containers.iter().flatten());
    let plain = |added| serde_json::to_value(added).and_then(serde_json::from_value::<Container>).ok();
    added.filter_map(plain).collect()
}

pub(crate) fn grace_period(pod: &Pod) -> i64 {
    let asked = pod.metadata.deletion_grace_period_seconds;
    asked.or_else(|| pod.spec.as_ref()?.termination_grace_period_seconds).unwrap_or(30)
}

/// The name a pod gives itself: at most 63 characters, as the kernel and DNS want it.
pub(crate) fn hostname(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let chosen = spec
        .and_then(|s| s.hostname_override.clone().or_else(|| s.hostname.clone()))
        .filter(|h| !h.is_empty());
    let name = chosen.unwrap_or_else(|| name(pod).to_owned());
    name.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned()
}

/// `hostname.subdomain.namespace.svc.domain`, for pods that have a subdomain.
fn full_name(pod: &Pod, domain: &str) -> Option<String> {
    let subdomain = pod.spec.as_ref()?.subdomain.as_ref().filter(|s| !s.is_empty())?;
    Some(format!("{}.{subdomain}.{}.svc.{domain}", hostname(pod), namespace(pod)))
}

pub(crate) fn sandbox(pod: &Pod, domain: &str) -> SandboxSpec {
    let spec = pod.spec.clone().unwrap_or_default();
    let host_pid = spec.host_pid == Some(true);
    let full = full_name(pod, domain).filter(|_| spec.set_hostname_as_fqdn == Some(true));
    let sysctls = spec.security_context.iter().flat_map(|s| s.sysctls.iter().flatten());
    SandboxSpec {
        uid: uid(pod).to_owned(),
        namespace: namespace(pod).to_owned(),
        name: name(pod).to_owned(),
        hostname: full.unwrap_or_else(|| hostname(pod)),
        host_network: spec.host_network == Some(true),
        host_ipc: spec.host_ipc == Some(true),
        host_pid,
        share_processes: spec.share_process_namespace == Some(true) && !host_pid,
        resources: quantity::pod(pod),
        sysctls: sysctls.map(|s| (s.name.clone(), s.value.clone())).collect(),
    }
}

/// `/etc/hosts` of a pod.
pub(crate) fn hosts_file(pod: &Pod, addresses: &[String], domain: &str) -> String {
    let host_network = pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true));
    let mut text = if host_network {
        let host = fs::read_to_string("/etc/hosts").unwrap_or_else(|_| "127.0.0.1\tlocalhost\n".into());
        format!("# Kubernetes-managed hosts file (host network).\n{host}")
    } else {
        let mut text = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
            fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n"
            .to_owned();
        let names =
            full_name(pod, domain).map_or_else(|| hostname(pod), |full| format!("{full}\t{}", hostname(pod)));
        for address in addresses {
            text.push_str(&format!("{address}\t{names}\n"));
        }
        text
    };
    let aliases: Vec<_> = pod.spec.iter().flat_map(|s| s.host_aliases.iter().flatten()).collect();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        text.push_str(&format!(
            "{}\t{}\n",
            alias.ip,
            alias.hostnames.iter().flatten().cloned().collect::<Vec<_>>().join("\t")
        ));
    }
    text
}

/// `/etc/resolv.conf` of a pod.
pub(crate) fn resolv_conf(pod: &Pod, cluster_dns: &[String], domain: &str, host: &str) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let cluster = match policy {
        "ClusterFirstWithHostNet" => true,
        "ClusterFirst" => spec.host_network != Some(true),
        _ => false,
    } && !cluster_dns.is_empty();
    let host_words = |key: &str| -> Vec<String> {
        host.lines()
            .filter_map(|l| l.strip_prefix(key))
            .flat_map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    let (mut servers, mut searches, mut options) = match (policy, cluster) {
        ("None", _) => (vec![], vec![], vec![]),
        (_, true) => {
            let ns = namespace(pod);
            let mut searches = vec![format!("{ns}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
            searches.extend(host_words("search "));
            (cluster_dns.to_vec(), searches, vec!["ndots:5".to_owned()])
        }
        _ => (host_words("nameserver "), host_words("search "), host_words("options ")),
    };
    if let Some(config) = &spec.dns_config {
        servers.extend(config.nameservers.iter().flatten().cloned());
        searches.extend(config.searches.iter().flatten().cloned());
        for option in config.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            options.retain(|o: &String| o.split(':').next() != Some(name.as_str()));
            options.push(option.value.as_ref().map_or(name.clone(), |value| format!("{name}:{value}")));
        }
    }
    let mut unique = Vec::new();
    searches.retain(|s| {
        !unique.contains(s) && {
            unique.push(s.clone());
            true
        }
    });
    servers.dedup();
    let mut text = String::new();
    servers.iter().for_each(|s| text.push_str(&format!("nameserver {s}\n")));
    if !searches.is_empty() {
        text.push_str(&format!("search {}\n", searches.join(" ")));
    }
    if !options.is_empty() {
        text.push_str(&format!("options {}\n", options.join(" ")));
    }
    text
}

/// The files of the pod itself inside its containers.
pub(crate) struct PodFiles {
    pub hosts: PathBuf,
    pub resolv: PathBuf,
    pub hostname: PathBuf,
    pub shm: PathBuf,
    pub termination: PathBuf,
}

pub(crate) fn termination_path(container: &Container) -> &str {
    container.termination_message_path.as_deref().unwrap_or("/dev/termination-log")
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("{0}")]
    Refused(String),
    #[error("mount {0}: {1}")]
    Mount(String, io::Error),
}

impl From<ObjectsError> for SpecError {
    fn from(error: ObjectsError) -> SpecError {
        SpecError::Refused(error.to_string())
    }
}

pub(crate) fn container_spec(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    env: Vec<(String, String)>,
    volumes: &BTreeMap<String, Place>,
    files: &PodFiles,
    log: PathBuf,
) -> Result<ContainerSpec, SpecError> {
    let spec = pod.spec.clone().unwrap_or_default();
    let words =
        |list: &Option<Vec<String>>| list.iter().flatten().map(|word| expand(word, &env)).collect::<Vec<_>>();
    let mut mounts = Vec::new();
    let mut file = |source: &Path, target: &str| {
        mounts.push(Mount {
            source: source.to_owned(),
            target: target.to_owned(),
            read_only: false,
            propagation: None,
        });
    };
    let mounted = |target: &str| {
        container.volume_mounts.iter().flatten().any(|m| m.mount_path.trim_end_matches('/') == target)
    };
    for (source, target) in [
        (&files.hosts, "/etc/hosts"),
        (&files.resolv, "/etc/resolv.conf"),
        (&files.hostname, "/etc/hostname"),
        (&files.shm, "/dev/shm"),
    ] {
        if !mounted(target) {
            file(source, target);
        }
    }
    file(&files.termination, termination_path(container));
    for mount in container.volume_mounts.iter().flatten() {
        mounts.push(volume_mount(mount, volumes, &env)?);
    }
    let mut resources = quantity::container(container.resources.as_ref());
    resources.oom_score_adj = Some(oom_score(pod, container));
    Ok(ContainerSpec {
        pod: uid(pod).to_owned(),
        name: container.name.clone(),
        attempt,
        image: container.image.clone().unwrap_or_default(),
        command: words(&container.command),
        args: words(&container.args),
        working_dir: container.working_dir.clone(),
        mounts,
        devices: Vec::new(),
        resources,
        security: security(&spec, container)?,
        tty: container.tty == Some(true),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        log,
        env,
        target: None,
    })
}

fn volume_mount(
    mount: &VolumeMount,
    volumes: &BTreeMap<String, Place>,
    env: &[(String, String)],
) -> Result<Mount, SpecError> {
    let unknown =
        || SpecError::Refused(format!("volumeMount {} names a volume the pod does not have", mount.name));
    let place = volumes.get(&mount.name).ok_or_else(unknown)?;
    let sub = match (&mount.sub_path_expr, &mount.sub_path) {
        (Some(expression), _) => expand(expression, env),
        (None, path) => path.clone().unwrap_or_default(),
    };
    let source = if sub.is_empty() {
        place.path.clone()
    } else {
        sub_path(&place.path, &sub).map_err(|error| SpecError::Mount(mount.mount_path.clone(), error))?
    };
    let target = if mount.mount_path.starts_with('/') {
        mount.mount_path.clone()
    } else {
        format!("/{}", mount.mount_path)
    };
    Ok(Mount {
        source,
        target,
        read_only: mount.read_only == Some(true),
        propagation: mount.mount_propagation.clone(),
    })
}

/// A path inside a volume. A program in the pod may have planted links there: the result must stay inside.
fn sub_path(volume: &Path, sub: &str) -> io::Result<PathBuf> {
    let relative = Path::new(sub);
    if !relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(io::Error::other(format!("subPath {sub:?} must be relative and must not contain '..'")));
    }
    let path = volume.join(relative);
    if path.symlink_metadata().is_err() {
        // Not through a link that leads elsewhere: the deepest existing parent must be inside.
        let parent = path.ancestors().skip(1).find(|p| p.exists()).unwrap_or(volume);
        if !parent.canonicalize()?.starts_with(volume.canonicalize()?) {
            return Err(io::Error::other(format!("subPath {sub:?} leaves the volume")));
        }
        fs::create_dir_all(&path)?;
    }
    let real = path.canonicalize()?;
    if !real.starts_with(volume.canonicalize()?) {
        return Err(io::Error::other(format!("subPath {sub:?} leaves the volume")));
    }
    Ok(real)
}

/// How willingly the kernel kills it when memory runs out: pods that promise most die last.
fn oom_score(pod: &Pod, container: &Container) -> i32 {
    match quantity::qos_class(pod) {
        "Guaranteed" => -997,
        "BestEffort" => 1000,
        _ => {
            let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
            let memory = requests.and_then(|r| r.get("memory")).and_then(quantity::whole).unwrap_or(0);
            let capacity = crate::machine::memory_bytes().max(1) as i64;
            (1000 - (1000 * memory / capacity) as i32).clamp(3, 999)
        }
    }
}

fn security(spec: &PodSpec, container: &Container) -> Result<Security, SpecError> {
    let none = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&none);
    let pod = spec.security_context.clone().unwrap_or_default();
    let privileged = own.privileged == Some(true);
    let profile = own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref());
    let filtered = match profile.map(|p| p.type_.as_str()) {
        None | Some("Unconfined") => false,
        Some("RuntimeDefault") => !privileged,
        Some(other) => {
            return Err(SpecError::Refused(format!(
                "seccompProfile type {other} is not supported by this node; use RuntimeDefault or Unconfined"
            )));
        }
    };
    if let Some(profile) = own.app_armor_profile.as_ref().or(pod.app_armor_profile.as_ref())
        && profile.type_ == "Localhost"
    {
        return Err(SpecError::Refused(
            "appArmorProfile type Localhost is not supported by this node".into(),
        ));
    }
    let mut groups: Vec<i64> = pod.supplemental_groups.unwrap_or_default();
    groups.extend(pod.fs_group);
    let capabilities = own.capabilities.clone().unwrap_or_default();
    Ok(Security {
        user: own.run_as_user.or(pod.run_as_user),
        group: own.run_as_group.or(pod.run_as_group),
        supplemental_groups: groups,
        must_not_be_root: own.run_as_non_root.or(pod.run_as_non_root) == Some(true),
        privileged,
        read_only_root: own.read_only_root_filesystem == Some(true),
        no_new_privileges: own.allow_privilege_escalation == Some(false),
        add_capabilities: capabilities.add.unwrap_or_default(),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
        filtered,
        unmasked_proc: own.proc_mount.as_deref() == Some("Unmasked"),
    })
}
