//! The clock of a program, set to anything while it runs (Debian package `faketime`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// What the time is for the programs that were started on it.
#[derive(Clone)]
pub struct Clock {
    file: PathBuf,
    library: PathBuf,
}

impl Clock {
    /// Shows the right time at first. Nothing where the package is missing; in CI it must be there.
    pub fn new(dir: &Path, name: &str) -> Result<Option<Self>> {
        let folders = std::fs::read_dir("/usr/lib")?.flatten();
        let library =
            folders.map(|e| e.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
        let Some(library) = library else {
            anyhow::ensure!(
                std::env::var_os("CI").is_none(),
                "no faketime in CI; `cargo xtask fixtures` installs it"
            );
            eprintln!("SKIPPED: faketime is missing; `cargo xtask fixtures` installs it");
            return Ok(None);
        };
        let clock = Self { file: dir.join(format!("{name}.clock")), library };
        clock.set(0)?;
        Ok(Some(clock))
    }

    /// Sets it this many days off. Programs notice within a second.
    pub fn set(&self, days: i64) -> Result<()> {
        std::fs::write(&self.file, format!("{days:+}d\n")).context("cannot set the clock")
    }

    pub fn rule(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        // Only what clocks on the wall show: waits take as long as they take.
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        command.env("NO_FAKE_STAT", "1").env("FAKETIME_CACHE_DURATION", "1");
    }
}
