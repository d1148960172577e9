//! How a command ends when it could not do what was asked: one place that turns errors into words and an exit code.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

use clap::Command;
use clap::error::ErrorKind;

use crate::interrupt::Interrupted;

/// The command looked, and what it looked at is not well. What is wrong has been printed already.
#[derive(Debug, thiserror::Error)]
#[error("something is wrong")]
pub struct Unwell;

pub const UNWELL: u8 = 1;
pub const FAILED: u8 = 2;
/// As shells count: 128 and the number of SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Prints what the user needs to know, and gives the exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if error.is::<Unwell>() {
        return UNWELL.into();
    }
    tell(&words(error));
    if error.chain().any(|cause| cause.is::<Interrupted>()) { INTERRUPTED.into() } else { FAILED.into() }
}

/// The exit code tells it too, when nobody reads standard error any more.
fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "tombolo: {text}");
}

/// A command line that cannot be meant: one line that says why and where to look. Help that was asked for is no fault.
pub fn misused(error: &clap::Error, root: &Command) -> ExitCode {
    let asked_for = !error.use_stderr();
    if asked_for || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return if asked_for { ExitCode::SUCCESS } else { FAILED.into() };
    }
    let words = std::env::args().skip(1).collect::<Vec<_>>();
    tell(&misuse(&error.render().to_string(), &command_of(root, &words)));
    FAILED.into()
}

/// The parser's words without the usage, which `--help` shows too.
fn misuse(said: &str, command: &str) -> String {
    let wanted = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more information");
    let lines: Vec<_> =
        said.lines().map(str::trim).take_while(wanted).filter(|line| !line.is_empty()).collect();
    let text = lines.join(" ");
    format!("{}; `{command} --help` tells more", text.trim_start_matches("error: ").trim_end_matches('.'))
}

/// As much of the command line as names a command.
fn command_of(root: &Command, words: &[String]) -> String {
    let (mut path, mut at) = (root.get_name().to_owned(), root);
    for word in words {
        if let Some(below) = at.find_subcommand(word) {
            path = format!("{path} {}", below.get_name());
            at = below;
        }
    }
    path
}

/// The whole chain in one line, without the dumps of structures that libraries add, and without saying anything twice.
pub fn words(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = plain(cause);
        if !text.is_empty() && !parts.iter().any(|earlier| earlier.contains(&text)) {
            parts.push(text);
        }
        if cause.is::<kube::Error>() {
            // What lies below says the same again, in the words of a library.
            break;
        }
    }
    parts.join(": ")
}

fn plain(cause: &(dyn Error + 'static)) -> String {
    let Some(error) = cause.downcast_ref::<kube::Error>() else { return cause.to_string() };
    match error {
        kube::Error::Api(status) if status.code == 401 => {
            "the server does not know who you are; use the kubeconfig that it wrote (admin.kubeconfig)".into()
        }
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) => format!("the server answered {} {}", status.code, status.reason),
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
            "the API server does not answer; is it running, and is this the right kubeconfig?".into()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use kube::core::Status;

    use super::*;

    #[test]
    fn an_answer_of_the_server_is_its_message_and_no_dump() {
        let status = Status { code: 404, ..Status::failure("sites \"x\" not found", "NotFound") };
        let error = Err::<(), _>(kube::Error::Api(Box::new(status))).context("no site x").unwrap_err();
        assert_eq!(words(&error), "no site x: sites \"x\" not found");
    }

    #[test]
    fn a_wrong_command_line_is_one_line_that_names_the_command() {
        let root =
            Command::new("tombolo").subcommand(Command::new("token").subcommand(Command::new("create")));
        let words = ["--context", "x", "token", "create", "--ttl", "soon"].map(str::to_owned);
        assert_eq!(command_of(&root, &words), "tombolo token create");
        let said = "error: invalid value 'x' for '--tier <TIER>'\n  [possible values: cloud, edge]\n\nUsage: tombolo join\n\nFor more information, try '--help'.\n";
        assert_eq!(
            misuse(said, "tombolo join"),
            "invalid value 'x' for '--tier <TIER>' [possible values: cloud, edge]; `tombolo join --help` tells more"
        );
    }

    #[test]
    fn nothing_is_said_twice() {
        let inner = anyhow::anyhow!("the disk is full");
        let error = inner.context("cannot write: the disk is full");
        assert_eq!(words(&error), "cannot write: the disk is full");
    }
}
