//! Reading one object.

use http::{Response, StatusCode};

use super::render;
use super::resource::Shared;
use crate::http::body::Body;
use crate::http::negotiate;
use crate::http::status::Result;
use crate::server::Call;

pub async fn handle(call: &Call, resource: &Shared) -> Result<Response<Body>> {
    let output = negotiate::negotiate(call.accept(), negotiate::ALL)?;
    let key = resource.key(&call.target.namespace, &call.target.name);
    let Some(record) = call.app.get(&key).await? else {
        return Err(resource.not_found(&call.target.name));
    };
    render::stored(output, resource, &call.query, StatusCode::OK, &record.value, record.revision)
}
