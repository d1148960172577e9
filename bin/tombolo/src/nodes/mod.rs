//! A site's side of its nodes: what they need to join, and the ways back to them.

mod publish;
mod tunnels;

pub use publish::{Published, publish};
pub use tunnels::{NodeTunnels, NodeUpgrade};
