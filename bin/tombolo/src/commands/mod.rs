//! One file per command.

pub mod agent;
pub mod apply;
pub mod backup;
pub mod check;
pub mod completion;
pub mod explain;
pub mod gateway;
pub mod hub;
pub mod image;
pub mod import;
pub mod join;
pub mod limits;
pub mod logs;
pub mod manifest;
pub mod node;
pub mod place;
pub mod reference;
pub mod serve;
pub mod site;
pub mod sites;
pub mod support;
pub mod token;
pub mod top;
pub mod wipe;
