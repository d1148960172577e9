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
pub mod token;
pub mod update;
pub mod watch;
pub mod write;

use http::Response;

use crate::http::body::Body;
use crate::http::status::{Failure, Result};
use crate::server::{App, Call};
use builtin::BuiltIn;
use resource::Shared;

pub struct Registry {
    pub built_in: BuiltIn,
}

impl Registry {
    pub fn new() -> Self {
        Self { built_in: BuiltIn::new() }
    }

    /// The CustomResourceDefinitions that are served.
    pub async fn definitions(&self, _app: &App) -> Result<Vec<std::sync::Arc<serde_json::Value>>> {
        Ok(Vec::new())
    }

    pub async fn find(&self, _app: &App, group: &str, version: &str, plural: &str) -> Result<Option<Shared>> {
        Ok(self.built_in.find(group, version, plural).cloned())
    }
}

pub async fn dispatch(call: &mut Call, body: Body) -> Result<Response<Body>> {
    let app = call.app.clone();
    let target = &call.target;
    let Some(resource) = app.registry.find(&app, &target.group, &target.version, &target.resource).await? else {
        return Err(Failure::no_such_path());
    };
    if resource.namespaced && target.namespace.is_empty() && !matches!(target.verb, "list" | "watch" | "create") {
        return Err(Failure::no_such_path());
    }
    if !resource.namespaced && !target.namespace.is_empty() && !resource.is("", "namespaces") {
        return Err(Failure::no_such_path());
    }
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
        "create" => match crate::subresource::virtual_kind(call, &resource) {
            true => crate::subresource::create_virtual(call, &resource, body).await,
            false => create::handle(call, &resource, body).await,
        },
        "update" => update::handle(call, &resource, body).await,
        "patch" => patch::handle(call, &resource, body).await,
        "delete" => delete::handle(call, &resource, body).await,
        "deletecollection" => delete::collection(call, &resource, body).await,
        verb => Err(Failure::method_not_allowed(&resource.group, &resource.plural, verb)),
    }
}
