//! Tombolo: store.
