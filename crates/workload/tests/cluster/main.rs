//! Every controller against a real kube-apiserver on which the matching upstream controller does not run.
#![allow(clippy::unwrap_used)]

mod control_plane;
mod fixture;
mod jobs;
mod platform;
mod rollout;
mod scheduling;
mod sets;
mod strategies;
