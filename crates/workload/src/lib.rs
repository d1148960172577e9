//! Tombolo: workload.
