//! The credential of one node.
