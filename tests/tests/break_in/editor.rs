//! An account that may edit one namespace, and one without any right.
