//! Until when a pod may run that may run at most once: pure functions of its annotation and of the hub's lease.
//!
//! The hub moves such a pod only when its lease has certainly run out, so here it must have stopped by then: the pod's
//! shim stops it without asking anybody. A lease counts from when its renewal was *sent*: the hub cannot have heard of
//! it earlier than that.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use tombolo_api::{RenewalSent, names};

/// A killed process needs a moment to be gone.
const DYING: i64 = 1000;
/// How far the clocks of two machines of a site may be apart (milliseconds). Renewals that were sent on this very
/// machine need no such trust.
const APART: i64 = 2000;

/// What a pod's annotations say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Longest run without a renewal, in milliseconds.
    pub lease: i64,
    /// Of that, what the program may take to end.
    pub stop: i64,
    /// Label of the hub whose lease counts; none: whichever lease is the oldest.
    pub hub: Option<String>,
    /// Work that the pod was born of; none (it was taken over): a lease for any Work counts.
    pub work: Option<String>,
}

/// None for a pod that may run as long as it likes. An annotation nobody can read means no time at all.
pub(crate) fn terms(pod: &Pod) -> Option<Terms> {
    let annotations = pod.metadata.annotations.as_ref()?;
    let lease: i64 = annotations.get(names::AT_MOST_ONCE_ANNOTATION)?.parse().unwrap_or(0);
    let stop = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
    let hub = annotations.get(names::HUB_LABEL).cloned();
    let work = pod.metadata.labels.as_ref().and_then(|labels| labels.get(names::WORK_LABEL)).cloned();
    Some(Terms { lease: lease.max(0) * 1000, stop: stop.max(0) * 1000, hub, work })
}

/// On the boot clock, in milliseconds: ask to end, then end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    pub stop: i64,
    pub kill: i64,
}

impl Terms {
    pub fn deadline(&self, sent: i64) -> Deadline {
        let kill = sent + self.lease - DYING;
        Deadline { stop: kill - self.stop, kill }
    }
}

/// The clocks of this machine, read together.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    pub machine: String,
    pub boot: String,
    /// Milliseconds since the boot.
    pub millis: i64,
    pub wall: Timestamp,
}

/// When the renewal a lease tells of was sent, on this machine's boot clock. None if that was before this boot, or if
/// it cannot be known.
pub(crate) fn sent(lease: &Lease, now: &Clocks) -> Option<i64> {
    let annotation = lease.metadata.annotations.as_ref()?.get(names::RENEWAL_ANNOTATION)?;
    let told = RenewalSent::parse(annotation)?;
    if told.boot == now.boot {
        return Some(told.millis).filter(|millis| *millis <= now.millis);
    }
    let own = if now.machine.is_empty() { "-" } else { &now.machine };
    if told.machine == own {
        // Sent before this machine was started again: whatever has happened since is not known.
        return None;
    }
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?.0;
    let age = now.wall.as_millisecond() - renewed.as_millisecond();
    // A clock that is wrong must not make a lease fresh.
    Some(now.millis - age.max(0) - APART).filter(|sent| age >= -APART && *sent >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn clocks(millis: i64) -> Clocks {
        let wall = Timestamp::from_millisecond(1_000_000_000 + millis).expect("a time");
        Clocks { machine: "here".into(), boot: "second".into(), millis, wall }
    }

    /// A lease whose renewal was sent `millis` after the boot, if the wall clock is right.
    fn lease(machine: &str, boot: &str, millis: i64) -> Lease {
        let sent = RenewalSent { machine: machine.into(), boot: boot.into(), millis };
        let wall = Timestamp::from_millisecond(1_000_000_000 + millis).expect("a time");
        serde_json::from_value(json!({
            "metadata": {"annotations": {names::RENEWAL_ANNOTATION: sent.to_string()}},
            "spec": {"renewTime": wall.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()}
        }))
        .expect("lease")
    }

    #[test]
    fn on_the_same_machine_only_the_boot_clock_counts() {
        let mut now = clocks(50_000);
        now.wall = Timestamp::UNIX_EPOCH;
        assert_eq!(sent(&lease("here", "second", 40_000), &now), Some(40_000));
        assert_eq!(sent(&lease("here", "second", 60_000), &now), None, "nothing is sent in the future");
    }

    #[test]
    fn a_lease_of_before_the_reboot_is_worth_nothing() {
        assert_eq!(sent(&lease("here", "first", 49_000), &clocks(50_000)), None);
        // Nor does a machine that was not restarted lend its lease to a time before our own boot.
        assert_eq!(sent(&lease("there", "other", -10_000), &clocks(5_000)), None);
    }

    #[test]
    fn a_lease_of_another_machine_is_a_little_older_than_it_says() {
        assert_eq!(sent(&lease("there", "other", 40_000), &clocks(50_000)), Some(38_000));
    }

    #[test]
    fn a_wrong_clock_does_not_make_a_lease_fresh() {
        let mut behind = clocks(50_000);
        behind.wall = Timestamp::from_millisecond(1_000_000_000).expect("a time");
        assert_eq!(sent(&lease("there", "other", 40_000), &behind), None);
        let mut ahead = clocks(50_000);
        ahead.wall = Timestamp::from_millisecond(2_000_000_000).expect("a time");
        assert_eq!(sent(&lease("there", "other", 40_000), &ahead), None);
    }

    #[test]
    fn the_pod_is_gone_when_the_lease_ends() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"annotations": {names::AT_MOST_ONCE_ANNOTATION: "40"}},
            "spec": {"containers": [], "terminationGracePeriodSeconds": 5}
        }))
        .expect("pod");
        let terms = terms(&pod).expect("terms");
        assert_eq!(terms.deadline(100_000), Deadline { stop: 134_000, kill: 139_000 });
    }

    #[test]
    fn an_annotation_that_cannot_be_read_gives_no_time() {
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"annotations": {names::AT_MOST_ONCE_ANNOTATION: "soon"}}}),
        )
        .expect("pod");
        assert_eq!(terms(&pod).map(|t| t.lease), Some(0));
    }
}
