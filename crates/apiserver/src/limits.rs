//! How much may be asked: at once by all, and per second by each. Who comes when all slots are taken waits for one, for a
//! while and in a line that is not endless; what does not fit then is answered with 429 and `Retry-After`, before any
//! work is done for it. A thousand sites that report at the same moment are a wave to take in, not an attack.
//!
//! Administrators and the server's own loops are exempt, so that an overloaded server can still be mended, and so
//! are health checks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::auth::identity::GROUP_MASTERS;
use crate::config::Limits;
use crate::http::status::{Failure, Result};
use crate::server::Call;

/// More users than this share one allowance.
const USERS: usize = 10_000;

pub struct Limiter {
    limits: Limits,
    reads: Slots,
    writes: Slots,
    rates: Mutex<Rates>,
}

struct Slots {
    free: Semaphore,
    waiting: AtomicUsize,
}

impl Slots {
    fn new(count: usize) -> Self {
        Self { free: Semaphore::new(count), waiting: AtomicUsize::new(0) }
    }

    async fn take(&self, limits: &Limits) -> Option<SemaphorePermit<'_>> {
        if let Ok(slot) = self.free.try_acquire() {
            return Some(slot);
        }
        let place = Place::take(&self.waiting);
        if place.number >= limits.waiting {
            return None;
        }
        tokio::time::timeout(limits.patience, self.free.acquire()).await.ok()?.ok()
    }
}

/// A place in the line; given up when dropped, also by a client that leaves.
struct Place<'a> {
    line: &'a AtomicUsize,
    number: usize,
}

impl<'a> Place<'a> {
    fn take(line: &'a AtomicUsize) -> Self {
        Self { line, number: line.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.line.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Limiter {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            reads: Slots::new(limits.reads),
            writes: Slots::new(limits.writes),
            rates: Mutex::default(),
        }
    }

    /// A slot for the time of one request. Long-running requests take none: they would starve the others.
    pub async fn admit(&self, call: &Call) -> Result<Option<SemaphorePermit<'_>>> {
        if call.user.in_group(GROUP_MASTERS)
            || matches!(call.path.as_str(), "/healthz" | "/livez" | "/readyz")
        {
            return Ok(None);
        }
        self.rates.lock().take(&call.user.user, &self.limits, Instant::now()).map_err(|seconds| {
            Failure::too_many_requests("this user asks too often, please try again later", seconds)
        })?;
        let long = call.target.verb == "watch"
            || matches!(
                call.target.subresource.as_str(),
                "exec" | "attach" | "portforward" | "log" | "proxy"
            )
            || call.app.config.upgrades.contains_key(&call.path);
        if long {
            return Ok(None);
        }
        let slots = match call.target.verb {
            "get" | "list" | "head" => &self.reads,
            _ => &self.writes,
        };
        match slots.take(&self.limits).await {
            Some(slot) => Ok(Some(slot)),
            None => Err(Failure::too_many_requests("too many requests, please try again later", 1)),
        }
    }
}

/// What each user may still ask for.
#[derive(Default)]
struct Rates {
    users: HashMap<Box<str>, Allowance>,
}

/// Refilled as time passes, never above the burst.
#[derive(Clone, Copy)]
struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    fn refill(&mut self, limits: &Limits, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * f64::from(limits.per_second)).min(f64::from(limits.burst));
        self.at = now;
    }
}

impl Rates {
    /// Counts one request, or says after how many seconds the next one is welcome.
    fn take(&mut self, user: &str, limits: &Limits, now: Instant) -> Result<(), u32> {
        if !self.users.contains_key(user) && self.users.len() >= USERS {
            // Whoever has been quiet loses nothing by being forgotten.
            self.users.retain(|_, allowance| {
                allowance.refill(limits, now);
                allowance.left < f64::from(limits.burst)
            });
        }
        let user = if self.users.len() < USERS || self.users.contains_key(user) { user } else { "" };
        if !self.users.contains_key(user) {
            self.users.insert(user.into(), Allowance { left: f64::from(limits.burst), at: now });
        }
        let Some(allowance) = self.users.get_mut(user) else { return Ok(()) };
        allowance.refill(limits, now);
        if allowance.left >= 1.0 {
            allowance.left -= 1.0;
            return Ok(());
        }
        Err(((1.0 - allowance.left) / f64::from(limits.per_second.max(1))).ceil().max(1.0) as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits =
        Limits { reads: 1, writes: 1, waiting: 0, patience: Duration::ZERO, per_second: 10, burst: 20 };

    #[test]
    fn a_user_may_burst_and_then_goes_on_at_the_rate() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let granted =
            |rates: &mut Rates, user, at| (0..100).filter(|_| rates.take(user, &LIMITS, at).is_ok()).count();
        assert_eq!(granted(&mut rates, "eve", start), 20);
        assert_eq!(rates.take("eve", &LIMITS, start), Err(1));
        assert_eq!(granted(&mut rates, "adam", start), 20, "one user's haste is not another's");
        assert_eq!(granted(&mut rates, "eve", start + Duration::from_secs(1)), 10);
        assert_eq!(
            granted(&mut rates, "eve", start + Duration::from_secs(60)),
            20,
            "no more than a burst is saved up"
        );
    }

    #[test]
    fn many_names_do_not_grow_memory_without_end() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        for n in 0..USERS + 100 {
            let _ = rates.take(&format!("user-{n}"), &LIMITS, start);
        }
        assert!(rates.users.len() <= USERS + 1, "{}", rates.users.len());
        assert!(
            rates.take("late", &LIMITS, start).is_err(),
            "strangers beyond the limit share one allowance"
        );
        let later = start + Duration::from_secs(60);
        rates.take("later", &LIMITS, later).expect("those who were quiet are forgotten");
        assert_eq!(rates.users.len(), 1);
    }
}
