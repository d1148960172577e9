//! Role-based access: an index of roles and bindings, and the question "may this user do that".

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};
use tombolo_k8s::selector::LabelSelector;

use super::identity::Identity;
use crate::mirror::Index;
use crate::record::Record;
use crate::registry::builtin::place;

const GROUP: &str = "rbac.authorization.k8s.io";

/// What is asked for. Either a resource or a path outside the API groups.
#[derive(Debug, Clone, Default)]
pub struct Action<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    /// With its subresource: `pods/log`.
    pub resource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
    /// What a list or watch is limited to.
    pub field_selector: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    pub names: Vec<String>,
    pub paths: Vec<String>,
}

struct ClusterRole {
    rules: Arc<[Rule]>,
    labels: Vec<(String, String)>,
    aggregates: Vec<LabelSelector>,
}

impl ClusterRole {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }
}

struct Binding {
    namespaced_role: bool,
    role: String,
    subjects: Vec<Subject>,
}

enum Subject {
    /// A person, a program, or a service account.
    User(String),
    Group(String),
}

/// Bindings by name, and their names by subject: a hub has some for every site, and asks for each request.
#[derive(Default)]
struct Bindings {
    all: HashMap<String, Binding>,
    of_user: HashMap<String, BTreeSet<String>>,
    of_group: HashMap<String, BTreeSet<String>>,
}

impl Bindings {
    fn put(&mut self, name: &str, binding: Binding) {
        self.remove(name);
        for subject in &binding.subjects {
            self.named(subject).insert(name.to_owned());
        }
        self.all.insert(name.to_owned(), binding);
    }

    fn remove(&mut self, name: &str) {
        let Some(binding) = self.all.remove(name) else { return };
        for subject in &binding.subjects {
            let names = self.named(subject);
            names.remove(name);
            if names.is_empty() {
                match subject {
                    Subject::User(user) => self.of_user.remove(user),
                    Subject::Group(group) => self.of_group.remove(group),
                };
            }
        }
    }

    fn named(&mut self, subject: &Subject) -> &mut BTreeSet<String> {
        match subject {
            Subject::User(user) => self.of_user.entry(user.clone()).or_default(),
            Subject::Group(group) => self.of_group.entry(group.clone()).or_default(),
        }
    }

    fn of(&self, user: &Identity) -> impl Iterator<Item = &Binding> {
        let groups = user.groups.iter().filter_map(|group| self.of_group.get(group));
        let names = self.of_user.get(&user.user).into_iter().chain(groups).flatten();
        names.filter_map(|name| self.all.get(name))
    }
}

/// All roles and bindings.
#[derive(Default)]
pub struct Rbac {
    cluster_roles: HashMap<String, ClusterRole>,
    roles: HashMap<(String, String), Arc<[Rule]>>,
    cluster_bindings: Bindings,
    bindings: HashMap<String, Bindings>,
}

/// The order of sources in [`Rbac`]'s mirror.
pub fn sources() -> [String; 4] {
    ["clusterroles", "roles", "clusterrolebindings", "rolebindings"].map(|plural| place(GROUP, plural))
}

impl Rbac {
    pub fn allows(&self, user: &Identity, action: &Action) -> bool {
        self.visit(user, action.namespace, |rule| rule.allows(action))
    }

    /// All rules that hold for a user in a namespace.
    pub fn rules_for(&self, user: &Identity, namespace: &str) -> Vec<Rule> {
        let mut rules = Vec::new();
        self.visit(user, namespace, |rule| {
            rules.push(rule.clone());
            false
        });
        rules
    }

    /// The rules behind a role reference, seen from a namespace.
    pub fn role_rules(&self, namespace: &str, kind: &str, name: &str) -> Option<Vec<Rule>> {
        if kind == "Role" {
            return self.roles.get(&(namespace.to_owned(), name.to_owned())).map(|r| r.to_vec());
        }
        self.cluster_roles.contains_key(name).then(|| {
            let mut rules = Vec::new();
            self.visit_cluster_role(name, &mut |rule| {
                rules.push(rule.clone());
                false
            });
            rules
        })
    }

    /// Calls `found` for each rule that applies, until it says true.
    fn visit(&self, user: &Identity, namespace: &str, mut found: impl FnMut(&Rule) -> bool) -> bool {
        for binding in self.cluster_bindings.of(user) {
            if self.visit_cluster_role(&binding.role, &mut found) {
                return true;
            }
        }
        let Some(bindings) = self.bindings.get(namespace).filter(|_| !namespace.is_empty()) else {
            return false;
        };
        for binding in bindings.of(user) {
            let stop = if binding.namespaced_role {
                self.roles
                    .get(&(namespace.to_owned(), binding.role.clone()))
                    .is_some_and(|rules| rules.iter().any(&mut found))
            } else {
                self.visit_cluster_role(&binding.role, &mut found)
            };
            if stop {
                return true;
            }
        }
        false
    }

