//! What client commands print: a table for people, or JSON, YAML and names for programs.

use std::io::IsTerminal;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Output {
    /// How to print
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Format,
}

/// One row type of a command: its columns, and which of them only `-o wide` shows.
pub struct Table {
    header: Vec<&'static str>,
    wide_from: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// The columns from `wide_from` on are shown with `-o wide` only.
    pub fn new(header: &[&'static str], wide_from: usize) -> Self {
        Self { header: header.to_vec(), wide_from, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells);
    }

    pub fn render(&self, wide: bool) -> String {
        let columns = if wide { self.header.len() } else { self.wide_from.min(self.header.len()) };
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.header[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut out = String::new();
        let header = self.header.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>();
        for row in std::iter::once(&header).chain(&self.rows) {
            let line: Vec<_> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            out.push_str(line.join("   ").trim_end());
            out.push('\n');
        }
        out
    }
}

impl Output {
    /// Prints Kubernetes objects as asked; as JSON and YAML they are a `List`, as kubectl's are. `names` gives
    /// `kind/name` for `-o name`.
    pub fn objects<T: Serialize>(
        self,
        table: &Table,
        items: &[T],
        names: impl Fn(&T) -> String,
    ) -> Result<()> {
        self.print(table, json!({"apiVersion": "v1", "kind": "List", "items": items}), items, names)
    }

    /// Prints what is not kept in the API; as JSON and YAML it is an object with `items`, as a list of objects is.
    pub fn rows<T: Serialize>(self, table: &Table, items: &[T], names: impl Fn(&T) -> String) -> Result<()> {
        self.print(table, json!({"items": items}), items, names)
    }

    /// Prints one thing that is not kept in the API; `text` is for people.
    pub fn one<T: Serialize>(self, text: &str, item: &T, name: &str) -> Result<()> {
        match self.output {
            Format::Table | Format::Wide => print!("{text}"),
            Format::Json => println!("{}", serde_json::to_string_pretty(item)?),
            Format::Yaml => print!("{}", serde_yaml_ng::to_string(item)?),
            Format::Name => println!("{name}"),
        }
        Ok(())
    }

    fn print<T>(self, table: &Table, list: Value, items: &[T], names: impl Fn(&T) -> String) -> Result<()> {
        match self.output {
            Format::Table => print!("{}", table.render(false)),
            Format::Wide => print!("{}", table.render(true)),
            Format::Json => println!("{}", serde_json::to_string_pretty(&list)?),
            Format::Yaml => print!("{}", serde_yaml_ng::to_string(&list)?),
            Format::Name => items.iter().for_each(|item| println!("{}", names(item))),
        }
        Ok(())
    }
}

/// A number of bytes as people read it: `23.4Gi`.
pub fn bytes(amount: i64) -> String {
    let mut value = amount as f64;
    for unit in ["", "Ki", "Mi", "Gi", "Ti"] {
        if value < 1024.0 || unit == "Ti" {
            let digits = if unit.is_empty() || value >= 100.0 { 0 } else { 1 };
            return format!("{value:.digits$}{unit}");
        }
        value /= 1024.0;
    }
    unreachable!("the last unit takes whatever is left")
}

/// Thousandths of a core as people read them: `250m`, `1.98`.
pub fn cores(milli: i64) -> String {
    if milli < 1000 {
        return format!("{milli}m");
    }
    let text = format!("{:.2}", milli as f64 / 1000.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A Kubernetes quantity as people read it; what is none stays as it is.
pub fn quantity(resource: &str, text: &str) -> String {
    match (resource, tombolo_api::quantity::amount(resource, text)) {
        ("cpu", Some(amount)) => cores(amount),
        ("memory" | "ephemeral-storage", Some(amount)) => bytes(amount),
        _ => text.to_owned(),
    }
}

/// Colour on a terminal only.
pub fn emphasis(text: &str) -> String {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[1m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_for_people() {
        assert_eq!(quantity("memory", "25153159168"), "23.4Gi");
        assert_eq!(quantity("memory", "512"), "512");
        assert_eq!(quantity("memory", "250Mi"), "250Mi");
        assert_eq!(quantity("cpu", "1980m"), "1.98");
        assert_eq!(quantity("cpu", "2"), "2");
        assert_eq!(quantity("cpu", "250m"), "250m");
        assert_eq!(quantity("pods", "110"), "110");
    }

    #[test]
    fn columns_line_up_and_wide_ones_wait_for_wide() {
        let mut table = Table::new(&["NAME", "TIER", "NODE"], 2);
        table.row(vec!["a-long-name".into(), "edge".into(), "n1".into()]);
        assert_eq!(table.render(false), "NAME          TIER\na-long-name   edge\n");
        assert!(table.render(true).ends_with("n1\n"));
    }
}
