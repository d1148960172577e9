use super::*;
use proptest::prelude::*;

const BEAT: Duration = Duration::from_secs(10);

fn seconds(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

/// Runs a dialer against a peer on a link: `lost(n)` says whether the answer to the nth question never comes. Gives how many
/// questions were asked and when, counted from the start, it gave up.
fn play(rtt: Duration, mut lost: impl FnMut(u32) -> bool, until: Duration) -> (u32, Option<Duration>) {
    let start = Instant::now();
    let mut asking = Asking::new(BEAT, start);
    let mut now = start;
    // On an ordered stream an answer that is lost comes with the next one that is not.
    let mut lost_before: Vec<u32> = Vec::new();
    let mut coming: VecDeque<(Instant, u32)> = VecDeque::new();
    let mut count = 0;
    while now < start + until {
        while let Some((_, sequence)) = coming.pop_front_if(|(when, _)| *when <= now) {
            asking.answer(sequence, now).expect("in order");
        }
        match asking.step(now) {
            Step::Ask => {
                let sequence = asking.ask(now, None).sequence;
                count += 1;
                lost_before.push(sequence);
                if !lost(sequence) {
                    coming.extend(lost_before.drain(..).map(|sequence| (now + rtt, sequence)));
                }
            }
            Step::Wait(until) => now = coming.front().map_or(until, |(when, _)| until.min(*when)).max(now),
            Step::GiveUp(_) => return (count, Some(now - start)),
        }
    }
    (count, None)
}

#[test]
fn a_peer_that_answers_is_asked_once_per_beat() {
    let (asked, end) = play(seconds(0.02), |_| false, seconds(300.0));
    assert_eq!(end, None);
    assert!((30..=31).contains(&asked), "{asked}");
}

#[test]
fn a_silent_peer_is_given_up_in_proportion_to_the_round_trip() {
    for (rtt, expected) in [(0.001, 10.0), (0.2, 10.0), (0.8, 12.8), (1.5, 24.0), (2.0, 30.0)] {
        // Both answers at the start come, the third does not.
        let (_, end) = play(seconds(rtt), |n| n >= 2, seconds(300.0));
        let asked = 2.0 * rtt + 10.0;
        let silent = end.expect("given up").as_secs_f64() - asked;
        assert!((silent - expected).abs() < 0.01, "at {rtt}: {silent} seconds");
    }
}

#[test]
fn a_peer_that_never_answered_is_given_three_beats() {
    assert_eq!(play(seconds(1.0), |_| true, seconds(300.0)).1, Some(3 * BEAT));
}

#[test]
fn a_doubted_peer_is_asked_at_once_and_given_up_after_a_second() {
    let start = Instant::now();
    let mut asking = Asking::new(BEAT, start);
    for sequence in 0..2 {
        asking.ask(start, None);
        asking.answer(sequence, start + seconds(0.01)).expect("answered");
    }
    let doubted = start + seconds(3.0);
    assert!(matches!(asking.step(doubted), Step::Wait(_)));
    asking.doubt(doubted);
    assert_eq!(asking.step(doubted), Step::Ask);
    asking.ask(doubted, None);
    // It is told so again and again, by each packet that is sent anew.
    asking.doubt(doubted + seconds(0.5));
    assert!(matches!(asking.step(doubted + seconds(0.99)), Step::Wait(_)));
    assert!(matches!(asking.step(doubted + seconds(1.0)), Step::GiveUp(_)));
}

#[test]
fn a_doubted_peer_that_answers_what_it_was_asked_since_is_believed() {
    let start = Instant::now();
    let mut asking = Asking::new(BEAT, start);
    let doubted = start + seconds(0.1);
    asking.ask(start, None);
    asking.doubt(doubted);
    asking.ask(doubted + seconds(0.1), None);
    asking.answer(0, start + seconds(0.3)).expect("answered");
    assert!(asking.doubted(), "that answer may be older than the doubt");
    asking.answer(1, start + seconds(0.3)).expect("answered");
    assert!(!asking.doubted());
}

proptest! {
    /// 400 ms one way and one packet in ten lost each way.
    #[test]
    fn a_peer_on_a_bad_link_is_given_up_only_when_seven_answers_in_a_row_are_lost(
        lost in prop::collection::vec(prop::bool::weighted(0.19), 200),
    ) {
        let longest = lost.split(|lost| !lost).map(<[bool]>::len).max().unwrap_or(0);
        let (_, end) = play(seconds(0.8), |n| lost.get(n as usize).is_some_and(|lost| *lost), seconds(600.0));
        prop_assert!(end.is_none() || longest >= 7, "{longest} in a row, given up after {end:?}");
    }
}
