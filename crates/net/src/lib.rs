//! Tombolo: net.
