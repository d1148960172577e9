//! Time as the fleet counts it: on a clock that nobody can set.
//!
//! Who is silent, and for how long, decides what moves. A hub whose wall clock is put forward by an hour must not take its
//! sites for lost, so silence is counted on the steady clock; the wall clock is for people to read.

use std::sync::OnceLock;
use std::time::Instant;

/// One moment on both clocks, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Since some moment before this process began; never goes back, never jumps.
    pub steady: i64,
    /// Since 1970, as far as this machine knows.
    pub wall: i64,
}

impl Moment {
    /// The moment so many seconds earlier.
    pub fn before(self, seconds: i64) -> Self {
        Self { steady: self.steady - seconds, wall: self.wall - seconds }
    }
}

/// What the steady clock shows when it is first read: nothing that is counted from it is below zero.
const START: i64 = 1_000_000;

pub fn now() -> Moment {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let passed = FIRST.get_or_init(Instant::now).elapsed().as_secs();
    Moment {
        steady: START + i64::try_from(passed).unwrap_or(i64::MAX / 2),
        wall: jiff::Timestamp::now().as_second(),
    }
}
