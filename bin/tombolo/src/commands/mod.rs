//! One file per command.

pub mod agent;
pub mod apply;
pub mod backup;
pub mod check;
pub mod completion;
pub mod explain;
pub mod hub;
pub mod image;
pub mod join;
pub mod logs;
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
