//! Builds the pod shim: a program of its own, embedded into the node and written out at start.
//!
//! It is linked like the node itself (it runs on the same host): against the C library of the machine it
//! is built on, or with it when the target is a static one.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets OUT_DIR")).join("tombolo-shim");
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let mut rustc = Command::new(env::var("RUSTC").unwrap_or_else(|_| "rustc".into()));
    rustc
        .args(["shim/main.rs", "--crate-name", "tombolo_shim", "--crate-type", "bin", "--edition", "2024"])
        .args(["--target", &target, "-C", "opt-level=z", "-C", "panic=abort", "-C", "strip=symbols"])
        .args(["-C", "lto=fat", "-C", "codegen-units=1"])
        .arg("-o")
        .arg(&out);
    let linker = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    if let Ok(linker) = env::var(linker) {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    let output = rustc.output().expect("rustc starts: cargo just used it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the pod shim (crates/node/shim/main.rs) does not build:\n{errors}");
}
