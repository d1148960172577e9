//! Tombolo: node.
