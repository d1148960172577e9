//! One file per command.

pub mod apply;
pub mod place;
pub mod serve;
pub mod sites;
