//! One file per command.

pub mod agent;
pub mod apply;
pub mod backup;
pub mod completion;
pub mod explain;
pub mod hub;
pub mod image;
pub mod join;
pub mod node;
pub mod place;
pub mod serve;
pub mod site;
pub mod sites;
pub mod token;
pub mod wipe;
