//! The registry: one set of handlers for every kind, built in or custom.

pub mod builtin;
pub mod codec;
pub mod create;
pub mod delete;
pub mod list;
pub mod options;
pub mod ownership;
pub mod patch;
pub mod read;
pub mod render;
pub mod resource;
pub mod schema;
pub mod update;
pub mod watch;
pub mod write;

use std::sync::Arc;

use http::Response;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tombolo_store::{Store, StoreError};

use crate::crd::{self, Definitions};
use crate::http::body::Body;
use crate::http::negotiate::{self, Output};
use crate::http::status::{Failure, Result};
use crate::mirror::Mirror;
use crate::server::{App, Call};
use builtin::BuiltIn;
use resource::Shared;
use schema::Schema;

pub struct Registry {
    pub built_in: BuiltIn,
    custom: Mirror<Definitions>,
}

impl Registry {
    pub fn new(stop: &CancellationToken) -> Self {
        let custom = Mirror::new(Definitions::new(stop.clone()), [crd::source()]);
        Self { built_in: BuiltIn::new(), custom }
    }

    /// The CustomResourceDefinitions that are served.
    pub async fn definitions(&self, app: &App) -> Result<Vec<Arc<Value>>> {
        Ok(self.custom(app).await?.served())
    }

    /// The index of definitions, fresh.
    pub async fn custom(&self, app: &App) -> Result<parking_lot::RwLockReadGuard<'_, Definitions>> {
        self.custom.fresh(&*app.store).await.map_err(|e| app.store_failure(e))
    }

    /// Takes over what changed of the definitions.
    pub async fn note(&self, store: &dyn Store) -> Result<(), StoreError> {
        self.custom.fresh(store).await.map(drop)
    }

    pub async fn find(&self, app: &App, group: &str, version: &str, plural: &str) -> Result<Option<Shared>> {
        if let Some(row) = self.built_in.find(group, version, plural) {
            return Ok(Some(row.clone()));
        }
        Ok(self.custom(app).await?.find(group, version, plural))
    }

    /// The served versions of a custom kind.
    pub async fn rows_of(&self, app: &App, group: &str, plural: &str) -> Result<Vec<Shared>> {
        Ok(self.custom(app).await?.versions(group, plural))
    }
}

/// The row that answers. Objects that only a webhook could convert are not shown or written in another version than theirs: better
/// no answer than a wrong one. Their metadata is the same in all versions, so who asks for that alone, or for their end, is
/// answered from theirs.
async fn answering(call: &Call, resource: Shared) -> Result<Shared> {
    let Schema::Custom(schema) = &resource.schema else { return Ok(resource) };
    let Some(kept_in) = &schema.kept_in else { return Ok(resource) };
    let (group, plural, version) = (&resource.group, &resource.plural, &resource.version);
    let any_version = match call.target.verb {
        "delete" | "deletecollection" => true,
        "get" | "list" | "watch" | "patch" => {
            matches!(negotiate::negotiate(call.accept(), negotiate::ALL)?, Output::Metadata(_))
        }
        _ => false,
    };
    let stored = call.app.registry.find(&call.app, group, kept_in, plural).await?;
    match stored.filter(|_| any_version) {
        Some(stored) => Ok(stored),
        None => Err(Failure::internal(format!(
            "{plural}.{group} are kept in version {kept_in}, and their definition leaves converting them to {version} to a \
             webhook, which this server does not call; use {group}/{kept_in}"
        ))),
    }
}

pub async fn dispatch(call: &mut Call, body: Body) -> Result<Response<Body>> {
    let app = call.app.clone();
    let target = &call.target;
    let Some(resource) = app.registry.find(&app, &target.group, &target.version, &target.resource).await?
    else {
        return Err(Failure::no_such_path());
    };
    if resource.namespaced
        && target.namespace.is_empty()
        && !matches!(target.verb, "list" | "watch" | "create")
    {
        return Err(Failure::no_such_path());
    }
    if !resource.namespaced && !target.namespace.is_empty() && !resource.is("", "namespaces") {
        return Err(Failure::no_such_path());
    }
    let resource = answering(call, resource).await?;
    let target = &call.target;
    if !target.subresource.is_empty() {
        return crate::subresource::dispatch(call, &resource, body).await;
    }
    if !resource.verbs.contains(&target.verb) {
        return Err(Failure::method_not_allowed(&target.group, &target.resource, target.verb));
    }
    match target.verb {
        "get" => read::handle(call, &resource).await,
        "list" => list::handle(call, &resource).await,
        "watch" => watch::handle(call, &resource).await,
        "create" if crate::subresource::is_virtual(&resource) => {
            crate::subresource::create_virtual(call, &resource, body).await
        }
        "create" => create::handle(call, &resource, body).await,
        "update" => update::handle(call, &resource, body).await,
        "patch" => patch::handle(call, &resource, body).await,
        "delete" => delete::handle(call, &resource, body).await,
        "deletecollection" => delete::collection(call, &resource, body).await,
        verb => Err(Failure::method_not_allowed(&resource.group, &resource.plural, verb)),
    }
}
