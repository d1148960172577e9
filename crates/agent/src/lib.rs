//! Tombolo: agent.
