//! How long to wait before the next attempt.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Doubling waits with full jitter between half and the whole, so that a thousand sites do not come back in step.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    attempt: u32,
}

impl Backoff {
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, attempt: 0 }
    }

    /// The next wait; `fraction` is random in `0.0..1.0`.
    pub fn next(&mut self, fraction: f64) -> Duration {
        let full = self.base.saturating_mul(1u32.checked_shl(self.attempt).unwrap_or(u32::MAX)).min(self.max);
        self.attempt = (self.attempt + 1).min(31);
        full.mul_f64(0.5 + fraction.clamp(0.0, 1.0) / 2.0)
    }

    /// To be called when an attempt has lasted.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

/// Randomness good enough for jitter, from the keys the standard library draws for its hash maps.
pub fn random_fraction() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn waits_grow_and_never_pass_the_maximum(fractions in prop::collection::vec(0.0f64..1.0, 1..80)) {
            let (base, max) = (Duration::from_millis(200), Duration::from_secs(30));
            let mut backoff = Backoff::new(base, max);
            for (n, fraction) in fractions.into_iter().enumerate() {
                let wait = backoff.next(fraction);
                prop_assert!(wait <= max);
                prop_assert!(wait >= base / 2);
                if n > 10 {
                    prop_assert!(wait >= max / 2);
                }
            }
            backoff.reset();
            prop_assert!(backoff.next(0.5) <= base);
        }
    }
}
