//! Who is asking.

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub const ANONYMOUS: &str = "system:anonymous";
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// Members may do everything; access rules are not consulted.
pub const GROUP_MASTERS: &str = "system:masters";

/// An authenticated user, as access rules and reviews see it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// A known user; `system:authenticated` is added to its groups.
    pub fn new(user: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(Into::into).collect();
        if !groups.iter().any(|g| g == GROUP_AUTHENTICATED) {
            groups.push(GROUP_AUTHENTICATED.into());
        }
        Self { user: user.into(), groups, ..Self::default() }
    }

    pub fn anonymous() -> Self {
        Self { user: ANONYMOUS.into(), groups: vec![GROUP_UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// The identity of the server's own loops: may do everything.
    pub fn system(user: &str) -> Self {
        Self::new(user, [GROUP_MASTERS])
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The service account behind the user name, as (namespace, name).
    pub fn service_account(&self) -> Option<(&str, &str)> {
        self.user.strip_prefix("system:serviceaccount:")?.split_once(':')
    }

    /// `userInfo` of the authentication API.
    pub fn to_value(&self) -> Value {
        let mut info = json!({"username": self.user, "groups": self.groups});
        if !self.uid.is_empty() {
            info["uid"] = self.uid.as_str().into();
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }
}
