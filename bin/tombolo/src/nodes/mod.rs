//! A cluster's side of its nodes: what they need to join, and the ways back to them.

pub mod figures;
mod gateway;
mod publish;
mod tunnels;

pub use gateway::{Gateway, GatewayOptions};
pub use publish::{Published, publish};
pub use tunnels::{NodeTunnels, NodeUpgrade};
