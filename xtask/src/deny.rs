//! `cargo xtask deny`: what `deny.toml` says about licences, bans and sources, checked with `cargo metadata` alone.

mod licence;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::run::{cargo, output, root};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The part of `deny.toml` that is enforced here.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    #[serde(default)]
    clarify: Vec<Clarify>,
}

/// The licence of a crate that names none.
#[derive(Deserialize)]
struct Clarify {
    #[serde(rename = "crate")]
    name: String,
    expression: String,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    /// Only a second version is banned.
    #[serde(default)]
    deny_multiple_versions: bool,
}

pub fn run() -> Result<()> {
    let path = root().join("deny.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let rules: Rules = toml::from_str(&text).with_context(|| format!("cannot read {}", path.display()))?;
    // What other systems link is not what is tested and shipped here.
    let words =
        ["metadata", "--format-version", "1", "--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let metadata: Value = serde_json::from_str(&output(cargo().args(words))?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let faults = faults(&rules, packages);
    if !faults.is_empty() {
        bail!("{} against deny.toml:\n  {}", faults.len(), faults.join("\n  "));
    }
    println!("deny: {} crates keep to deny.toml", packages.len());
    Ok(())
}

fn faults(rules: &Rules, packages: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let (name, version) = (text("name"), text("version"));
        versions.entry(name).or_default().push(version);
        let clarified = rules.licenses.clarify.iter().find(|c| c.name == name);
        let license = clarified.map_or(text("license"), |c| &c.expression);
        if !licence::allowed(license, &rules.licenses.allow) {
            faults.push(format!("{name} {version}: licence {license:?} is not allowed"));
        }
        match package["source"].as_str() {
            None | Some(CRATES_IO) => {}
            Some(source) => faults.push(format!("{name} {version}: comes from {source}")),
        }
        let own = package["source"].is_null();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if own && dependency["req"] == "*" && dependency["path"].is_null() {
                faults.push(format!("{name}: takes any version of {}", dependency["name"]));
            }
        }
    }
    for ban in &rules.bans.deny {
        let found = versions.get(ban.name.as_str()).map(Vec::as_slice).unwrap_or_default();
        if found.len() > usize::from(ban.deny_multiple_versions) {
            faults.push(format!("{}: banned, and there is {}", ban.name, found.join(" and ")));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_of_fault_is_found() {
        let rules: Rules = toml::from_str(
            "[licenses]\nallow = ['MIT']\n[bans]\ndeny = [{ crate = 'bad' }, { crate = 'one', deny-multiple-versions = true }]",
        )
        .expect("rules");
        let package = |name: &str, version: &str, license: &str, source: Value| json!({"name": name, "version": version, "license": license, "source": source, "dependencies": [{"name": "x", "req": "*", "path": null}]});
        let fine = [package("one", "1.0.0", "MIT", json!(CRATES_IO))];
        assert_eq!(faults(&rules, &fine), Vec::<String>::new());
        let wrong = [
            package("bad", "1.0.0", "MIT", json!(CRATES_IO)),
            package("one", "1.0.0", "MIT", json!(CRATES_IO)),
            package("one", "2.0.0", "GPL-3.0", json!(CRATES_IO)),
            package("git", "1.0.0", "MIT", json!("git+https://example.com/x")),
            package("ours", "1.0.0", "MIT", Value::Null),
        ];
        let found = faults(&rules, &wrong).join("\n");
        for part in [
            "bad: banned",
            "one: banned, and there is 1.0.0 and 2.0.0",
            "GPL-3.0",
            "example.com",
            "any version",
        ] {
            assert!(found.contains(part), "no {part:?} in {found}");
        }
        assert_eq!(found.lines().count(), 5, "{found}");
    }
}
