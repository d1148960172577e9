//! The book's reference pages, printed from the command line's and the resources' own definitions.

use std::fmt::Write;

use clap::{Arg, Command, ValueEnum};
use serde_json::Value;

/// Print a reference page of the book (for `cargo xtask docs`)
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tombolo reference commands > docs/reference/commands.md")]
pub struct Args {
    /// Which page
    page: Page,
}

#[derive(Clone, Copy, ValueEnum)]
enum Page {
    /// Every command and flag
    Commands,
    /// Every field of every resource
    Resources,
}

pub fn run(args: &Args, command: Command) {
    match args.page {
        Page::Commands => print!("{}", commands(command)),
        Page::Resources => print!("{}", resources()),
    }
}

const COMMANDS_INTRO: &str = "\
# Commands

<!-- Made by `cargo xtask docs` from the command line's definition; change that instead. -->

Every command, with every flag. `tombolo COMMAND --help` shows the same.

- **Which cluster**: client commands find theirs as kubectl does: `--kubeconfig`, else `KUBECONFIG` (several files with `:`), else
  `~/.kube/config`, and last the hub of `tombolo up`; `--context` chooses in it.
- **Output**: commands that show things take `-o table|wide|json|yaml|name`. As JSON and YAML a list is an object with `items`; where the items are Kubernetes objects it is a `List`, as kubectl gives it. Colour is used on a terminal only, and not when `NO_COLOR` is set.
- **Exit codes**: 0 done; 1 `tombolo check` found something wrong; 2 not done, or the command line was wrong; 130 interrupted.
- **Logs** go to standard error; `RUST_LOG` sets their level (default `warn,tombolo=info`).

";

fn commands(mut root: Command) -> String {
    // Builds what clap adds late, such as the flags that all commands share.
    root.build();
    let mut out = COMMANDS_INTRO.to_owned();
    let globals: Vec<_> = root.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    out.push_str("## On every command\n\n");
    flags(&mut out, globals.iter());
    let _ = writeln!(out, "\n| command | |\n|---|---|");
    for command in shown(&root) {
        let name = command.get_name();
        let _ = writeln!(out, "| [`tombolo {name}`](#tombolo-{name}) | {} |", about(command));
    }
    for command in shown(&root) {
        one(&mut out, command, "tombolo");
    }
    out
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn one(out: &mut String, command: &Command, path: &str) {
    let path = format!("{path} {}", command.get_name());
    let _ = writeln!(out, "\n## {path}\n\n{}.\n", about(command));
    let usage = command.clone().bin_name(path.clone()).render_usage().to_string();
    let _ = writeln!(out, "```text\n{}\n```\n", usage.trim_start_matches("Usage: "));
    let aliases: Vec<_> = command.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
    if !aliases.is_empty() {
        let _ = writeln!(out, "Also called {}.\n", aliases.join(", "));
    }
    let own = command.get_arguments().filter(|a| {
        !a.is_hide_set() && !matches!(a.get_id().as_str(), "help" | "version" | "kubeconfig" | "context")
    });
    flags(out, own);
    if let Some(example) = command.get_after_help() {
        let _ = writeln!(out, "\n```text\n{}\n```", example.to_string().trim());
    }
    for below in shown(command) {
        one(out, below, &path);
    }
}

fn flags<'a>(out: &mut String, all: impl Iterator<Item = &'a Arg>) {
    let mut rows = String::new();
    for arg in all {
        let mut name = match (arg.get_short(), arg.get_long()) {
            (Some(short), Some(long)) => format!("-{short}, --{long}"),
            (None, Some(long)) => format!("--{long}"),
            _ => String::new(),
        };
        let takes = arg.get_action().takes_values();
        if takes {
            let value = arg
                .get_value_names()
                .map(|v| v.join(" "))
                .unwrap_or_else(|| arg.get_id().to_string().to_uppercase());
            let value = if arg.is_positional() { value } else { format!(" {value}") };
            name.push_str(&value);
        }
        let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let defaults: Vec<_> =
            arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
        if takes && !defaults.is_empty() && !volatile(arg) {
            let _ = write!(text, " (default `{}`)", defaults.join(" "));
        }
        let values: Vec<_> = arg
            .get_possible_values()
            .iter()
            .filter(|_| takes)
            .map(|v| format!("`{}`", v.get_name()))
            .collect();
        if !values.is_empty() {
            let _ = write!(text, "; one of {}", values.join(", "));
        }
        if let Some(variable) = arg.get_env() {
            let _ = write!(text, "; also from `{}`", variable.to_string_lossy());
        }
        if arg.is_required_set() {
            text.push_str("; required");
        }
        let _ = writeln!(rows, "| `{name}` | {} |", text.replace('|', "\\|"));
    }
    if !rows.is_empty() {
        let _ = write!(out, "| flag | |\n|---|---|\n{rows}");
    }
}

