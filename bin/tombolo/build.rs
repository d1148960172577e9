//! Builds the sample application as a static program, to be embedded as a container image.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=hello/main.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("hello");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let status = Command::new(rustc)
        .args(["--edition", "2024", "--crate-name", "hello", "hello/main.rs", "-o"])
        .arg(&out)
        .args([
            "-C",
            "opt-level=s",
            "-C",
            "panic=abort",
            "-C",
            "strip=symbols",
            "-C",
            "target-feature=+crt-static",
        ])
        .status()
        .expect("rustc runs: cargo just ran it");
    assert!(status.success(), "could not build the sample application from hello/main.rs");
}