    fn visit_cluster_role(&self, name: &str, found: &mut impl FnMut(&Rule) -> bool) -> bool {
        let mut waiting = vec![name];
        let mut seen: Vec<&str> = Vec::new();
        while let Some(name) = waiting.pop() {
            let Some(role) = self.cluster_roles.get(name) else { continue };
            if role.rules.iter().any(&mut *found) {
                return true;
            }
            seen.push(name);
            if role.aggregates.is_empty() {
                continue;
            }
            for (other, candidate) in &self.cluster_roles {
                let selected = role.aggregates.iter().any(|s| s.matches_by(|key| candidate.label(key)));
                if selected && !seen.contains(&other.as_str()) && !waiting.contains(&other.as_str()) {
                    waiting.push(other);
                }
            }
        }
        false
    }
}

impl Rule {
    pub fn parse(value: &Value) -> Self {
        let list = |key: &str| -> Vec<String> {
            let items = value[key].as_array().map(Vec::as_slice).unwrap_or_default();
            items.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
        };
        Self {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            paths: list("nonResourceURLs"),
        }
    }

    pub fn to_value(&self) -> Value {
        if !self.paths.is_empty() {
            return json!({"verbs": self.verbs, "nonResourceURLs": self.paths});
        }
        let mut rule = json!({"verbs": self.verbs, "apiGroups": self.groups, "resources": self.resources});
        if !self.names.is_empty() {
            rule["resourceNames"] = json!(self.names);
        }
        rule
    }

    pub fn allows(&self, action: &Action) -> bool {
        let any = |list: &[String], wanted: &str| list.iter().any(|i| i == "*" || i == wanted);
        if !any(&self.verbs, action.verb) {
            return false;
        }
        if action.resource.is_empty() {
            return self.paths.iter().any(|path| match path.strip_suffix('*') {
                Some(prefix) => action.path.starts_with(prefix),
                None => path == action.path,
            });
        }
        any(&self.groups, action.group)
            && self.covers(action.resource)
            && (self.names.is_empty() || self.names.iter().any(|n| n == action.name))
    }

    fn covers(&self, resource: &str) -> bool {
        self.resources.iter().any(|r| {
            r == "*"
                || r == resource
                || r.strip_prefix("*/")
                    .is_some_and(|sub| resource.split_once('/').is_some_and(|(_, s)| s == sub))
        })
    }
}

