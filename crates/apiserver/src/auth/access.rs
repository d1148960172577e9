//! Authentication and authorization of requests.

use std::sync::Arc;

use http::{HeaderMap, header};

use super::identity::{GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_UNAUTHENTICATED, Identity};
use super::jwt::Signer;
use super::rbac::{self, Action, Rbac};
use super::{node, tokens};
use crate::bootstrap::keys::{KeyError, Keys};
use crate::config::Config;
use crate::http::route::Target;
use crate::http::status::{Failure, Result};
use crate::mirror::Mirror;
use crate::server::App;

pub struct Access {
    pub signer: Signer,
    rules: Mirror<Rbac>,
}

impl Access {
    pub fn new(keys: &Keys, _config: &Config) -> Result<Self, KeyError> {
        Ok(Self {
            signer: Signer::new(&keys.token_key)?,
            rules: Mirror::new(Rbac::default(), rbac::sources()),
        })
    }

    /// Who the request's own credentials say is asking. Wrong credentials are an error, none are anonymous.
    pub async fn authenticate(&self, app: &App, headers: &HeaderMap) -> Result<Arc<Identity>> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Ok(Arc::new(Identity::anonymous()));
        };
        let token = value.to_str().ok().and_then(|text| {
            let (scheme, token) = text.trim().split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let Some(token) = token.filter(|t| !t.is_empty()) else { return Err(Failure::unauthorized()) };
        let audiences = [app.config.issuer.clone()];
        match tokens::identify(app, &self.signer, token, &audiences).await? {
            Some((identity, _)) => Ok(Arc::new(identity)),
            None => Err(Failure::unauthorized()),
        }
    }

    /// Acting as somebody else, for those who may.
    pub async fn impersonate(
        &self,
        app: &App,
        user: &Arc<Identity>,
        headers: &HeaderMap,
    ) -> Result<Arc<Identity>> {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let asked = text("impersonate-user");
        let prefix = "impersonate-extra-";
        let any = headers.keys().any(|k| k.as_str().starts_with("impersonate-"));
        if !any {
            return Ok(user.clone());
        }
        if asked.is_empty() {
            return Err(Failure::bad_request(
                "requested impersonation of groups, uid or extra fields without impersonating a user",
            ));
        }
        let allow = |group: &'static str, resource: String, namespace: String, name: String| async move {
            let target = Target {
                verb: "impersonate",
                group: group.into(),
                version: "v1".into(),
                resource,
                namespace,
                name,
                ..Target::default()
            };
            self.authorize(app, user, &target, "").await
        };
        let mut identity = Identity { user: asked.to_owned(), ..Identity::default() };
        match identity.service_account() {
            Some((namespace, name)) => {
                allow("", "serviceaccounts".into(), namespace.into(), name.into()).await?;
            }
            None => allow("", "users".into(), String::new(), asked.into()).await?,
        }
        for group in headers.get_all("impersonate-group").iter().filter_map(|v| v.to_str().ok()) {
            allow("", "groups".into(), String::new(), group.into()).await?;
            identity.groups.push(group.to_owned());
        }
        let uid = text("impersonate-uid");
        if !uid.is_empty() {
            allow("authentication.k8s.io", "uids".into(), String::new(), uid.into()).await?;
            identity.uid = uid.to_owned();
        }
        for (key, value) in headers {
            let (Some(key), Ok(value)) = (key.as_str().strip_prefix(prefix), value.to_str()) else {
                continue;
            };
            let key = crate::http::query::percent_decode(key, false);
            allow("authentication.k8s.io", format!("userextras/{key}"), String::new(), value.into()).await?;
            identity.extra.entry(key).or_default().push(value.to_owned());
        }
        if let Some((namespace, _)) = identity.service_account()
            && identity.groups.is_empty()
        {
            identity.groups =
                vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        }
        if identity.user == super::identity::ANONYMOUS {
            if !identity.in_group(GROUP_UNAUTHENTICATED) {
                identity.groups.push(GROUP_UNAUTHENTICATED.into());
            }
        } else if !identity.in_group(GROUP_AUTHENTICATED) {
            identity.groups.push(GROUP_AUTHENTICATED.into());
        }
        Ok(Arc::new(identity))
    }

    pub async fn authorize(&self, app: &App, user: &Identity, target: &Target, path: &str) -> Result<()> {
        if user.in_group(GROUP_MASTERS) {
            return Ok(());
        }
        let resource = target.full_resource();
        let action = Action {
            verb: target.verb,
            group: &target.group,
            resource: &resource,
            namespace: &target.namespace,
            name: &target.name,
            path,
            field_selector: &target.field_selector,
        };
        if self.allows(app, user, &action).await? {
            return Ok(());
        }
        Err(denied(user, target, path))
    }

    /// Whether the rules let a user do something.
    pub async fn allows(&self, app: &App, user: &Identity, action: &Action<'_>) -> Result<bool> {
        if user.in_group(GROUP_MASTERS) || node::allows(app, user, action).await? {
            return Ok(true);
        }
        let rules = self.rules.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
        Ok(rules.allows(user, action))
    }

    pub async fn rules_for(&self, app: &App, user: &Identity, namespace: &str) -> Result<Vec<rbac::Rule>> {
        let rules = self.rules.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
        Ok(rules.rules_for(user, namespace))
    }

    pub async fn role_rules(
        &self,
        app: &App,
        namespace: &str,
        kind: &str,
        name: &str,
    ) -> Result<Option<Vec<rbac::Rule>>> {
        let rules = self.rules.fresh(&*app.store).await.map_err(|e| app.store_failure(e))?;
        Ok(rules.role_rules(namespace, kind, name))
    }
}

fn denied(user: &Identity, target: &Target, path: &str) -> Failure {
    if !target.is_resource() {
        let why = format!("User \"{}\" cannot {} path \"{path}\"", user.user, target.verb);
        return Failure::forbidden("", "", "", why);
    }
    let place = match target.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let why = format!(
        "User \"{}\" cannot {} resource \"{}\" in API group \"{}\" {place}",
        user.user,
        target.verb,
        target.full_resource(),
        target.group
    );
    Failure::forbidden(&target.group, &target.resource, &target.name, why)
}
