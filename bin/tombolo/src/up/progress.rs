//! Progress of long work: one line per step, and waiting that can tell what it waits for.
//!
//! Nothing here fails when nobody listens any more: who is cleaning up after a closed terminal must not stop at a word.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Waits shorter than this are not worth a word.
const NOTICED: Duration = Duration::from_secs(1);
/// Back to the start of the line, and nothing on it.
const CLEAR: &str = "\r\x1b[K";

/// Prints a line; that nobody reads it is no fault.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The same, where faults are told.
pub fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A line that is written again and again while something is under way, where a terminal can do that.
pub struct Line {
    head: String,
    live: bool,
}

impl Line {
    pub fn new(head: impl Into<String>) -> Self {
        Self { head: head.into(), live: std::io::stdout().is_terminal() }
    }

    /// What is under way now.
    pub fn tell(&self, what: &str) {
        self.write(&format!("{CLEAR}{} … {what}", self.head));
    }

    /// Makes room for what is printed next.
    pub fn clear(&self) {
        self.write(CLEAR);
    }

    fn write(&self, text: &str) {
        if self.live {
            let mut out = std::io::stdout();
            let _ = write!(out, "{text}").and_then(|()| out.flush());
        }
    }
}

/// One line of progress: what is under way, then what came of it and how long it took.
pub struct Step {
    pub line: Line,
    started: Instant,
}

impl Step {
    pub fn start(name: &str) -> Self {
        let step = Self { line: Line::new(format!("{name:<12}")), started: Instant::now() };
        step.line.tell("");
        step
    }

    pub fn done(self, result: &str) {
        self.line.clear();
        say(&format!("{} {result} ({:.1} s)", self.line.head, self.started.elapsed().as_secs_f32()));
    }
}

/// Waits for work that cannot tell how far it is, and shows on the line that it still goes on.
pub async fn ticking<T>(line: &Line, work: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let mut every = tokio::time::interval(NOTICED);
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => { line.clear(); return done }
            _ = every.tick() => line.tell(&format!("{} s", started.elapsed().as_secs())),
        }
    }
}

/// Waits for `condition`; the error of its last try explains a time-out, and a wait that takes long.
pub async fn until<T, F, Fut>(line: &Line, what: &str, patience: Duration, mut condition: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let started = Instant::now();
    let outcome = loop {
        let waited = started.elapsed();
        match condition().await {
            Ok(value) => break Ok(value),
            Err(error) if waited > patience => {
                break Err(error.context(format!("waited {} s for {what}", patience.as_secs())));
            }
            Err(error) => {
                if waited > NOTICED {
                    line.tell(&waiting(what, &crate::fault::words(&error), waited));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    line.clear();
    outcome
}

/// What a long wait says of itself, short enough for one line.
fn waiting(what: &str, why: &str, waited: Duration) -> String {
    const WIDTH: usize = 70;
    let why = why.lines().next().unwrap_or_default();
    let text = format!("{} s for {what}: {why}", waited.as_secs());
    if text.chars().count() <= WIDTH { text } else { text.chars().take(WIDTH - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_says_for_what_and_why_in_one_line() {
        let said = waiting("all sites", "2 of 3 sites are ready\nand more", Duration::from_secs(7));
        assert_eq!(said, "7 s for all sites: 2 of 3 sites are ready");
        let said = waiting("it", &"very ".repeat(50), Duration::from_secs(7));
        assert_eq!((said.chars().count(), said.lines().count()), (70, 1));
    }

    #[tokio::test]
    async fn a_wait_that_is_in_vain_tells_what_it_saw_last() {
        let line = Line::new("");
        let seen: Result<()> =
            until(&line, "the tide", Duration::ZERO, || async { anyhow::bail!("it is low") }).await;
        let error = seen.expect_err("it never comes");
        assert_eq!(crate::fault::words(&error), "waited 0 s for the tide: it is low");
    }
}
