//! Builds the sample application as a static program, to be embedded as a container image.

#[path = "hello/missing.rs"]
mod missing;

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=hello");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("hello");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
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
        .output()
        .expect("rustc runs: cargo just ran it");
    let said = String::from_utf8_lossy(&output.stderr);
    // Warnings are shown too; the file has none.
    eprint!("{said}");
    if !output.status.success() {
        println!("cargo::error={}", missing::why(&said));
        std::process::exit(1);
    }
}
