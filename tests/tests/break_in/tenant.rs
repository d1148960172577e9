//! An account that may edit one namespace of a hub, against the hub's sites.
