//! Tombolo: placement.
