//! The access rules every cluster starts with, from `data/roles.txt`.

use serde_json::{Value, json};

const TABLE: &str = include_str!("../../data/roles.txt");
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// An object and the resource it belongs to.
pub struct Seed {
    pub plural: &'static str,
    pub object: Value,
}

pub fn seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = Vec::new();
    for line in TABLE.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["role", name, options @ ..] => seeds.push(role(name, options)),
            ["bind", name, rest @ ..] => seeds.push(binding(name, rest)),
            rule => {
                if let Some(role) = seeds.last_mut().and_then(|s| s.object["rules"].as_array_mut()) {
                    role.push(self::rule(rule));
                }
            }
        }
    }
    seeds
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
    })
}

fn role(name: &str, options: &[&str]) -> Seed {
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata(name), "rules": [],
    });
    let mut plural = "clusterroles";
    let mut selectors = Vec::new();
    for option in options {
        match option.split_once('=') {
            Some(("ns", namespace)) => {
                object["kind"] = "Role".into();
                object["metadata"]["namespace"] = namespace.into();
                plural = "roles";
            }
            Some(("to", role)) => {
                object["metadata"]["labels"][format!("{AGGREGATE}{role}")] = "true".into();
            }
            Some(("from", role)) => {
                selectors.push(json!({"matchLabels": {format!("{AGGREGATE}{role}"): "true"}}));
            }
            _ => {}
        }
    }
    if !selectors.is_empty() {
        object["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
    }
    Seed { plural, object }
}

fn rule(words: &[&str]) -> Value {
    let list = |text: &str| -> Vec<String> {
        text.split(',').map(|t| if t == "core" { "" } else { t }.to_owned()).collect()
    };
    match words {
        [verbs, paths] => json!({"verbs": list(verbs), "nonResourceURLs": list(paths)}),
        [verbs, groups, resources, names @ ..] => {
            let mut rule =
                json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)});
            if let [names] = names {
                rule["resourceNames"] = json!(list(names));
            }
            rule
        }
        _ => Value::Null,
    }
}

fn binding(name: &str, rest: &[&str]) -> Seed {
    let mut object = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata(name),
    });
    let mut plural = "clusterrolebindings";
    let mut rest = rest.iter();
    let mut role = *rest.next().unwrap_or(&"");
    if let Some(namespace) = role.strip_prefix("ns=") {
        object["kind"] = "RoleBinding".into();
        object["metadata"]["namespace"] = namespace.into();
        plural = "rolebindings";
        role = rest.next().unwrap_or(&"");
    }
    let (kind, role) = role.strip_prefix("role/").map_or(("ClusterRole", role), |name| ("Role", name));
    object["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role});
    let subjects: Vec<Value> = rest
        .filter_map(|subject| {
            let (kind, name) = subject.split_once(':')?;
            Some(match kind {
                "SA" => {
                    let (namespace, name) = name.split_once('/')?;
                    json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
                }
                kind => json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}),
            })
        })
        .collect();
    if !subjects.is_empty() {
        object["subjects"] = subjects.into();
    }
    Seed { plural, object }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_understood() {
        let seeds = seeds();
        let lines = |start: &str| TABLE.lines().filter(|l| l.starts_with(start)).count();
        let rules = |s: &Seed| s.object["rules"].as_array().map_or(0, Vec::len);
        assert_eq!(seeds.len(), lines("role ") + lines("bind "));
        assert_eq!(seeds.iter().map(rules).sum::<usize>(), lines(" "));
        assert!(
            seeds
                .iter()
                .filter_map(|s| s.object["rules"].as_array())
                .flatten()
                .all(|r| r["verbs"].is_array())
        );
        let admin = seeds.iter().find(|s| s.object["metadata"]["name"] == "cluster-admin").unwrap();
        assert_eq!(admin.object["rules"][1]["nonResourceURLs"][0], "*");
        let bound =
            seeds.iter().filter(|s| s.plural == "rolebindings").all(|s| s.object["roleRef"]["name"] != "");
        assert!(bound);
    }
}
