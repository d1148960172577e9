//! What a request is about, read from its method, path and query: upstream's "request info".

use http::Method;

use super::query::Query;

/// The target of a request. For paths outside `/api` and `/apis`, `resource` is empty.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Target {
    pub verb: &'static str,
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub name: String,
    pub subresource: String,
    /// The field selector of a list or watch, as text.
    pub field_selector: String,
    /// What follows the subresource (the path of a proxied request), without a leading slash.
    pub rest: String,
}

impl Target {
    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }

    /// `resource/subresource`, the form in which access rules name it.
    pub fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

pub fn parse(method: &Method, path: &str, query: &Query) -> Target {
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::HEAD | Method::GET => "get",
        Method::OPTIONS => "options",
        _ => "",
    };
    let lower = match *method {
        Method::POST => "post",
        Method::PUT => "put",
        Method::HEAD => "head",
        _ => verb,
    };
    let mut parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let outside = Target { verb: lower, ..Target::default() };
    let (group, version) = match parts.as_slice() {
        ["api", version, _, ..] => ("", *version),
        ["apis", group, version, _, ..] => (*group, *version),
        _ => return outside,
    };
    parts.drain(..if group.is_empty() { 2 } else { 3 });
    let mut target =
        Target { verb, group: group.to_owned(), version: version.to_owned(), ..Target::default() };
    // The old way to ask for a watch, still used by some clients.
    let legacy_watch = parts[0] == "watch" && parts.len() > 1;
    if legacy_watch {
        parts.remove(0);
    }
    if parts[0] == "namespaces" && parts.len() > 1 {
        target.namespace = decoded(parts[1]);
        // `/namespaces/x` and its own subresources are about the Namespace object itself.
        if parts.len() > 2 && !(parts.len() == 3 && matches!(parts[2], "status" | "finalize")) {
            parts.drain(..2);
        }
    }
    target.resource = parts[0].to_owned();
    if let Some(name) = parts.get(1) {
        target.name = decoded(name);
    }
    if let Some(subresource) = parts.get(2) {
        target.subresource = (*subresource).to_owned();
        target.rest = parts[3..].join("/");
        if path.ends_with('/') && !target.rest.is_empty() {
            target.rest.push('/');
        }
    }
    if target.name.is_empty() {
        target.verb = match verb {
            "get" if legacy_watch || query.flag("watch") => "watch",
            "get" => "list",
            "delete" => "deletecollection",
            other => other,
        };
    } else if verb == "get" && target.subresource.is_empty() && (legacy_watch || query.flag("watch")) {
        target.verb = "watch";
    }
    target.field_selector = query.get("fieldSelector").unwrap_or_default().to_owned();
    // A list of exactly one name is authorized as that name.
    if target.name.is_empty()
        && matches!(target.verb, "list" | "watch" | "deletecollection")
        && let Some(selector) = query.get("fieldSelector")
        && let Some(name) = selector
            .split(',')
            .find_map(|t| t.strip_prefix("metadata.name=").map(|n| n.strip_prefix('=').unwrap_or(n)))
    {
        target.name = name.to_owned();
    }
    target
}

fn decoded(text: &str) -> String {
    super::query::percent_decode(text, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(method: Method, path: &str, query: &str) -> Target {
        parse(&method, path, &Query::parse(query))
    }

    #[test]
    fn a_namespaced_object_is_found_in_its_path() {
        let t = target(Method::GET, "/apis/apps/v1/namespaces/ns1/deployments/web/scale", "");
        assert_eq!((t.group.as_str(), t.version.as_str()), ("apps", "v1"));
        assert_eq!((t.namespace.as_str(), t.resource.as_str()), ("ns1", "deployments"));
        assert_eq!((t.name.as_str(), t.subresource.as_str(), t.verb), ("web", "scale", "get"));
    }

    #[test]
    fn a_namespace_is_itself_a_resource() {
        let t = target(Method::PUT, "/api/v1/namespaces/ns1/finalize", "");
        assert_eq!(
            (t.resource.as_str(), t.name.as_str(), t.subresource.as_str()),
            ("namespaces", "ns1", "finalize")
        );
        let t = target(Method::GET, "/api/v1/namespaces", "");
        assert_eq!((t.resource.as_str(), t.verb), ("namespaces", "list"));
    }

    #[test]
    fn a_list_of_one_name_carries_that_name() {
        let t =
            target(Method::GET, "/api/v1/namespaces/a/secrets", "watch=1&fieldSelector=metadata.name%3Dx");
        assert_eq!((t.name.as_str(), t.verb), ("x", "watch"));
    }

    #[test]
    fn discovery_paths_are_not_resources() {
        for path in ["/api", "/apis/", "/apis/apps", "/apis/apps/v1", "/api/v1", "/healthz"] {
            assert!(!target(Method::GET, path, "").is_resource(), "{path}");
        }
    }
}
