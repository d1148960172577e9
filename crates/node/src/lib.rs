//! The node: runs the pods of one machine as real containers.

pub mod embedded;
pub mod image;
pub mod reexec;
pub mod runtime;
mod sys;
