//! When a renewal that the hub acknowledged was sent, on the clock of the machine that sent it.
//!
//! The wall clock of an edge box is set at any time; the boot clock counts on, asleep or awake, from 0 at every boot.

use std::fmt;

/// The value of [`crate::names::RENEWAL_ANNOTATION`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalSent {
    /// `/etc/machine-id`, or `-` where there is none.
    pub machine: String,
    /// `/proc/sys/kernel/random/boot_id`: boot clocks of two boots cannot be compared.
    pub boot: String,
    /// Milliseconds on the boot clock.
    pub millis: i64,
}

impl fmt::Display for RenewalSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        write!(f, "{} {} {}", or_dash(&self.machine), or_dash(&self.boot), self.millis)
    }
}

impl RenewalSent {
    /// Reads what [`Display`](fmt::Display) wrote.
    pub fn parse(text: &str) -> Option<RenewalSent> {
        let [machine, boot, millis] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
        Some(RenewalSent { machine: machine.to_owned(), boot: boot.to_owned(), millis: millis.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_read_as_it_was_written() {
        let sent = RenewalSent { machine: "m".into(), boot: "b".into(), millis: 12_345 };
        assert_eq!(RenewalSent::parse(&sent.to_string()), Some(sent.clone()));
        let nameless = RenewalSent { machine: String::new(), ..sent };
        assert_eq!(RenewalSent::parse(&nameless.to_string()).map(|s| s.machine), Some("-".into()));
        for bad in ["", "a b", "a b c", "a b 1 2"] {
            assert!(RenewalSent::parse(bad).is_none(), "{bad} was taken");
        }
    }
}
