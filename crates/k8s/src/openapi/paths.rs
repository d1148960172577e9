//! The paths of a resource with their operations.

use serde_json::{Map, Value, json};

use super::definitions::Definitions;
use super::{Dialect, path_of};
use crate::discovery::Row;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];
const READ: &[&str] = &["application/json", "application/yaml"];
const READ_BUILT_IN: &[&str] =
    &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// Where to find the definition of a kind.
pub type Names<'a> = dyn Fn(&str, &str, &str) -> Option<String> + 'a;

struct Operation<'a> {
    /// `post`, `list`, …: upstream's name for what it does.
    action: &'static str,
    id: String,
    kind: (&'a str, &'a str, &'a str),
    body: Option<String>,
    answer: Option<String>,
    parameters: &'static [(&'static str, &'static str)],
}

const LIST: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const WRITE: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const PATCH: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string"), ("force", "boolean")];
const DELETE: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("ignoreStoreReadErrorWithClusterBreakingPotential", "boolean"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];

/// Verb, method, and the method's name in operation ids.
const METHODS: &[(&str, &str, &str)] = &[
    ("create", "post", "Post"),
    ("delete", "delete", "Delete"),
    ("get", "get", "Get"),
    ("patch", "patch", "Patch"),
    ("update", "put", "Put"),
];

/// Adds the paths of a resource and the definitions they name.
pub fn resource(
    paths: &mut Map<String, Value>,
    dialect: Dialect,
    row: &Row,
    built_in: bool,
    names: &Names,
    definitions: &mut Definitions,
) {
    let root = format!("/{}", path_of(row.group, row.version));
    let kind = (row.group, row.version, row.kind);
    let own = names(row.kind, row.group, row.version);
    let list = names(&format!("{}List", row.kind), row.group, row.version);
    let (scope, scoped) = if row.namespaced { ("/namespaces/{namespace}", "Namespaced") } else { ("", "") };
    let id = |verb: &str, rest: &str| {
        format!("{verb}{}{scoped}{}{rest}", group_words(row.group, row.version), row.kind)
    };
    let delete_options = Some(format!("{META}DeleteOptions"));
    let status = Some(format!("{META}Status"));
    let mut put = |path: String, operations: Vec<(&'static str, Operation)>| {
        if operations.is_empty() {
            return;
        }
        let mut item = Map::new();
        for (method, operation) in operations {
            item.insert(method.to_owned(), operation.render(dialect, built_in, definitions));
        }
        let in_path: Vec<Value> = ["name", "namespace"]
            .into_iter()
            .filter(|p| path.contains(&format!("{{{p}}}")))
            .map(|p| parameter(dialect, p, "path", "string"))
            .collect();
        if !in_path.is_empty() {
            item.insert("parameters".to_owned(), in_path.into());
        }
        paths.insert(path, item.into());
    };
    let has = |verb: &str| row.verbs.contains(&verb);

    let mut collection = Vec::new();
    if has("list") {
        let operation =
            |id| Operation { action: "list", id, kind, body: None, answer: list.clone(), parameters: LIST };
        collection.push(("get", operation(id("list", ""))));
        if row.namespaced {
            let all = format!("list{}{}ForAllNamespaces", group_words(row.group, row.version), row.kind);
            put(format!("{root}/{}", row.plural), vec![("get", operation(all))]);
        }
    }
    if has("create") {
        let (body, answer) = (own.clone(), own.clone());
        collection.push((
            "post",
            Operation { action: "post", id: id("create", ""), kind, body, answer, parameters: WRITE },
        ));
    }
    if has("deletecollection") {
        let id = format!("delete{}Collection{scoped}{}", group_words(row.group, row.version), row.kind);
        let (body, answer) = (delete_options.clone(), status.clone());
        collection.push((
            "delete",
            Operation { action: "deletecollection", id, kind, body, answer, parameters: LIST },
        ));
    }
    let base = format!("{root}{scope}/{}", row.plural);
    put(base.clone(), collection);

    let mut item = one(row.verbs.as_slice(), kind, own.as_ref(), &|verb| id(verb, ""));
    if has("delete") {
        let (body, answer) = (delete_options, status);
        item.push((
            "delete",
            Operation { action: "delete", id: id("delete", ""), kind, body, answer, parameters: DELETE },
        ));
    }
    put(format!("{base}/{{name}}"), item);

    for sub in &row.subresources {
        let kind = (sub.group, sub.version, sub.kind);
        let own = names(sub.kind, sub.group, sub.version);
        let word = capitalised(sub.name);
        // Streams and proxies: bytes pass through, and no kind describes them.
        if sub.kind.ends_with("Options") {
            let connect = |verb: &&str| {
                let (method, title) = METHODS.iter().find(|(v, ..)| v == verb).map(|(_, m, t)| (*m, *t))?;
                let id = format!(
                    "connect{}{title}{scoped}{}{word}",
                    group_words(row.group, row.version),
                    row.kind
                );
                Some((
                    method,
                    Operation { action: "connect", id, kind, body: None, answer: None, parameters: &[] },
                ))
            };
            put(format!("{base}/{{name}}/{}", sub.name), sub.verbs.iter().filter_map(connect).collect());
            continue;
        }
        let mut operations = one(&sub.verbs, kind, own.as_ref(), &|verb| id(verb, &word));
        if sub.verbs.contains(&"create") {
            let (body, answer) = (own.clone(), own.clone());
            let id = id("create", &word);
            operations
                .push(("post", Operation { action: "post", id, kind, body, answer, parameters: WRITE }));
        }
        put(format!("{base}/{{name}}/{}", sub.name), operations);
    }
}

