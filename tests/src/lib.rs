//! What black-box tests share. The tests themselves live in `tests/`.

pub mod book;
pub mod chart;
pub mod clock;
pub mod command;
pub mod etcd;
pub mod kubectl;
pub mod machine;
pub mod site;
pub mod soak;
pub mod tied;
pub mod wan;
