//! What black-box tests share. The tests themselves live in `tests/`.

pub mod site;
pub mod kubectl;
pub mod soak;
pub mod wan;
