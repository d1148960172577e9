//! Discovery documents, built from rows: the built-in resources and one row per served version of a
//! CustomResourceDefinition.
//!
//! Groups appear in the order of their first row; versions within a group by Kubernetes' version priority, of which
//! the first is the preferred one.

use serde_json::{Map, Value, json};

use crate::resources::{RESOURCES, Resource};

/// A resource as discovery shows it. Borrowed, so that a CustomResourceDefinition's own JSON can back it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub plural: &'a str,
    pub singular: &'a str,
    pub namespaced: bool,
    pub short_names: Vec<&'a str>,
    pub categories: Vec<&'a str>,
    pub verbs: Vec<&'a str>,
    /// Empty when there is none.
    pub storage_hash: &'a str,
    pub subresources: Vec<SubRow<'a>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubRow<'a> {
    pub name: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub verbs: Vec<&'a str>,
}

const CUSTOM_VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const SUB_VERBS: [&str; 3] = ["get", "patch", "update"];

/// The built-in rows.
pub fn built_in() -> impl Iterator<Item = Row<'static>> {
    RESOURCES.iter().map(Row::from)
}

/// The rows of a CustomResourceDefinition: one per served version. Empty until its names are accepted.
pub fn custom(crd: &Value) -> Vec<Row<'_>> {
    let spec = &crd["spec"];
    let names =
        crd.pointer("/status/acceptedNames").filter(|n| n["plural"].is_string()).unwrap_or(&spec["names"]);
    let (Some(group), Some(plural), Some(kind)) =
        (spec["group"].as_str(), names["plural"].as_str(), names["kind"].as_str())
    else {
        return Vec::new();
    };
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let served = versions.iter().filter(|v| v["served"] == true);
    served
        .filter_map(|v| {
            let version = v["name"].as_str()?;
            let sub = |name| v.pointer("/subresources").and_then(|s| s.get(name)).is_some();
            let mut subresources = Vec::new();
            if sub("status") {
                subresources.push(SubRow { name: "status", group, version, kind, verbs: SUB_VERBS.to_vec() });
            }
            if sub("scale") {
                let (group, version) = ("autoscaling", "v1");
                subresources.push(SubRow {
                    name: "scale",
                    group,
                    version,
                    kind: "Scale",
                    verbs: SUB_VERBS.to_vec(),
                });
            }
            Some(Row {
                group,
                version,
                kind,
                plural,
                singular: names["singular"].as_str().unwrap_or_default(),
                namespaced: spec["scope"] == "Namespaced",
                short_names: strings(&names["shortNames"]),
                categories: strings(&names["categories"]),
                verbs: CUSTOM_VERBS.to_vec(),
                storage_hash: "",
                subresources,
            })
        })
        .collect()
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().map(|items| items.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

impl From<&'static Resource> for Row<'static> {
    fn from(r: &'static Resource) -> Self {
        let subresources = r.subresources.iter().map(|s| SubRow {
            name: s.name,
            group: s.group,
            version: s.version,
            kind: s.kind,
            verbs: s.verbs.to_vec(),
        });
        Self {
            group: r.group,
            version: r.version,
            kind: r.kind,
            plural: r.plural,
            singular: r.singular,
            namespaced: r.namespaced,
            short_names: r.short_names.to_vec(),
            categories: r.categories.to_vec(),
            verbs: r.verbs.to_vec(),
            storage_hash: r.storage_hash,
            subresources: subresources.collect(),
        }
    }
}

/// `/api`.
pub fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// `/apis`.
pub fn group_list(rows: &[Row]) -> Value {
    let groups: Vec<Value> = groups(rows).into_iter().filter(|(g, _)| !g.is_empty()).map(api_group).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<group>`; `None` when nothing is served there.
pub fn group(rows: &[Row], name: &str) -> Option<Value> {
    let mut group = api_group(groups(rows).into_iter().find(|(g, _)| *g == name && !g.is_empty())?);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

/// `/api/v1` and `/apis/<group>/<version>`; `None` when nothing is served there.
pub fn resource_list(rows: &[Row], group: &str, version: &str) -> Option<Value> {
    let mut resources = Vec::new();
    for row in rows.iter().filter(|r| r.group == group && r.version == version) {
        let mut entry = json!({
            "name": row.plural, "singularName": row.singular, "namespaced": row.namespaced,
            "kind": row.kind, "verbs": row.verbs,
        });
        lists(&mut entry, row);
        if !row.storage_hash.is_empty() {
            entry["storageVersionHash"] = row.storage_hash.into();
        }
        resources.push(entry);
        for sub in &row.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", row.plural, sub.name), "singularName": "",
                "namespaced": row.namespaced, "kind": sub.kind, "verbs": sub.verbs,
            });
            if (sub.group, sub.version) != (group, version) {
                entry["group"] = sub.group.into();
                entry["version"] = sub.version.into();
            }
            resources.push(entry);
        }
    }
    let group_version = api_version(group, version);
    (!resources.is_empty()).then(|| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
    })
}

/// The aggregated document of `/api` (`legacy`) or `/apis`. Its content type is [`AGGREGATED`].
pub fn aggregated(rows: &[Row], legacy: bool) -> Value {
    let items: Vec<Value> = groups(rows)
        .into_iter()
        .filter(|(g, _)| g.is_empty() == legacy)
        .map(|(group, versions)| {
            let versions: Vec<Value> =
                versions.into_iter().map(|v| aggregated_version(rows, group, v)).collect();
            let mut metadata = Map::new();
            if !group.is_empty() {
                metadata.insert("name".to_owned(), group.into());
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}

/// What the client asks for and the answer must repeat.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn aggregated_version(rows: &[Row], group: &str, version: &str) -> Value {
    let kind_of = |g: &str, v: &str, kind: &str| {
        // Upstream leaves group and version empty where they are the document's own.
        let (g, v) = if (g, v) == (group, version) { ("", "") } else { (g, v) };
        json!({"group": g, "version": v, "kind": kind})
    };
    let resources: Vec<Value> = rows
        .iter()
        .filter(|r| r.group == group && r.version == version)
        .map(|row| {
            let scope = if row.namespaced { "Namespaced" } else { "Cluster" };
            let mut entry = json!({
                "resource": row.plural, "responseKind": kind_of(row.group, row.version, row.kind), "scope": scope,
                "singularResource": row.singular, "verbs": row.verbs,
            });
            lists(&mut entry, row);
            if !row.subresources.is_empty() {
                let subs: Vec<Value> = row
                    .subresources
                    .iter()
                    .map(|s| {
                        let kind = kind_of(s.group, s.version, s.kind);
                        json!({"subresource": s.name, "responseKind": kind, "verbs": s.verbs})
                    })
                    .collect();
                entry["subresources"] = subs.into();
            }
            entry
        })
        .collect();
    json!({"version": version, "resources": resources, "freshness": "Current"})
}

fn lists(entry: &mut Value, row: &Row) {
    if !row.short_names.is_empty() {
        entry["shortNames"] = row.short_names.clone().into();
    }
    if !row.categories.is_empty() {
        entry["categories"] = row.categories.clone().into();
    }
}

/// Groups in order of appearance, each with its versions, preferred first.
fn groups<'a>(rows: &[Row<'a>]) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in rows {
        match groups.iter_mut().find(|(g, _)| *g == row.group) {
            Some((_, versions)) if versions.contains(&row.version) => {}
            Some((_, versions)) => versions.push(row.version),
            None => groups.push((row.group, vec![row.version])),
        }
    }
    for (_, versions) in &mut groups {
        versions.sort_by(|a, b| priority(b).cmp(&priority(a)).then(a.cmp(b)));
    }
    groups
}

fn api_group((name, versions): (&str, Vec<&str>)) -> Value {
    let versions: Vec<Value> =
        versions.iter().map(|v| json!({"groupVersion": api_version(name, v), "version": v})).collect();
    json!({"name": name, "preferredVersion": versions[0], "versions": versions})
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Stable before beta before alpha, higher numbers first; names that are not versions come last.
pub fn priority(version: &str) -> (u8, u32, u32) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major = rest[..digits].parse().ok()?;
        let tail = &rest[digits..];
        if tail.is_empty() {
            return Some((3, major, 0));
        }
        let (stage, minor) = if let Some(minor) = tail.strip_prefix("beta") {
            (2, minor)
        } else {
            (1, tail.strip_prefix("alpha")?)
        };
        let minor = if minor.is_empty() { 0 } else { minor.parse().ok()? };
        Some((stage, major, minor))
    };
    parse().unwrap_or((0, 0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row<'static>> {
        built_in().collect()
    }

    #[test]
    fn groups_keep_upstream_s_order_and_prefer_the_newest_stable_version() {
        let list = group_list(&rows());
        assert_eq!(list["groups"][1]["name"], "apps");
        let autoscaling = group(&rows(), "autoscaling").unwrap();
        assert_eq!(autoscaling["preferredVersion"]["version"], "v2");
        assert_eq!(autoscaling["versions"].as_array().unwrap().len(), 2);
        assert!(group(&rows(), "").is_none());
    }

    #[test]
    fn subresources_name_the_kind_they_speak() {
        let core = resource_list(&rows(), "", "v1").unwrap();
        let entry =
            |name: &str| core["resources"].as_array().unwrap().iter().find(|r| r["name"] == name).unwrap();
        assert_eq!(entry("pods/eviction")["group"], "policy");
        assert!(entry("pods/status").get("group").is_none());
        assert_eq!(entry("pods")["shortNames"], json!(["po"]));
    }

    #[test]
    fn custom_resources_appear_per_served_version() {
        let crd = json!({"spec": {"group": "g.io", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo", "singular": "foo"},
        "versions": [
            {"name": "v1beta1", "served": true},
            {"name": "v1", "served": true, "subresources": {"status": {}, "scale": {}}},
            {"name": "v0", "served": false},
        ]}});
        let rows: Vec<Row> = rows().into_iter().chain(custom(&crd)).collect();
        let document = aggregated(&rows, false);
        let last = document["items"].as_array().unwrap().last().unwrap();
        assert_eq!(last["metadata"]["name"], "g.io");
        assert_eq!(last["versions"][0]["version"], "v1");
        assert_eq!(
            last["versions"][0]["resources"][0]["subresources"][1]["responseKind"]["group"],
            "autoscaling"
        );
        assert_eq!(last["versions"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn versions_sort_as_kubernetes_sorts_them() {
        let mut versions = ["v1alpha1", "foo", "v1", "v10", "v2beta1", "v2"];
        versions.sort_by_key(|v| std::cmp::Reverse(priority(v)));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v1alpha1", "foo"]);
    }
}
