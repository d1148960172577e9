//! Tombolo: tunnel.
