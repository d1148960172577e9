//! The book as tests read it: its pages, and their commands as a shell types them.

use std::path::{Path, PathBuf};

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository is there")
}

/// Every page of the book, the summary among them.
pub fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// A command of a page, with how it is run.
#[derive(Debug)]
pub struct Typed {
    pub line: usize,
    pub command: String,
    pub how: How,
    /// What the page shows below it.
    pub shown: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    /// It must succeed.
    Runs,
    /// It goes on while the rest of the page is read (` ```console,background `).
    Background,
    /// It must fail (` ```console,fails `).
    Fails,
}

/// The commands of a page: lines with a prompt in blocks of `console`, unless the block says `not-run`.
pub fn commands(page: &str) -> Vec<Typed> {
    let mut found: Vec<Typed> = Vec::new();
    let mut block: Option<How> = None;
    let mut goes_on = false;
    for (number, line) in page.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            block = match (block, info) {
                (None, "console") => Some(How::Runs),
                (None, "console,background") => Some(How::Background),
                (None, "console,fails") => Some(How::Fails),
                _ => None,
            };
            goes_on = false;
            continue;
        }
        let Some(how) = block else { continue };
        let prompt = line.find(['#', '$']).filter(|at| line[..*at].chars().all(|c| c.is_ascii_lowercase()));
        let typed = prompt.and_then(|at| line[at + 1..].strip_prefix(' '));
        match (goes_on, typed) {
            (true, _) => {
                let last = found.last_mut().expect("a command goes on");
                last.command.push('\n');
                last.command.push_str(line);
            }
            (false, Some(command)) => {
                found.push(Typed {
                    line: number + 1,
                    command: command.to_owned(),
                    how,
                    shown: String::new(),
                });
            }
            (false, None) => {
                if let Some(last) = found.last_mut() {
                    last.shown.push_str(line);
                    last.shown.push('\n');
                }
                continue;
            }
        }
        goes_on = line.ends_with('\\');
    }
    found
}

/// One shell types the whole page. Tokens on it are examples; the one that `token create` printed last takes their place.
pub fn script(page: &str, replace: &[(&str, &str)]) -> String {
    let mut out =
        String::from("set -u\nbackground=()\ntrap 'kill \"${background[@]}\" 2>/dev/null; wait' EXIT\n");
    for typed in commands(page) {
        let mut command = typed.command.clone();
        for (from, to) in replace {
            command = command.replace(from, to);
        }
        let command = with_variables(&command);
        let name = format!("line {}: {}", typed.line, typed.command.lines().next().unwrap_or_default());
        let name = name.replace('\'', "");
        out.push_str(&format!("echo '>>> {name}'\n"));
        match typed.how {
            How::Runs if command.contains("token create") => out.push_str(&format!(
                "join=$({command}\n) || {{ echo 'FAILED: {name}'; exit 1; }}\nTOKEN=$(sed 's/.*--token \\([^ ]*\\).*/\\1/' <<<\"$join\")\nCA_HASH=$(sed 's/.*--ca-hash \\([^ ]*\\).*/\\1/' <<<\"$join\")\n"
            )),
            // On a line of its own: the command may end in a comment.
            How::Runs => {
                out.push_str(&format!("{command}\n[ $? = 0 ] || {{ echo 'FAILED: {name}'; exit 1; }}\n"));
            }
            How::Fails => {
                out.push_str(&format!("{command}\n[ $? != 0 ] || {{ echo 'SUCCEEDED: {name}'; exit 1; }}\n"));
            }
            How::Background => {
                // It is there when it says what the page shows it saying.
                let last = typed.shown.lines().last().unwrap_or_default();
                let sign: String = last.split_whitespace().filter(|w| *w != "...").take(2).collect::<Vec<_>>().join(" ");
                out.push_str(&format!(
                    "log=$(mktemp)\n{command} >$log 2>&1 &\nbackground+=($!)\nfor _ in $(seq 300); do grep -q '{sign}' $log && break; sleep 0.2; done\ncat $log\ngrep -q '{sign}' $log || {{ echo 'FAILED: {name}'; exit 1; }}\n"
                ));
            }
        }
    }
    out
}

/// Example tokens and hashes become what was printed in this run.
fn with_variables(command: &str) -> String {
    let mut words = Vec::new();
    for word in command.split(' ') {
        let is_token = word.split_once('.').is_some_and(|(id, rest)| id.len() == 6 && rest.len() == 16);
        words.push(match word {
            _ if is_token => "$TOKEN",
            _ if word.starts_with("sha256:") => "$CA_HASH",
            _ => word,
        });
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use anyhow::{Result, ensure};

    use super::*;

    #[test]
    fn commands_are_found_with_their_continuations_and_prompts() {
        let page = "text\n```console\n# one --flag \\\n    more\noutput\nbox$ two\n```\n```console,not-run\n# three\n```\n```console,fails\n$ four\n```\n";
        let found = commands(page);
        let typed: Vec<_> = found.iter().map(|t| (t.command.as_str(), t.how)).collect();
        assert_eq!(typed, [("one --flag \\\n    more", How::Runs), ("two", How::Runs), ("four", How::Fails)]);
        assert_eq!(found[0].shown, "output\n");
        assert_eq!(with_variables("join --token c73316.4e7484b9c4580f18 x"), "join --token $TOKEN x");
    }

    #[test]
    fn a_command_that_fails_is_noticed_though_a_comment_follows_it() -> Result<()> {
        let ends_well = |page: &str| -> Result<bool> {
            Ok(Command::new("bash").arg("-c").arg(script(page, &[])).output()?.status.success())
        };
        ensure!(ends_well("```console\n# true    # a comment\n```\n")?);
        ensure!(!ends_well("```console\n# false    # a comment\n# true\n```\n")?);
        ensure!(!ends_well("```console,fails\n# true    # a comment\n```\n")?);
        Ok(())
    }
}
