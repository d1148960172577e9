//! Kubernetes' own `e2e.test` against Tombolo, by tier, with tables that are generated and never written by hand.
//!
//! Tiers say what a test needs: T0 an API server only, T1 controllers too, T2 a node object or a scheduler, T3 containers.
//! The lists are in `tests/conformance/`. T0 runs against a site without a node; the others against one with a node, in a
//! network namespace of its own (that needs root).

mod images;
mod report;
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};

use crate::fixtures;
use crate::run::root;
use report::Outcome;
use site::Site;

#[derive(clap::Args)]
pub struct Args {
    /// Which tiers to run: t0, t1, t2, t3
    #[arg(long, visible_alias = "tier", value_delimiter = ',', default_value = "t0")]
    tiers: Vec<String>,
    /// Only tests whose name contains this; the table is printed, not written
    #[arg(long)]
    only: Option<String>,
    /// Write the tables from the JUnit reports of an earlier run (a file, or a folder of them) instead of running
    #[arg(long, value_name = "PATH")]
    report: Option<PathBuf>,
    /// Leave out the tests that wait for compaction (about ten minutes)
    #[arg(long)]
    fast: bool,
    /// How many `e2e.test` run at once; tests marked [Serial] run alone
    #[arg(long, default_value_t = 4)]
    jobs: usize,
    /// Test this binary instead of building one
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

impl Args {
    /// The tests that need only an API server, without the slow one, on a program that was built already.
    pub fn quick(binary: PathBuf) -> Self {
        let tiers = vec!["t0".to_owned()];
        Self { tiers, only: None, report: None, fast: true, jobs: 4, binary: Some(binary) }
    }
}

/// How many tests one `e2e.test` runs; it takes seconds to start.
const BATCH: usize = 8;

pub fn run(args: &Args) -> Result<()> {
    let unsupported = unsupported()?;
    let mut tables = BTreeMap::new();
    let mut failed_any = false;
    for tier in &args.tiers {
        let (left_out, names): (Vec<_>, Vec<_>) =
            names(tier, args)?.into_iter().partition(|name| reason(&unsupported, name).is_some());
        let junit = match &args.report {
            Some(path) => read_reports(path)?,
            None => run_tier(tier, &names, args)?,
        };
        let mut outcomes: BTreeMap<_, _> =
            names.iter().map(|name| (name.clone(), report::outcome(&junit, name))).collect();
        for name in left_out {
            let why = reason(&unsupported, &name).unwrap_or_default().to_owned();
            outcomes.insert(name, Outcome::LeftOut(why));
        }
        let passed = outcomes.values().filter(|o| matches!(o, Outcome::Passed)).count();
        failed_any |= outcomes.values().any(|o| matches!(o, Outcome::Failed(_) | Outcome::NotRun));
        println!("conformance: {tier}: {passed} of {} passed", outcomes.len());
        tables.insert(tier.to_uppercase(), report::table(tier, &outcomes));
    }
    if args.only.is_some() || args.fast {
        println!("{}", tables.into_values().collect::<String>());
        if failed_any {
            bail!("some conformance tests failed; their reasons are in the table above");
        }
        return Ok(());
    }
    let path = root().join("docs/conformance.md");
    let before = fs::read_to_string(&path).unwrap_or_default();
    fs::write(path, report::page(&before, &tables))?;
    Ok(())
}

fn names(tier: &str, args: &Args) -> Result<Vec<String>> {
    let path = root().join(format!("tests/conformance/{tier}.txt"));
    let text = fs::read_to_string(&path)
        .with_context(|| format!("no tier {tier:?}: {} is missing", path.display()))?;
    let wanted = |name: &&str| {
        args.only.as_deref().is_none_or(|part| name.contains(part)) && !(args.fast && name.contains("[Slow]"))
    };
    Ok(text.lines().filter(|l| !l.is_empty()).filter(wanted).map(str::to_owned).collect())
}

/// Tests that are known to wait in vain, with the reason.
fn unsupported() -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(root().join("tests/conformance/unsupported.txt"))?;
    let rows = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" | "));
    Ok(rows.map(|(part, why)| (part.to_owned(), why.to_owned())).collect())
}

