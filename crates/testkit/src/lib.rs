//! Tombolo: testkit.
