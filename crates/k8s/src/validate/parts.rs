//! Small checks that several kinds share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use super::addresses;
use super::at::{At, Errors};
use crate::names;
use crate::quantity::Quantity;
use crate::selector::LabelSelector;

pub(super) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

impl Errors {
    /// At most all, and not more than 100 %.
    pub(super) fn int_or_percent(&mut self, at: &At<'_, '_>) {
        match at.value {
            Value::String(text) => self.complaints(at, names::percent(text)),
            _ => self.non_negative(at),
        }
    }

    pub(super) fn at_most_100_percent(&mut self, at: &At<'_, '_>) {
        if percent(at.value).is_some_and(|p| p > 100) {
            self.invalid(at, "must not be greater than 100%");
        }
    }

    pub(super) fn positive(&mut self, at: &At<'_, '_>) {
        if at.int().is_none_or(|n| n <= 0) {
            self.invalid_value(at, &Value::from(at.int().unwrap_or_default()), "must be greater than zero");
        }
    }

    pub(super) fn port_or_name(&mut self, at: &At<'_, '_>) {
        match at.value {
            Value::String(name) => self.complaints(at, names::port_name(name)),
            _ => self.port(at),
        }
    }

    pub(super) fn port(&mut self, at: &At<'_, '_>) {
        let number = at.int().unwrap_or_default();
        for complaint in names::port_number(number) {
            self.invalid_value(at, &Value::from(number), complaint);
        }
    }

    pub(super) fn ip(&mut self, at: &At<'_, '_>) -> bool {
        let complaint = addresses::ip_complaint(at.str());
        complaint.into_iter().for_each(|complaint| self.invalid(at, complaint));
        complaint.is_none()
    }

    pub(super) fn cidr(&mut self, at: &At<'_, '_>) -> Option<(IpAddr, u8)> {
        let parsed = parse_cidr(at.str());
        let complaint = addresses::cidr_complaint(at.str(), parsed);
        complaint.into_iter().for_each(|complaint| self.invalid(at, complaint));
        parsed
    }

    /// An address that traffic may be sent to.
    pub(super) fn endpoint_ip(&mut self, at: &At<'_, '_>) {
        let Ok(ip) = at.str().parse::<IpAddr>() else {
            self.invalid(at, "must be a valid IP address");
            return;
        };
        let (link_local, link_multicast) = match ip {
            IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
            IpAddr::V6(v6) => (v6.segments()[0] & 0xffc0 == 0xfe80, v6.segments()[0] == 0xff02),
        };
        if ip.is_unspecified() {
            self.invalid(at, format!("may not be unspecified ({})", at.str()));
        }
        if ip.is_loopback() {
            self.invalid(at, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
        }
        if link_local {
            self.invalid(at, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
        }
        if link_multicast {
            self.invalid(at, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
        }
    }

    /// A path inside a volume.
    pub(super) fn descending_path(&mut self, at: &At<'_, '_>) {
        if at.str().starts_with('/') {
            self.invalid(at, "must be a relative path");
        }
        self.no_backsteps(at);
    }

    pub(super) fn no_backsteps(&mut self, at: &At<'_, '_>) {
        if at.str().split('/').any(|part| part == "..") {
            self.invalid(at, "must not contain '..'");
        }
    }

    /// Like a descending path, and no name the atomic writer uses itself.
    pub(super) fn volume_path(&mut self, at: &At<'_, '_>) {
        self.descending_path(at);
        if at.str().starts_with("..") && !at.str().starts_with("../") {
            self.invalid(at, "must not start with '..'");
        }
    }

    pub(super) fn file_mode(&mut self, at: &At<'_, '_>) {
        if at.int().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
            self.invalid(at, "must be a number between 0 and 0777 (octal), both inclusive");
        }
    }

    /// At least `low`, when set.
    pub(super) fn at_least(&mut self, at: &At<'_, '_>, low: i64, detail: &str) {
        if at.int().is_some_and(|n| n < low) {
            self.invalid(at, detail);
        }
    }

    pub(super) fn user_id(&mut self, at: &At<'_, '_>) {
        if at.int().is_some_and(|id| !(0..=i32::MAX as i64).contains(&id)) {
            self.invalid(at, names::between(0, i32::MAX as i64));
        }
    }

    pub(super) fn quantity_not_negative(&mut self, at: &At<'_, '_>) {
        if let Some(quantity) = quantity(at).filter(Quantity::is_negative) {
            self.invalid_value(at, &Value::from(quantity.to_string()), "must be greater than or equal to 0");
        }
    }

    /// A workload's selector: present, not empty, well formed, and matching its own template.
    pub(super) fn workload_selector(&mut self, spec: &At<'_, '_>, kind: &str) {
        let selector = spec.get("selector");
        if !selector.is_set() {
            self.required(&selector, "");
        } else {
            super::meta::label_selector(self, &selector);
            if selector.get("matchLabels").is_empty() && selector.get("matchExpressions").is_empty() {
                self.invalid(&selector, format!("empty selector is invalid for {kind}"));
            }
        }
        self.selector_matches(spec, &selector);
    }

    pub(super) fn selector_matches(&mut self, spec: &At<'_, '_>, selector: &At<'_, '_>) {
        let template = spec.get("template");
        let metadata = template.get("metadata");
        let labels = metadata.get("labels");
        match LabelSelector::from_object(Some(selector.value)) {
            Ok(parsed) if parsed.is_everything() => {}
            Ok(parsed) => {
                if !parsed.matches(labels.value.as_object()) {
                    self.invalid_value(&labels, labels.value, "`selector` does not match template `labels`");
                }
            }
            Err(_) => self.invalid(selector, "invalid label selector"),
        }
    }
}

pub(super) fn quantity(at: &At<'_, '_>) -> Option<Quantity> {
    if at.is_set() { Quantity::from_value(at.value).ok() } else { None }
}

pub(super) fn percent(value: &Value) -> Option<i64> {
    value.as_str()?.strip_suffix('%')?.parse().ok()
}

/// An integer, or the number of a percentage.
pub(super) fn int_or_percent(value: &Value) -> i64 {
    percent(value).or(value.as_i64()).unwrap_or_default()
}

pub(super) fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let bits: u8 = bits.parse().ok().filter(|_| !bits.starts_with('+'))?;
    if let Ok(v4) = address.parse::<Ipv4Addr>() {
        return (bits <= 32).then_some((IpAddr::V4(v4), bits));
    }
    let v6 = address.parse::<Ipv6Addr>().ok()?;
    (bits <= 128).then_some((IpAddr::V6(v6), bits))
}

/// Whether a network contains an address.
pub(super) fn contains((network, bits): (IpAddr, u8), address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(n), IpAddr::V4(a)) => {
            let shift = 32 - bits as u32;
            shift >= 32 || n.to_bits() >> shift == a.to_bits() >> shift
        }
        (IpAddr::V6(n), IpAddr::V6(a)) => {
            let shift = 128 - bits as u32;
            shift >= 128 || n.to_bits() >> shift == a.to_bits() >> shift
        }
        _ => false,
    }
}
