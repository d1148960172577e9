//! Nobody gives away rights they do not have.

use serde_json::Value;

use super::Operation;
use crate::auth::identity::GROUP_MASTERS;
use crate::auth::rbac::{Action, Rule};
use crate::http::status::Result;
use crate::registry::resource::Resource;
use crate::registry::write;
use crate::server::Call;

pub async fn admit(
    call: &Call,
    resource: &Resource,
    operation: Operation<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<()> {
    if operation == Operation::Delete || call.user.in_group(GROUP_MASTERS) {
        return Ok(());
    }
    let name = write::name_of(object).to_owned();
    let namespace = call.target.namespace.clone();
    let app = &call.app;
    let may = |verb: &'static str, plural: String, name: String| {
        let namespace = namespace.clone();
        async move {
            let action = Action {
                verb,
                group: "rbac.authorization.k8s.io",
                resource: &plural,
                namespace: &namespace,
                name: &name,
                ..Action::default()
            };
            app.access.allows(app, &call.user, &action).await
        }
    };
    let mut gathers = false;
    let wanted: Vec<Rule> = match resource.plural.as_str() {
        "roles" | "clusterroles" => {
            // Labels count too: they decide which other roles gather this one.
            let unchanged = old.is_some_and(|old| only_lets_go(object, old));
            if unchanged || may("escalate", resource.plural.clone(), name.clone()).await? {
                return Ok(());
            }
            gathers =
                resource.plural == "clusterroles" && (aggregates(object) || old.is_some_and(aggregates));
            object["rules"].as_array().into_iter().flatten().map(Rule::parse).collect()
        }
        _ => {
            let unchanged =
                old.is_some_and(|o| o["roleRef"] == object["roleRef"] && o["subjects"] == object["subjects"]);
            let (kind, role) = (write::text(object, "/roleRef/kind"), write::text(object, "/roleRef/name"));
            let plural = if kind == "Role" { "roles" } else { "clusterroles" };
            if unchanged || may("bind", plural.to_owned(), role.to_owned()).await? {
                return Ok(());
            }
            match app.access.role_rules(app, &namespace, kind, role).await? {
                Some(rules) => rules,
                None => {
                    return Err(crate::http::status::Failure::not_found(
                        "rbac.authorization.k8s.io",
                        plural,
                        role,
                    ));
                }
            }
        }
    };
    let have = app.access.rules_for(app, &call.user, &namespace).await?;
    let missing: Vec<String> =
        wanted.iter().filter(|rule| !covered(rule, &have)).map(|rule| rule.to_value().to_string()).collect();
    if missing.is_empty() {
        // What a role gathers can become anything, and who takes a selector away can take any right from others.
        if gathers && !everything().iter().all(|rule| covered(rule, &have)) {
            let why = "must have cluster-admin privileges to use an aggregationRule";
            return Err(resource.forbidden(&name, why));
        }
        return Ok(());
    }
    let why = format!(
        "user \"{}\" (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
        call.user.user,
        call.user.groups,
        missing.join("\n")
    );
    Err(resource.forbidden(&name, why))
}

fn aggregates(role: &Value) -> bool {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
    selectors.is_some_and(|list| !list.is_empty())
}

/// All that rules can give.
fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    let nothing = Rule { verbs: all(), groups: vec![], resources: vec![], names: vec![], paths: vec![] };
    [Rule { groups: all(), resources: all(), ..nothing.clone() }, Rule { paths: all(), ..nothing }]
}

/// Whether a change touches only what holds an object back from being collected.
fn only_lets_go(object: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        for key in ["ownerReferences", "finalizers", "managedFields"] {
            write::metadata(&mut object).remove(key);
        }
        object
    };
    rest(object) == rest(old)
}

/// Whether every single thing a rule allows is allowed by some rule at hand.
fn covered(rule: &Rule, have: &[Rule]) -> bool {
    let one = vec![String::new()];
    let names = if rule.names.is_empty() { &one } else { &rule.names };
    rule.verbs.iter().all(|verb| {
        let paths = rule.paths.iter().all(|path| {
            have.iter().any(|h| {
                listed(&h.verbs, verb)
                    && h.paths.iter().any(|p| {
                        p == path || p.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
                    })
            })
        });
        paths
            && rule.groups.iter().all(|group| {
                rule.resources.iter().all(|resource| {
                    names.iter().all(|name| {
                        have.iter().any(|h| {
                            listed(&h.verbs, verb)
                                && listed(&h.groups, group)
                                && (listed(&h.resources, resource)
                                    || h.resources.iter().any(|r| {
                                        r.strip_prefix("*/")
                                            .is_some_and(|sub| resource.ends_with(&format!("/{sub}")))
                                    }))
                                && (h.names.is_empty() || (!name.is_empty() && h.names.contains(name)))
                        })
                    })
                })
            })
    })
}

fn listed(list: &[String], wanted: &str) -> bool {
    list.iter().any(|i| i == "*" || i == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rule_is_covered_piece_by_piece() {
        let rule = |v: Value| Rule::parse(&v);
        let have = [
            rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]})),
            rule(json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["secrets"]})),
        ];
        assert!(covered(
            &rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "secrets"]})),
            &have
        ));
        assert!(!covered(&rule(json!({"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]})), &have));
        assert!(!covered(&rule(json!({"verbs": ["*"], "apiGroups": [""], "resources": ["pods"]})), &have));
    }
}
