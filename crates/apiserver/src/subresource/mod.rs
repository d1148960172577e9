//! What hangs below objects: status, scale, logs, and the kinds that are questions rather than objects.

mod binding;
mod connect;
mod links;
mod reviews;
mod scale;
mod token;

use http::Response;

use crate::http::body::Body;
use crate::http::status::{Failure, Result};
use crate::registry::resource::Shared;
use crate::registry::{patch, read, update};
use crate::server::Call;

pub async fn dispatch(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let name = call.target.subresource.clone();
    let Some(row) = resource.subresource(&name) else { return Err(Failure::no_such_path()) };
    let verb = call.target.verb;
    // The tables know no OPTIONS; what is only passed on may ask it.
    let passed_on = name == "proxy" && verb == "options";
    if name != "proxy" && !call.target.rest.is_empty() {
        return Err(Failure::no_such_path());
    }
    if !passed_on && !row.verbs.contains(&verb) {
        return Err(Failure::method_not_allowed(&resource.group, &resource.plural, verb));
    }
    match name.as_str() {
        "status" | "finalize" | "approval" | "ephemeralcontainers" | "resize" => match verb {
            "get" => read::handle(call, resource).await,
            "update" => update::handle(call, resource, body).await,
            _ => patch::handle(call, resource, body).await,
        },
        "scale" => scale::handle(call, resource, body).await,
        "binding" => binding::bind(call, resource, body).await,
        "eviction" => binding::evict(call, resource, body).await,
        "token" => token::create(call, resource, body).await,
        "log" | "exec" | "attach" | "portforward" | "proxy" => connect::handle(call, resource, body).await,
        _ => Err(Failure::no_such_path()),
    }
}

/// Kinds that are never stored: a create is a question and its answer.
pub fn is_virtual(resource: &Shared) -> bool {
    !resource.verbs.contains(&"get")
}

pub async fn create_virtual(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    if resource.is("", "bindings") {
        return binding::bind(call, resource, body).await;
    }
    reviews::answer(call, resource, body).await
}
