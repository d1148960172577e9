//! Two processes on one data folder.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tombolo_store::{EmbeddedOptions, EmbeddedStore, StoreError};

const FOLDER: &str = "TOMBOLO_STORE_LOCK_FOLDER";

#[test]
#[ignore = "is the other process of `a_folder_that_another_process_uses_is_refused_until_that_ends`"]
fn other() {
    let folder = std::env::var_os(FOLDER).unwrap();
    let _store = EmbeddedStore::open(folder.as_ref(), EmbeddedOptions::default()).unwrap();
    println!("\nopened");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_folder_that_another_process_uses_is_refused_until_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "other", "--nocapture"])
        .env(FOLDER, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.by_ref().any(|line| line == "opened"), "the other process did not start");

    let refused = EmbeddedStore::open(folder.path(), EmbeddedOptions::default());
    assert!(matches!(&refused, Err(StoreError::Locked { path }) if path == folder.path()), "{refused:?}");
    other.stdin.take().unwrap().write_all(b"\n").unwrap();
    other.wait().unwrap();
    EmbeddedStore::open(folder.path(), EmbeddedOptions::default()).unwrap();
}