impl Index for Rbac {
    fn put(&mut self, source: usize, key: &str, value: &[u8], revision: u64) {
        let parsed =
            Record::read(value).and_then(|r| r.parse("{\"metadata\":{\"resourceVersion\":\"", revision));
        let Ok(object) = parsed else { return };
        let (namespace, name) = place_of(source, key);
        let rules = || -> Arc<[Rule]> {
            let rules = object["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
            rules.iter().map(Rule::parse).collect()
        };
        let labels = |map: &Value| -> Vec<(String, String)> {
            let entries = map.as_object().into_iter().flatten();
            entries.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
        };
        match source {
            0 => {
                let selectors =
                    object.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
                // A selector that cannot be read selects nothing: it must never give more than was meant.
                let selectors = selectors.into_iter().flatten();
                let aggregates = selectors.filter_map(|s| LabelSelector::from_object(Some(s)).ok()).collect();
                let role =
                    ClusterRole { rules: rules(), labels: labels(&object["metadata"]["labels"]), aggregates };
                self.cluster_roles.insert(name.to_owned(), role);
            }
            1 => {
                self.roles.insert((namespace.to_owned(), name.to_owned()), rules());
            }
            2 => {
                self.cluster_bindings.put(name, binding(&object, namespace));
            }
            _ => {
                let bindings = self.bindings.entry(namespace.to_owned()).or_default();
                bindings.put(name, binding(&object, namespace));
            }
        }
    }

    fn remove(&mut self, source: usize, key: &str) {
        let (namespace, name) = place_of(source, key);
        match source {
            0 => {
                self.cluster_roles.remove(name);
            }
            1 => {
                self.roles.remove(&(namespace.to_owned(), name.to_owned()));
            }
            2 => {
                self.cluster_bindings.remove(name);
            }
            _ => {
                if let Some(bindings) = self.bindings.get_mut(namespace) {
                    bindings.remove(name);
                }
            }
        }
    }

    fn clear(&mut self, source: usize) {
        match source {
            0 => self.cluster_roles.clear(),
            1 => self.roles.clear(),
            2 => self.cluster_bindings = Bindings::default(),
            _ => self.bindings.clear(),
        }
    }
}

fn place_of(source: usize, key: &str) -> (&str, &str) {
    let mut parts = key.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let namespace = if source % 2 == 1 { parts.next().unwrap_or_default() } else { "" };
    (namespace, name)
}

fn binding(object: &Value, namespace: &str) -> Binding {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let subjects = object["subjects"].as_array().map(Vec::as_slice).unwrap_or_default();
    let subjects = subjects.iter().filter_map(|subject| {
        let name = text(&subject["name"]);
        Some(match subject["kind"].as_str()? {
            "User" => Subject::User(name),
            "Group" => Subject::Group(name),
            "ServiceAccount" => {
                let given = text(&subject["namespace"]);
                let home = if given.is_empty() { namespace } else { &given };
                Subject::User(format!("system:serviceaccount:{home}:{name}"))
            }
            _ => return None,
        })
    });
    Binding {
        namespaced_role: object["roleRef"]["kind"] == "Role",
        role: text(&object["roleRef"]["name"]),
        subjects: subjects.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Rbac {
        let mut rbac = Rbac::default();
        let mut add = |source: usize, key: &str, object: Value| {
            rbac.put(source, key, &crate::record::encode(&object, 0, &[]), 1);
        };
        add(
            0,
            "x/view",
            json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "view"}}]}}),
        );
        let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/log"]});
        add(0, "x/part", json!({"metadata": {"labels": {"to": "view"}}, "rules": [rule]}));
        let one = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a"]});
        add(1, "x/ns/only-a", json!({"rules": [one]}));
        add(
            2,
            "x/b",
            json!({"roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "Group", "name": "readers"}]}),
        );
        add(
            3,
            "x/ns/b",
            json!({"roleRef": {"kind": "Role", "name": "only-a"},
            "subjects": [{"kind": "ServiceAccount", "name": "sa"}]}),
        );
        rbac
    }

    fn action<'a>(verb: &'a str, resource: &'a str, namespace: &'a str, name: &'a str) -> Action<'a> {
        Action { verb, resource, namespace, name, ..Action::default() }
    }

    #[test]
    fn aggregated_roles_give_what_their_parts_give() {
        let user = Identity::new("u", ["readers"]);
        assert!(index().allows(&user, &action("get", "pods/log", "any", "x")));
        assert!(!index().allows(&user, &action("delete", "pods", "any", "x")));
    }

    #[test]
    fn aggregated_roles_take_only_what_all_of_a_selector_selects() {
        let mut rbac = index();
        let select = |selector: Value| {
            let role = json!({"aggregationRule": {"clusterRoleSelectors": [selector]}});
            crate::record::encode(&role, 0, &[])
        };
        let everything = json!({"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
        rbac.put(0, "x/cluster-admin", &crate::record::encode(&everything, 0, &[]), 1);
        let user = Identity::new("u", ["readers"]);
        let (read, write) = (action("get", "pods", "any", "x"), action("delete", "pods", "any", "x"));
        let expression = json!({"key": "to", "operator": "In", "values": ["view"]});
        rbac.put(0, "x/view", &select(json!({"matchExpressions": [expression]})), 1);
        assert!(rbac.allows(&user, &read) && !rbac.allows(&user, &write));
        let other = json!({"key": "to", "operator": "DoesNotExist"});
        rbac.put(
            0,
            "x/view",
            &select(json!({"matchLabels": {"to": "view"}, "matchExpressions": [other]})),
            1,
        );
        assert!(!rbac.allows(&user, &read) && !rbac.allows(&user, &write));
        // What no selector can mean selects nothing, and an empty one everything.
        let bad = json!({"key": "to", "operator": "Near", "values": ["view"]});
        rbac.put(0, "x/view", &select(json!({"matchExpressions": [bad]})), 1);
        assert!(!rbac.allows(&user, &read) && !rbac.allows(&user, &write));
        rbac.put(0, "x/view", &select(json!({})), 1);
        assert!(rbac.allows(&user, &write));
    }

    #[test]
    fn a_binding_that_is_changed_or_gone_gives_nothing_to_those_it_was_for() {
        let mut rbac = index();
        let pods = action("get", "pods", "any", "x");
        let (readers, writers) = (Identity::new("u", ["readers"]), Identity::new("u", ["writers"]));
        let other = json!({"roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "Group", "name": "writers"}]});
        rbac.put(2, "x/b", &crate::record::encode(&other, 0, &[]), 2);
        assert!(!rbac.allows(&readers, &pods) && rbac.allows(&writers, &pods));
        rbac.remove(2, "x/b");
        assert!(!rbac.allows(&writers, &pods));
    }

    #[test]
    fn a_namespaced_binding_holds_in_its_namespace_and_for_its_names_only() {
        let user = Identity::new("system:serviceaccount:ns:sa", [""; 0]);
        assert!(index().allows(&user, &action("delete", "secrets", "ns", "a")));
        assert!(!index().allows(&user, &action("delete", "secrets", "ns", "b")));
        assert!(!index().allows(&user, &action("delete", "secrets", "other", "a")));
    }
}
