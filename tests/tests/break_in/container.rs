//! A process in a container, as root and not, at pod security `restricted`.
