//! `tombolo completion`: words for the shell's Tab key.

use std::io::Write;

use clap::Command;
use clap_complete::Shell;

/// Print a completion script for a shell
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo completion bash > /etc/bash_completion.d/tombolo")]
pub struct Args {
    /// Which shell
    shell: Shell,
}

pub fn run(args: &Args, mut command: Command) {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tombolo", &mut script);
    // A reader that has seen enough is no error.
    let _ = std::io::stdout().write_all(&script);
}
