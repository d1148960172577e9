//! Addresses of API resources.

use serde::de::DeserializeOwned;
use std::{borrow::Cow, fmt::Debug};

/// One served resource: enough to build its URLs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    pub group: Cow<'static, str>,
    pub version: Cow<'static, str>,
    pub kind: Cow<'static, str>,
    pub plural: Cow<'static, str>,
}

impl Resource {
    pub const fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            kind: Cow::Borrowed(kind),
            plural: Cow::Borrowed(plural),
        }
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The URL path of the collection (`name` empty), one object, or one subresource of it.
    /// An empty namespace means cluster scope, or all namespaces.
    pub fn path(&self, namespace: &str, name: &str, subresource: &str) -> String {
        let mut path = String::with_capacity(96);
        path.push_str(if self.group.is_empty() { "/api/" } else { "/apis/" });
        if !self.group.is_empty() {
            path.push_str(&self.group);
            path.push('/');
        }
        path.push_str(&self.version);
        if !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        for part in [self.plural.as_ref(), name, subresource] {
            if !part.is_empty() {
                path.push('/');
                path.push_str(part);
            }
        }
        path
    }
}

/// A typed kind that an informer can cache.
pub trait Object:
    kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    const RESOURCE: Resource;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_group_scope_and_subresource() {
        let pods = Resource::new("", "v1", "Pod", "pods");
        assert_eq!(pods.path("a", "b", "binding"), "/api/v1/namespaces/a/pods/b/binding");
        assert_eq!(pods.path("", "", ""), "/api/v1/pods");
        let sets = Resource::new("apps", "v1", "ReplicaSet", "replicasets");
        assert_eq!(sets.path("a", "", ""), "/apis/apps/v1/namespaces/a/replicasets");
    }
}
