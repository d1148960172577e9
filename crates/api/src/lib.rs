//! Tombolo: api.
