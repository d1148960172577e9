//! SPDY/3.1: what kubectl before 1.31 speaks.

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::remote::Client;
use super::{Body, text};
use crate::runtime::ExecRequest;

pub(super) fn remote_command<F: Future<Output = ()> + Send + 'static>(
    _request: Request<Incoming>,
    _wants: ExecRequest,
    _session: impl FnOnce(Client) -> F + Send + 'static,
) -> Response<Body> {
    text(StatusCode::BAD_REQUEST, "upgrade to a WebSocket")
}