fn reason<'a>(unsupported: &'a [(String, String)], name: &str) -> Option<&'a str> {
    unsupported.iter().find(|(part, _)| name.contains(part)).map(|(_, why)| why.as_str())
}

fn read_reports(path: &Path) -> Result<String> {
    if path.is_file() {
        return fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    }
    let mut all = String::new();
    for entry in fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let entry = entry?.path();
        if entry.is_dir() || entry.extension().is_some_and(|end| end == "xml") {
            all.push_str(&read_reports(&entry)?);
        }
    }
    Ok(all)
}

/// Runs a tier's tests against a fresh site, in batches side by side; gives all JUnit reports in one text.
fn run_tier(tier: &str, names: &[String], args: &Args) -> Result<String> {
    if names.is_empty() {
        return Ok(String::new());
    }
    let found = fixtures::ensure_all()?;
    let work = std::env::temp_dir().join(format!("tombolo-conformance-{}-{tier}", std::process::id()));
    fs::create_dir_all(&work)?;
    let site = Site::start(&work, tier != "t0", args.binary.as_deref())?;
    let (serial, parallel): (Vec<_>, Vec<_>) = names.iter().cloned().partition(|n| n.contains("[Serial]"));
    let junit = Mutex::new(String::new());
    let suite = Suite {
        e2e: &found["TOMBOLO_E2E_TEST"],
        kubectl: &found["TOMBOLO_KUBECTL"],
        work: &work,
        site: &site,
    };
    for (tests, jobs) in [(parallel, args.jobs.max(1)), (serial, 1)] {
        let batches: Vec<_> = tests.chunks(BATCH).collect();
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs)
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                            let report = suite.run(batch)?;
                            junit.lock().map_err(|_| anyhow::anyhow!("a batch panicked"))?.push_str(&report);
                        }
                        Ok(())
                    })
                })
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().map_err(|_| anyhow::anyhow!("a batch panicked"))?)
        })?;
    }
    drop(site);
    let _ = fs::remove_dir_all(&work);
    Ok(junit.into_inner().unwrap_or_default())
}

struct Suite<'a> {
    e2e: &'a Path,
    kubectl: &'a Path,
    work: &'a Path,
    site: &'a Site,
}

impl Suite<'_> {
    /// Runs one batch and gives ginkgo's JUnit report. A failing test is a result, not an error.
    fn run(&self, names: &[String]) -> Result<String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let folder = self.work.join(format!("batch-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&folder)?;
        let log = fs::File::create(folder.join("e2e.log"))?;
        let focus: Vec<_> = names.iter().map(|name| escape(name)).collect();
        let mut command = self.site.inside(self.e2e);
        command
            .arg(format!("--kubeconfig={}", self.site.kubeconfig.display()))
            .args(["--provider=skeleton", "--allowed-not-ready-nodes=-1", "--minStartupPods=-1"])
            .args(["--disable-log-dump", "--ginkgo.no-color", "--ginkgo.timeout=60m"])
            .arg(format!("--kubectl-path={}", self.kubectl.display()))
            .arg(format!("--report-dir={}", folder.display()))
            .arg(format!("--ginkgo.focus={}", focus.join("|")))
            .stdout(log.try_clone()?)
            .stderr(log);
        if !self.site.has_node {
            command.arg("--num-nodes=0");
        }
        command.status().context("could not start e2e.test")?;
        let junit = fs::read_dir(&folder)?
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .find(|path| path.extension().is_some_and(|x| x == "xml"));
        match junit {
            Some(path) => Ok(fs::read_to_string(path)?),
            None => bail!("e2e.test wrote no report; its log is {}", folder.join("e2e.log").display()),
        }
    }
}

fn escape(name: &str) -> String {
    name.chars().fold(String::new(), |mut out, c| {
        if !c.is_alphanumeric() && c != ' ' {
            out.push('\\');
        }
        out.push(c);
        out
    })
}

/// `ip` with these words.
fn ip(words: &[&str]) -> Result<()> {
    crate::run::output(Command::new("ip").args(words)).map(drop)
}
