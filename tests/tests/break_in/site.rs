//! The credential of one site, against its hub and the other sites.