/// Operations on a named object that resource and subresource share.
fn one<'a>(
    verbs: &[&str],
    kind: (&'a str, &'a str, &'a str),
    own: Option<&String>,
    id: &dyn Fn(&str) -> String,
) -> Vec<(&'static str, Operation<'a>)> {
    let mut out = Vec::new();
    let answer = own.cloned();
    if verbs.contains(&"get") {
        out.push((
            "get",
            Operation {
                action: "get",
                id: id("read"),
                kind,
                body: None,
                answer: answer.clone(),
                parameters: &[],
            },
        ));
    }
    if verbs.contains(&"update") {
        let (body, answer) = (answer.clone(), answer.clone());
        out.push((
            "put",
            Operation { action: "put", id: id("replace"), kind, body, answer, parameters: WRITE },
        ));
    }
    if verbs.contains(&"patch") {
        let body = Some(format!("{META}Patch"));
        out.push((
            "patch",
            Operation { action: "patch", id: id("patch"), kind, body, answer, parameters: PATCH },
        ));
    }
    out
}

impl Operation<'_> {
    fn render(self, dialect: Dialect, built_in: bool, definitions: &mut Definitions) -> Value {
        let (group, version, kind) = self.kind;
        let consumes: &[&str] = match self.action {
            // Strategic merge needs the Go types; custom resources have none.
            "patch" if built_in => &PATCHES,
            "patch" => &PATCHES[..3],
            _ if built_in => READ_BUILT_IN,
            _ => READ,
        };
        let produces = if built_in { READ_BUILT_IN } else { READ };
        let answer = self.answer.map(|name| definitions.refer(&name));
        let body = self.body.map(|name| definitions.refer(&name));
        let mut parameters: Vec<Value> =
            self.parameters.iter().map(|(name, type_)| parameter(dialect, name, "query", type_)).collect();
        let mut operation = json!({
            "operationId": self.id,
            "x-kubernetes-action": self.action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        });
        let mut ok = json!({"description": "OK"});
        match dialect {
            Dialect::V3 => {
                let content = |types: &[&str], schema: &Value| -> Map<String, Value> {
                    types.iter().map(|t| ((*t).to_owned(), json!({"schema": schema}))).collect()
                };
                if let Some(schema) = &answer {
                    ok["content"] = content(produces, schema).into();
                }
                if let Some(schema) = &body {
                    let required = self.action == "post" || self.action == "put" || self.action == "patch";
                    let types: &[&str] = if self.action.starts_with("delete") { READ } else { consumes };
                    operation["requestBody"] =
                        json!({"content": content(types, schema), "required": required});
                }
            }
            Dialect::V2 => {
                if let Some(schema) = answer {
                    ok["schema"] = schema;
                }
                if let Some(schema) = body {
                    parameters.push(json!({"in": "body", "name": "body", "schema": schema}));
                    operation["consumes"] = consumes.into();
                }
                operation["produces"] = produces.into();
            }
        }
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        let mut responses = json!({"200": ok.clone(), "401": {"description": "Unauthorized"}});
        if matches!(self.action, "post" | "put" | "patch") {
            ok["description"] = "Created".into();
            responses["201"] = ok;
        }
        operation["responses"] = responses;
        operation
    }
}

fn parameter(dialect: Dialect, name: &str, place: &str, type_: &str) -> Value {
    let mut parameter = match dialect {
        Dialect::V3 => json!({"name": name, "in": place, "schema": {"type": type_, "uniqueItems": true}}),
        Dialect::V2 => json!({"name": name, "in": place, "type": type_, "uniqueItems": true}),
    };
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}

/// `CoreV1`, `AppsV1`, `RbacAuthorizationV1`.
fn group_words(group: &str, version: &str) -> String {
    let group = group.strip_suffix(".k8s.io").unwrap_or(group);
    let group = if group.is_empty() { "core" } else { group };
    group.split('.').map(capitalised).chain([capitalised(version)]).collect()
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).filter(|c| *c != '-').collect()
}
