#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tombolo_fuzz_targets::run("selectors", input));
