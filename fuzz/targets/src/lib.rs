//! The fuzz targets: what is done with one input.
//!
//! Every target holds a decoder of bytes from outside to two promises: no input makes it panic or run away, and what
//! it accepts has the properties that the rest of the server counts on. `cargo xtask fuzz` searches for inputs that
//! break them, guided by coverage, for as long as one likes; the test in `tests/` tries some thousand in every run of
//! the tests. A target is one function here, one line in [`TARGETS`], one file in `fuzz/fuzz_targets` and a folder
//! of seeds.

mod bodies;
mod input;
mod writes;

pub type Target = fn(&[u8]);

/// Every target, by the name of its seeds and of its program.
pub const TARGETS: &[(&str, Target)] = &[
    ("apply", writes::apply),
    ("continue_token", bodies::continue_token),
    ("json", bodies::json),
    ("json_patch", writes::json_patch),
    ("merge_patch", writes::merge_patch),
    ("protobuf", bodies::protobuf),
    ("selectors", bodies::selectors),
    ("strategic_patch", writes::strategic_patch),
    ("yaml", bodies::yaml),
];

/// Runs one target on one input.
///
/// # Panics
/// When the target does not exist, and when the input breaks a promise.
pub fn run(name: &str, input: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("the target is in the table");
    target(input);
}
