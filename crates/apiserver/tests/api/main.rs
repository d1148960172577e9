//! The API in process: requests go through [`Server::handle`] on a memory store, as a client's would over HTTP.

#![allow(clippy::unwrap_used, reason = "helpers of tests outside of test functions")]

mod access;
mod client;
mod crud;
mod custom;
mod deletes;
mod health;
mod kinds;
mod limits;
mod lists;
mod nodes;
mod operations;
mod pods;
mod programs;
mod services;
mod watches;
