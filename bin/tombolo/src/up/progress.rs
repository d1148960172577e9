//! Progress of long work: one line per step, and waiting that can tell what it waits for.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;

/// One line of progress: what is under way, then what came of it and how long it took.
pub struct Step {
    name: &'static str,
    started: Instant,
}

impl Step {
    pub fn start(name: &'static str) -> Self {
        // Where no terminal can rewrite the line, only the result is printed.
        if std::io::stdout().is_terminal() {
            print!("{name:<12} …");
            let _ = std::io::stdout().flush();
        }
        Self { name, started: Instant::now() }
    }

    pub fn done(self, result: &str) {
        let back = if std::io::stdout().is_terminal() { "\r" } else { "" };
        println!("{back}{:<12} {result} ({:.1} s)", self.name, self.started.elapsed().as_secs_f32());
    }
}

/// Waits for `condition`; the error of its last try explains a time-out.
pub async fn until<T, F, Fut>(what: &str, patience: Duration, mut condition: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let deadline = Instant::now() + patience;
    loop {
        match condition().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("waited {} s for {what}", patience.as_secs())));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
