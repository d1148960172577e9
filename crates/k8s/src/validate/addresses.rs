//! IPAddresses and ServiceCIDRs.

use std::net::IpAddr;

use serde_json::Value;

use super::at::{At, Errors};
use super::parts::contains;
use crate::names;

/// Strict where a Service's addresses are not: one address has one name.
pub(super) fn ip_name(value: &str) -> names::Complaints {
    let Ok(ip) = value.parse::<IpAddr>() else {
        return vec![match has_leading_zeros(value) {
            true => "must not have leading 0s".to_owned(),
            false => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned(),
        }];
    };
    if is_mapped(ip) {
        return vec!["must not be an IPv4-mapped IPv6 address".to_owned()];
    }
    if ip.to_string() != value {
        return vec![format!("must be in canonical form (\"{ip}\")")];
    }
    Vec::new()
}

fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// `010.0.0.1`: four numbers that would be an address without their leading zeros.
fn has_leading_zeros(value: &str) -> bool {
    let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit()) && part.parse::<u8>().is_ok();
    value.split('.').count() == 4 && value.split('.').all(is_number)
}

pub(super) fn ip_address(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let parent = spec.get("parentRef");
    if !parent.is_set() {
        e.required(&parent, "");
        return;
    }
    let group = parent.get("group");
    if !group.is_empty() {
        e.complaints(&group, names::dns_subdomain(group.str()));
    }
    e.name(&parent.get("resource"), names::path_segment);
    e.name(&parent.get("name"), names::path_segment);
    let namespace = parent.get("namespace");
    if !namespace.is_empty() {
        e.complaints(&namespace, names::path_segment(namespace.str()));
    }
}

pub(super) fn ip_address_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    e.immutable(&object.get("spec").get("parentRef"), &old["spec"]["parentRef"]);
}

pub(super) fn service_cidr(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let cidrs = spec.get("cidrs");
    if cidrs.is_empty() {
        e.required(&cidrs, "at least one CIDR required");
        return;
    }
    if cidrs.len() > 2 {
        e.invalid_value(&cidrs, spec.value, "may only hold up to 2 values");
        return;
    }
    let families: Vec<_> =
        cidrs.items().filter_map(|cidr| strict_cidr(e, &cidr)).map(|ip| ip.is_ipv4()).collect();
    if families.len() == 2 && families[0] == families[1] {
        let detail =
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        e.invalid(&cidrs, detail);
    }
}

fn strict_cidr(e: &mut Errors, at: &At<'_, '_>) -> Option<IpAddr> {
    let (address, bits) = e.cidr(at)?;
    let canonical = format!("{address}/{bits}");
    if is_mapped(address) {
        e.invalid(at, "must not have an IPv4-mapped IPv6 address");
    } else if !is_network(address, bits) {
        e.invalid(at, "must not have bits set beyond the prefix length");
    } else if canonical != at.str() {
        e.invalid(at, format!("must be in canonical form ({canonical:?})"));
    }
    Some(address)
}

/// Whether no bit of the host part is set: the address before it, if any, lies in another network.
fn is_network(address: IpAddr, bits: u8) -> bool {
    let before = match address {
        IpAddr::V4(v4) => v4.to_bits().checked_sub(1).map(|b| IpAddr::from(b.to_be_bytes())),
        IpAddr::V6(v6) => v6.to_bits().checked_sub(1).map(|b| IpAddr::from(b.to_be_bytes())),
    };
    before.is_none_or(|before| !contains((address, bits), before))
}

pub(super) fn service_cidr_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let spec = object.get("spec");
    let cidrs = spec.get("cidrs");
    let before = old["spec"]["cidrs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if before.len() != cidrs.len() && (before.len(), cidrs.len()) != (1, 2) {
        e.invalid(&cidrs, "field is immutable");
        return;
    }
    for (cidr, old) in cidrs.items().zip(before) {
        e.immutable(&cidr, old);
    }
    if before.len() != cidrs.len() {
        service_cidr(e, object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_address_has_one_name() {
        for good in ["10.0.0.1", "2001:db8::1", "fe80::42:1dff:fe84:f9e2", "::"] {
            assert!(ip_name(good).is_empty(), "{good}");
        }
        for (bad, why) in [
            ("10.0.0", "must be a valid IP address"),
            ("2001:DB8::1", "must be in canonical form (\"2001:db8::1\")"),
            ("2001:db8:0:0::1", "must be in canonical form (\"2001:db8::1\")"),
            ("::ffff:1.2.3.4", "IPv4-mapped"),
            ("010.0.0.1", "must not have leading 0s"),
            ("10.0.0.300", "must be a valid IP address"),
        ] {
            assert!(ip_name(bad).iter().any(|c| c.contains(why)), "{bad}: {:?}", ip_name(bad));
        }
    }

    #[test]
    fn a_range_of_service_addresses_is_a_network() {
        let complaints = |cidrs: Value| {
            let object = json!({"spec": {"cidrs": cidrs}});
            let mut errors = Errors::default();
            service_cidr(&mut errors, &At::root(&object));
            errors.0.len()
        };
        assert_eq!(complaints(json!(["10.0.0.0/16", "2001:db8::/64"])), 0);
        assert_eq!(complaints(json!(["0.0.0.0/0"])), 0);
        for bad in
            [json!([]), json!(["10.0.0.1/16"]), json!(["10.0.0.0/16", "10.1.0.0/16"]), json!(["10.0.0.0"])]
        {
            assert_eq!(complaints(bad.clone()), 1, "{bad}");
        }
    }
}
