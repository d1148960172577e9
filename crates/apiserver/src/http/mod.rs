//! HTTP: bodies, the listener, what a request is about, and error answers.

pub mod body;
mod gathering;
mod http1;
pub mod listener;
pub mod negotiate;
pub mod query;
pub mod route;
pub mod serving;
pub mod status;
pub mod warnings;
mod wire;
