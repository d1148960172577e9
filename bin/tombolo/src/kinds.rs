//! KIND/NAME as people type it.

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use kube::Client;
use kube::core::GroupVersionKind;

/// A kind that commands know by its short names.
pub struct Kind {
    short: &'static [&'static str],
    pub api_version: &'static str,
    pub name: &'static str,
}

const KINDS: &[Kind] = &[
    Kind { short: &["deploy", "deployment", "deployments"], api_version: "apps/v1", name: "Deployment" },
    Kind { short: &["sts", "statefulset", "statefulsets"], api_version: "apps/v1", name: "StatefulSet" },
    Kind { short: &["ds", "daemonset", "daemonsets"], api_version: "apps/v1", name: "DaemonSet" },
    Kind { short: &["rs", "replicaset", "replicasets"], api_version: "apps/v1", name: "ReplicaSet" },
    Kind { short: &["job", "jobs"], api_version: "batch/v1", name: "Job" },
    Kind { short: &["cj", "cronjob", "cronjobs"], api_version: "batch/v1", name: "CronJob" },
    Kind { short: &["po", "pod", "pods"], api_version: "v1", name: "Pod" },
    Kind { short: &["svc", "service", "services"], api_version: "v1", name: "Service" },
    Kind { short: &["cm", "configmap", "configmaps"], api_version: "v1", name: "ConfigMap" },
    Kind { short: &["secret", "secrets"], api_version: "v1", name: "Secret" },
];

/// Groups whose kinds are asked for at once.
const AT_ONCE: usize = 8;

/// The kind and the name in `deploy/web`.
pub fn parse(object: &str) -> Result<(&'static Kind, &str)> {
    let (kind, name) = split(object)?;
    match known(kind) {
        Some(known) => Ok((known, name)),
        None => {
            let known: Vec<_> = KINDS.iter().map(|kind| kind.short[0]).collect();
            bail!("no kind {kind:?} is known here; one of {}", known.join(", "))
        }
    }
}

fn split(object: &str) -> Result<(&str, &str)> {
    match object.split_once('/') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => Ok((kind, name)),
        _ => bail!("{object:?} names no object; write KIND/NAME, such as deploy/web"),
    }
}

fn known(kind: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|known| known.short.contains(&kind.to_lowercase().as_str()))
}

/// An object of any kind that a server has.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub namespaced: bool,
}

/// As [`parse`], and kinds that are not known here are looked up at the server: `ship/flag`, or `ship.example.com/flag`
/// where several groups have one.
pub async fn find(client: &Client, object: &str) -> Result<Named> {
    let (kind, name) = split(object)?;
    if let Some(known) = known(kind) {
        let (api_version, kind) = (known.api_version.to_owned(), known.name.to_owned());
        return Ok(Named { api_version, kind, name: name.to_owned(), namespaced: true });
    }
    let (short, group) = kind.split_once('.').unwrap_or((kind, ""));
    let groups = client.list_api_groups().await.context("the server does not say which kinds it has")?.groups;
    let versions = groups
        .into_iter()
        .filter(|g| group.is_empty() || g.name == group)
        .filter_map(|g| g.preferred_version.or_else(|| g.versions.into_iter().next()));
    let versions: Vec<String> = versions.map(|v| v.group_version).collect();
    // One group that does not answer must not hide the others.
    let lists = versions.iter().map(|version| client.list_api_group_resources(version));
    let lists = futures::stream::iter(lists).buffered(AT_ONCE).collect::<Vec<_>>().await;
    let mut lists: Vec<APIResourceList> = lists.into_iter().flatten().collect();
    if group.is_empty() {
        lists.insert(0, client.list_core_api_resources("v1").await?);
    }
    match lists.iter().find_map(|list| Some((list, named(list, short)?))) {
        Some((list, resource)) => Ok(Named {
            api_version: list.group_version.clone(),
            kind: resource.kind.clone(),
            name: name.to_owned(),
            namespaced: resource.namespaced,
        }),
        None => bail!("the server has no kind {kind:?}; `kubectl api-resources` lists those it has"),
    }
}

/// The kind of a list that goes by this name, in one or many, short or long.
fn named<'a>(list: &'a APIResourceList, wanted: &str) -> Option<&'a APIResource> {
    let is = |name: &str| name.eq_ignore_ascii_case(wanted);
    let mut kinds = list.resources.iter().filter(|resource| !resource.name.contains('/'));
    kinds.find(|r| {
        is(&r.name) || is(&r.singular_name) || is(&r.kind) || r.short_names.iter().flatten().any(|n| is(n))
    })
}

impl From<&Kind> for GroupVersionKind {
    fn from(kind: &Kind) -> Self {
        let (group, version) = kind.api_version.split_once('/').unwrap_or(("", kind.api_version));
        GroupVersionKind::gvk(group, version, kind.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_names_mean_the_same_kind() {
        for text in ["deploy/web", "Deployment/web", "deployments/web"] {
            let (kind, name) = parse(text).expect("a known kind");
            assert_eq!((kind.name, name), ("Deployment", "web"));
        }
        assert!(parse("web").is_err() && parse("deploy/").is_err() && parse("thing/web").is_err());
    }

    #[test]
    fn a_kind_of_the_server_goes_by_all_its_names() {
        let ship = APIResource {
            name: "ships".into(),
            singular_name: "ship".into(),
            kind: "Ship".into(),
            short_names: Some(vec!["sh".into()]),
            ..Default::default()
        };
        let status = APIResource { name: "ships/status".into(), kind: "Ship".into(), ..Default::default() };
        let list = APIResourceList { group_version: "sea.example/v1".into(), resources: vec![status, ship] };
        for name in ["ship", "ships", "Ship", "sh"] {
            assert_eq!(named(&list, name).map(|r| r.name.as_str()), Some("ships"), "{name}");
        }
        assert!(named(&list, "boat").is_none() && named(&list, "ships/status").is_none());
    }
}
