//! A peer without any credential.
