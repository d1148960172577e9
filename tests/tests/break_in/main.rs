//! Attempts to break in, by the role of the attacker. Each module opens with what the role has, and what it must not
//! reach; `docs/operate/threats.md` is the same list as a table.
//!
//! `TOMBOLO_BINARY=path cargo test -p tombolo-tests --test break_in` runs the suite against another build.

mod anonymous;
mod container;
mod credentials;
mod editor;
mod image;
mod lying_hub;
mod node;
mod pod_token;
mod proxied;
mod site;
mod tenant;