/// A default that depends on the machine, such as its host name, is not for a page.
fn volatile(arg: &Arg) -> bool {
    arg.get_long() == Some("name")
}

const RESOURCES_INTRO: &str = "\
# Resources

<!-- Made by `cargo xtask docs` from the resources' schemas in crates/api; change those instead. -->

Group `tombolo.dev`, version `v1alpha1`. `kubectl explain placement.spec --recursive` at a hub shows the same from the server.
How the parts work together is told in [Concepts](../concepts.md); what the hub and agents write on your own objects, in
[Labels and annotations](labels.md) and in the condition `Placed` of what is placed (`False` with `NoPlacement`, `NoRoom` or
`CannotRender`).

`[]` is a list, `{}` a map, whose keys are yours.

";

fn resources() -> String {
    let mut out = RESOURCES_INTRO.to_owned();
    for crd in tombolo_api::crds() {
        let names = &crd.spec.names;
        let short = names.short_names.clone().unwrap_or_default().join(", ");
        let _ = writeln!(out, "## {}\n", names.kind);
        let scope = if crd.spec.scope == "Namespaced" { "Namespaced" } else { "Cluster-scoped" };
        let version = &crd.spec.versions[0];
        let schema =
            serde_json::to_value(version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref()));
        let schema = schema.unwrap_or_default();
        let _ = writeln!(out, "{scope}; `kubectl get {}`, for short `{short}`.\n", names.plural);
        for part in ["spec", "status"] {
            let node = &schema["properties"][part];
            if node.is_object() {
                if let Some(text) = node["description"].as_str() {
                    let _ = writeln!(out, "{}\n", line(text));
                }
                let _ = writeln!(out, "| field | type | |\n|---|---|---|");
                fields(&mut out, part, node);
                out.push('\n');
            }
        }
    }
    out
}

fn fields(out: &mut String, path: &str, schema: &Value) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let (suffix, inner) = element(field);
        let mut text =
            field["description"].as_str().or(inner["description"].as_str()).map(line).unwrap_or_default();
        if let Some(default) = field
            .get("default")
            .filter(|d| !d.is_object() && !d.is_null() && **d != "" && **d != Value::Array(vec![]))
        {
            let _ = write!(text, " Default: `{}`.", default.to_string().trim_matches('"'));
        }
        let _ = writeln!(out, "| `{path}{suffix}` | {} | {} |", kind(inner), text.trim().replace('|', "\\|"));
        fields(out, &format!("{path}{suffix}"), inner);
    }
}

/// What a list or map holds, with the sign for it.
fn element(field: &Value) -> (String, &Value) {
    if field["items"].is_object() {
        let (suffix, inner) = element(&field["items"]);
        return (format!("[]{suffix}"), inner);
    }
    if field["additionalProperties"].is_object() {
        let (suffix, inner) = element(&field["additionalProperties"]);
        return (format!("{{}}{suffix}"), inner);
    }
    (String::new(), field)
}

fn kind(schema: &Value) -> String {
    let values: Vec<_> = schema["enum"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|v| Some(format!("`{}`", v.as_str()?)))
        .collect();
    if !values.is_empty() {
        return values.join(", ");
    }
    schema["type"].as_str().unwrap_or("any").to_owned()
}

fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
