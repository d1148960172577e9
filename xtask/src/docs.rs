//! `cargo xtask docs`: the parts of the book that are made from the program itself, and the book as HTML.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::fixtures;
use crate::run::{cargo, check, root};

#[derive(clap::Args)]
pub struct Args {
    /// Change nothing; fail if a page is not current
    #[arg(long)]
    check: bool,
    /// Also run `up`, `sites`, `explain` and `tour` and record what they print (as root; takes two minutes)
    #[arg(long, conflicts_with = "check")]
    captures: bool,
    /// Capture what this program prints instead of a debug build, for example target/release/tombolo
    #[arg(long, requires = "captures")]
    program: Option<PathBuf>,
}

/// Pages of the reference, with what prints them.
const PAGES: &[(&str, &str)] =
    &[("docs/reference/commands.md", "commands"), ("docs/reference/resources.md", "resources")];
const CAPTURES: &str = "docs/captures.md";

pub fn run(args: &Args) -> Result<()> {
    check(cargo().args(["build", "--quiet", "-p", "tombolo"]))?;
    let program = program()?;
    for (path, page) in PAGES {
        let made = output(&program, &["reference", page])?;
        if args.check {
            if fs::read_to_string(path).unwrap_or_default() != made {
                bail!("{path} is not current; run `cargo xtask docs` and commit it");
            }
        } else {
            fs::write(path, made).with_context(|| format!("cannot write {path}"))?;
        }
    }
    if args.captures {
        let (program, build) = match &args.program {
            Some(program) => (program.canonicalize().context("there is no such program")?, "release"),
            None => (program, "debug"),
        };
        let text = captures(&program, build);
        // Whatever happened, the fleet goes.
        let _ = output(&program, &["down"]);
        fs::write(CAPTURES, text?)?;
    }
    if !args.check {
        book()?;
    }
    Ok(())
}

/// Renders the book; `book.toml` says where to.
fn book() -> Result<()> {
    check(Command::new(fixtures::mdbook()?).arg("build").arg(root().join("docs")))?;
    println!("docs: the book is in target/book/index.html");
    Ok(())
}

fn program() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join("debug/tombolo").canonicalize().context("cargo built the program")
}

fn output(program: &Path, args: &[&str]) -> Result<String> {
    // The folder first in PATH, so that hints show the short name.
    let folder = program.parent().context("a program is in a folder")?;
    let path = std::env::join_paths(
        std::iter::once(folder.to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )?;
    let output = Command::new(program).args(args).env("PATH", path).env_remove("KUBECONFIG").output()?;
    if !output.status.success() {
        bail!("tombolo {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn captures(program: &Path, build: &str) -> Result<String> {
    const HUB: &str = "/var/lib/tombolo/up/hub/admin.kubeconfig";
    let mut out = format!(
        "\
# What it looks like

<!-- Made by `cargo xtask docs --captures`; run that instead of editing. -->

What the commands print, captured from one run of a {build} build on a machine with two cores.
"
    );
    let client = |args: &[&'static str]| [args, &["--kubeconfig", HUB]].concat();
    let shown: [(&str, &str, Vec<&str>); 6] = [
        ("A fleet on one machine", "tombolo up", vec!["up"]),
        ("The fleet at a glance", "tombolo sites -o wide", client(&["sites", "-o", "wide"])),
        ("How full it is", "tombolo top", client(&["top"])),
        (
            "Why things are where they are",
            "tombolo explain place deploy/hello",
            client(&["explain", "place", "deploy/hello"]),
        ),
        ("Is anything wrong?", "tombolo check fleet", client(&["check", "fleet"])),
        ("The tour", "tombolo tour --yes", vec!["tour", "--yes"]),
    ];
    for (title, line, args) in shown {
        println!("docs: {line}");
        let text = output(program, &args)?;
        out.push_str(&format!("\n## {title}\n\n```text\n# {line}\n{}\n```\n", text.trim_end()));
    }
    Ok(out)
}
