//! What black-box tests share. The tests themselves live in `tests/`.

pub mod chart;
pub mod clock;
pub mod kubectl;
pub mod machine;
pub mod site;
pub mod soak;
pub mod tied;
pub mod wan;
