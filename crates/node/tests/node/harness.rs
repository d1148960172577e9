//! Runs tests one after the other, by name.

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::pin::Pin;
use std::process::exit;

use futures::FutureExt;

pub type Test = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// Names a list of async functions.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub fn tests() -> Vec<$crate::harness::Test> {
            vec![$((stringify!($name), || Box::pin($name()))),*]
        }
    };
}

/// What is missing to run here.
fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("containers need root".into());
    }
    if !Path::new("/bin/busybox").exists() {
        return Some("/bin/busybox is missing (Debian package busybox-static)".into());
    }
    None
}

pub fn run(tests: &[Test]) {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<&Test> = tests
        .iter()
        .filter(|(name, _)| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str())))
        .collect();
    if chosen.is_empty() {
        return;
    }
    if let Some(why) = missing() {
        assert!(std::env::var_os("CI").is_none(), "CI must run the node's tests, but {why}");
        println!("SKIPPED {} tests of the node: {why}", chosen.len());
        return;
    }
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a network namespace of our own");
    tombolo_net::loopback_up(std::process::id()).expect("loopback");
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into());
    tracing_subscriber::fmt().with_env_filter(filter).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("tokio");
    let mut failed = Vec::new();
    println!("\nrunning {} tests", chosen.len());
    for (name, test) in &chosen {
        let start = std::time::Instant::now();
        let outcome = runtime.block_on(AssertUnwindSafe(test()).catch_unwind());
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {word} ({:.1} s)", start.elapsed().as_secs_f32());
        if outcome.is_err() {
            failed.push(*name);
        }
    }
    println!(
        "\ntest result: {}. {} passed; {} failed: {failed:?}",
        if failed.is_empty() { "ok" } else { "FAILED" },
        chosen.len() - failed.len(),
        failed.len()
    );
    // What tests leave running on purpose (upstream's processes) ends with their guards.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    crate::machine::stop_upstream();
    exit(i32::from(!failed.is_empty()));
}
