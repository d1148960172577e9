//! Tombolo: fleet.
