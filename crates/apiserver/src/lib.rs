//! Tombolo: apiserver.
