//! Dependencies between our crates point one way, as docs/architecture.md draws them.

use std::path::Path;
use std::process::Command;

/// What each crate may use of ours. Tests and `bin/tombolo` see everything.
const ALLOWED: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("machinery", &[]),
    ("k8s", &["machinery"]),
    ("store", &["machinery"]),
    ("apiserver", &["k8s", "machinery", "store"]),
    ("placement", &["api"]),
    ("workload", &["api", "k8s", "machinery", "placement"]),
    ("tunnel", &[]),
    ("fleet", &["agent", "api", "machinery", "placement", "tunnel"]),
    ("agent", &["api", "machinery", "tunnel"]),
    ("memory", &[]),
    ("net", &["api"]),
    ("node", &["api", "machinery", "net", "tunnel"]),
    ("testkit", &["wan"]),
    ("wan", &[]),
];

/// They are a workspace of their own, which nothing else builds.
#[test]
fn the_fuzz_programs_and_their_lock_file_are_in_order() {
    let cargo = std::env::var_os("CARGO").expect("cargo runs this test");
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/Cargo.toml");
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version=1", "--manifest-path", manifest])
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn dependency_arrows_point_one_way() {
    let cargo = std::env::var_os("CARGO").expect("cargo runs this test");
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version=1"])
        .output()
        .expect("cargo metadata runs");
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let root = metadata["workspace_root"].as_str().expect("a folder");
    let crates = Path::new(root).join("crates");
    let mut seen = 0;
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        // What is beside crates/ is a program or a test, and sees everything.
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        if manifest.ancestors().nth(2) != Some(crates.as_path()) {
            continue;
        }
        let Some((_, allowed)) =
            ALLOWED.iter().find(|(short, _)| Some(*short) == name.strip_prefix("tombolo-"))
        else {
            panic!("{name} is not in the table above: say there what it may use");
        };
        seen += 1;
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let used = dependency["name"].as_str().expect("a name");
            if dependency["kind"].as_str() == Some("dev") {
                continue;
            }
            if let Some(used) = used.strip_prefix("tombolo-") {
                assert!(
                    allowed.contains(&used),
                    "{name} must not depend on tombolo-{used}; see docs/architecture.md"
                );
            }
        }
    }
    assert_eq!(seen, ALLOWED.len(), "a crate in the list above is gone or renamed");
}
