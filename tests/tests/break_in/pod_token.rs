//! The token of a pod's service account.
