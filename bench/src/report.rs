//! Results: raw numbers as JSON, and a table with the ratio to the goal.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

/// One measured quantity of both contestants.
#[derive(Serialize)]
pub struct Row {
    pub what: &'static str,
    pub unit: &'static str,
    pub upstream: Vec<f64>,
    pub tombolo: Vec<f64>,
    pub goal: &'static str,
    /// Whether more is better; the ratio is given so that larger is better for us.
    pub more_is_better: bool,
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Row {
    fn ratio(&self) -> f64 {
        let (upstream, tombolo) = (median(&self.upstream), median(&self.tombolo));
        if self.more_is_better { tombolo / upstream } else { upstream / tombolo }
    }
}

pub fn table(rows: &[Row]) -> String {
    let mut out = String::from("| what | upstream | tombolo | ratio | goal |\n|---|---|---|---|---|\n");
    for row in rows {
        let (upstream, tombolo) = (median(&row.upstream), median(&row.tombolo));
        let _ = writeln!(
            out,
            "| {} | {upstream:.2} {} | {tombolo:.2} {} | {:.1}x | {} |",
            row.what,
            row.unit,
            row.unit,
            row.ratio(),
            row.goal
        );
    }
    out
}

/// Writes `bench/<name>.md` and `bench/<name>.json`.
pub fn write(name: &str, note: &str, rows: &[Row]) -> Result<()> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let table = table(rows);
    println!("{table}");
    fs::write(dir.join(format!("{name}.md")), format!("# {name}\n\n{note}\n\n{table}"))?;
    fs::write(dir.join(format!("{name}.json")), serde_json::to_vec_pretty(rows)?)?;
    Ok(())
}

/// One measured quantity that has a goal of its own instead of an opponent.
#[derive(Serialize)]
pub struct Figure {
    pub what: String,
    pub unit: &'static str,
    /// All that was measured; the median counts.
    pub values: Vec<f64>,
    pub goal: Option<Goal>,
}

#[derive(Clone, Copy, Serialize)]
pub enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Figure {
    pub fn new(what: impl Into<String>, unit: &'static str, values: Vec<f64>, goal: Option<Goal>) -> Self {
        Self { what: what.into(), unit, values, goal }
    }

    fn verdict(&self) -> (String, &'static str) {
        let median = median(&self.values);
        match self.goal {
            None => ("shown only".into(), ""),
            Some(Goal::AtMost(most)) => {
                (format!("<= {most} {}", self.unit), if median <= most { "yes" } else { "no" })
            }
            Some(Goal::AtLeast(least)) => {
                (format!(">= {least} {}", self.unit), if median >= least { "yes" } else { "no" })
            }
        }
    }
}

pub fn figures_table(figures: &[Figure]) -> String {
    let mut out = String::from("| what | median | all runs | goal | met |\n|---|---|---|---|---|\n");
    for figure in figures {
        let all: Vec<_> = figure.values.iter().map(|v| format!("{v:.2}")).collect();
        let (goal, met) = figure.verdict();
        let median = median(&figure.values);
        let _ = writeln!(
            out,
            "| {} | {median:.2} {} | {} | {goal} | {met} |",
            figure.what,
            figure.unit,
            if all.len() > 12 { format!("{} runs", all.len()) } else { all.join(", ") }
        );
    }
    out
}

/// Writes `bench/<name>.md` and `bench/<name>.json`.
pub fn write_figures(name: &str, note: &str, figures: &[Figure]) -> Result<()> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let table = figures_table(figures);
    println!("{table}");
    fs::write(dir.join(format!("{name}.md")), format!("# {name}\n\n{note}\n\n{table}"))?;
    fs::write(dir.join(format!("{name}.json")), serde_json::to_vec_pretty(figures)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_larger_when_tombolo_is_better() {
        let row = |more_is_better| Row {
            what: "w",
            unit: "u",
            upstream: vec![10.0, 2.0, 1.0],
            tombolo: vec![4.0],
            goal: "",
            more_is_better,
        };
        assert_eq!(row(true).ratio(), 2.0);
        assert_eq!(row(false).ratio(), 0.5);
    }
}
