//! How much a QUIC connection may have in flight.
//!
//! The usual controllers halve their window at every lost packet. On a radio or satellite link that loses one packet in
//! ten for reasons of its own, that leaves a few kilobytes a second. Here congestion is what congestion does: a queue
//! that grows (the round trip gets longer), or a large share of packets lost. Loss alone, up to a share, is weather.
//!
//! Invariants:
//! - The window never leaves `[floor, CEILING]`.
//! - It shrinks at most once in a round trip, and only for a longer round trip, heavy loss, or persistent congestion.
//! - It grows only by bytes that were acknowledged while there was more to send.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory};
use quinn_proto::RttEstimator;

/// A Work with what it needs travels in the first flight.
const INITIAL: u64 = 64 << 10;
const CEILING: u64 = 8 << 20;
/// Packets that may always be in flight: heartbeats, small calls, a Work.
const FLOOR_PACKETS: u64 = 16;
/// The share of bytes lost in a round trip that counts as congestion.
const HEAVY_LOSS: f64 = 0.25;
/// A queue: the round trip is longer than the shortest seen by a quarter of it and by this.
const JITTER: Duration = Duration::from_millis(30);
const SHRINK: f64 = 0.75;
/// The shortest round trip is remembered for one to two of these: routes change.
const MEMORY: Duration = Duration::from_secs(30);

/// Tolerates random loss, yields to queues.
#[derive(Clone, Debug)]
pub struct Weatherproof {
    window: u64,
    floor: u64,
    round: Round,
    shortest: Shortest,
}

/// The shortest round trip of this period and of the one before.
#[derive(Clone, Debug)]
struct Shortest {
    since: Instant,
    now: Duration,
    before: Duration,
}

impl Shortest {
    fn see(&mut self, now: Instant, rtt: Duration) -> Duration {
        if now.saturating_duration_since(self.since) > MEMORY {
            *self = Self { since: now, now: rtt, before: self.now };
        }
        self.now = self.now.min(rtt);
        self.now.min(self.before)
    }
}

/// What happened to the bytes of one round trip.
#[derive(Clone, Debug)]
struct Round {
    started: Instant,
    acked: u64,
    lost: u64,
    queued: bool,
}

impl Round {
    fn new(started: Instant) -> Self {
        Self { started, acked: 0, lost: 0, queued: false }
    }

    fn congested(&self) -> bool {
        let all = self.acked + self.lost;
        self.queued || (all > 0 && self.lost as f64 / all as f64 > HEAVY_LOSS)
    }
}

impl Weatherproof {
    fn new(now: Instant, mtu: u16) -> Self {
        let floor = FLOOR_PACKETS * u64::from(mtu);
        let shortest = Shortest { since: now, now: Duration::MAX, before: Duration::MAX };
        Self { window: INITIAL.max(floor), floor, round: Round::new(now), shortest }
    }

    /// Packets sent after the round began are acknowledged or lost: the round is over.
    fn end_round(&mut self, now: Instant) {
        if self.round.congested() {
            // A queue that stays while hardly anything is sent is not ours: the way has become longer.
            if self.window == self.floor && self.round.queued {
                self.shortest = Shortest { since: now, now: Duration::MAX, before: Duration::MAX };
            }
            self.window = ((self.window as f64 * SHRINK) as u64).max(self.floor);
        }
        self.round = Round::new(now);
    }

    fn acked(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: Duration) {
        self.round.acked += bytes;
        let shortest = self.shortest.see(now, rtt);
        self.round.queued |= rtt > shortest + shortest / 4 + JITTER;
        if !app_limited && !self.round.congested() {
            self.window = (self.window + bytes).min(CEILING);
        }
        if sent >= self.round.started {
            self.end_round(now);
        }
    }
}

impl Controller for Weatherproof {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.acked(now, sent, bytes, app_limited, rtt.get());
    }

    fn on_congestion_event(&mut self, now: Instant, _sent: Instant, persistent: bool, lost: u64) {
        self.round.lost += lost;
        if persistent {
            self.window = self.floor;
            self.round = Round::new(now);
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.floor = FLOOR_PACKETS * u64::from(mtu);
        self.window = self.window.max(self.floor);
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Makes one [`Weatherproof`] per connection.
pub struct Factory;

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Weatherproof::new(now, mtu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Duration = Duration::from_millis(800);

    /// A controller after rounds in which `lost` of every 100 packets went missing and the round trip was `rtt`.
    fn after(rounds: u32, lost: u64, rtt: Duration) -> Weatherproof {
        let begin = Instant::now();
        let mut controller = Weatherproof::new(begin, 1200);
        controller.acked(begin, begin - RTT, 0, true, RTT);
        for n in 0..rounds {
            let sent = begin + RTT * n + Duration::from_millis(1);
            for packet in 0..100u64 {
                if packet < lost {
                    controller.on_congestion_event(sent + RTT, sent, false, 1200);
                } else {
                    controller.acked(sent + RTT, sent - Duration::from_millis(2), 1200, false, rtt);
                }
            }
            controller.acked(sent + RTT, sent, 1200, false, rtt);
        }
        controller
    }

    #[test]
    fn one_packet_in_ten_lost_is_weather() {
        assert!(after(10, 10, RTT).window() > 4 * INITIAL);
    }

    #[test]
    fn heavy_loss_and_longer_round_trips_are_congestion() {
        assert!(after(10, 60, RTT).window() < INITIAL / 2);
        assert!(after(4, 0, RTT * 2).window() < INITIAL / 2);
    }

    #[test]
    fn a_longer_way_is_not_taken_for_a_queue_for_long() {
        let begin = Instant::now();
        let mut controller = Weatherproof::new(begin, 1200);
        controller.acked(begin, begin, 0, true, RTT / 10);
        let windows: Vec<u64> = (1..20)
            .map(|n| {
                controller.acked(begin + RTT * n, begin + RTT * (n - 1), 50_000, false, RTT);
                controller.window()
            })
            .collect();
        assert!(windows.contains(&(FLOOR_PACKETS * 1200)), "{windows:?}");
        assert!(windows.last() > Some(&(4 * INITIAL)), "{windows:?}");
    }

    #[test]
    fn a_connection_with_little_to_send_keeps_its_window() {
        let begin = Instant::now();
        let mut controller = Weatherproof::new(begin, 1200);
        for n in 1..100 {
            controller.acked(begin + RTT * n, begin + RTT * (n - 1), 100, true, RTT);
        }
        assert_eq!(controller.window(), INITIAL);
    }

    proptest! {
        #[test]
        fn the_window_stays_within_its_bounds(events in prop::collection::vec((0u8..4, 0u64..100_000, 1u64..5000), 0..500)) {
            let mut now = Instant::now();
            let mut controller = Weatherproof::new(now, 1200);
            for (kind, bytes, wait) in events {
                let sent = now;
                now += Duration::from_millis(wait);
                match kind {
                    0 => controller.on_congestion_event(now, sent, bytes % 7 == 0, bytes),
                    _ => controller.acked(now, sent, bytes, kind == 1, Duration::from_millis(wait)),
                }
                prop_assert!((FLOOR_PACKETS * 1200..=CEILING).contains(&controller.window()));
            }
        }
    }
}
