//! IPAddresses and ServiceCIDRs.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use serde_json::Value;

use super::at::{At, Errors};
use super::parts::contains;
use crate::names;

/// Strict where a Service's addresses are not: one address has one name.
pub(super) fn ip_name(value: &str) -> names::Complaints {
    if let Some(complaint) = ip_complaint(value) {
        return vec![complaint.to_owned()];
    }
    match value.parse::<IpAddr>() {
        Ok(ip) if ip.to_string() != value => vec![format!("must be in canonical form (\"{ip}\")")],
        _ => Vec::new(),
    }
}

const BAD_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const ZEROS_IN_IP: &str = "must not have leading 0s";
const MAPPED_IP: &str = "must not be an IPv4-mapped IPv6 address";
const BAD_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const ZEROS_IN_CIDR: &str = "must not have leading 0s in IP or prefix length";
const MAPPED_CIDR: &str = "must not have an IPv4-mapped IPv6 address";
const HOST_BITS: &str = "must not have bits set beyond the prefix length";

/// What is wrong with an address, if anything. Programs read some forms differently: those are refused.
pub(super) fn ip_complaint(value: &str) -> Option<&'static str> {
    match value.parse::<IpAddr>() {
        Ok(ip) if is_mapped(ip) => Some(MAPPED_IP),
        Ok(_) => None,
        Err(_) if has_leading_zeros(value) => Some(ZEROS_IN_IP),
        Err(_) => Some(BAD_IP),
    }
}

/// What is wrong with a range of addresses, if anything.
pub(super) fn cidr_complaint(value: &str, parsed: Option<(IpAddr, u8)>) -> Option<&'static str> {
    let (address, bits) = value.split_once('/').unwrap_or((value, ""));
    let padded = |bits: &str| bits.len() > 1 && bits.starts_with('0');
    match parsed {
        Some(_) if padded(bits) => Some(ZEROS_IN_CIDR),
        Some((ip, _)) if is_mapped(ip) => Some(MAPPED_CIDR),
        Some((ip, bits)) if !is_network(ip, bits) => Some(HOST_BITS),
        Some(_) => None,
        None if has_leading_zeros(address) && bits.parse::<u8>().is_ok_and(|bits| bits <= 32) => {
            Some(ZEROS_IN_CIDR)
        }
        None => Some(BAD_CIDR),
    }
}

/// An address in digits, also in a form that is refused.
pub(super) fn looks_like_ip(value: &str) -> bool {
    value.parse::<IpAddr>().is_ok() || has_leading_zeros(value)
}

/// Drops complaints about addresses that the stored object has at the same field: it must stay writable.
pub(super) fn spare_stored(e: &mut Errors, old: &Value) {
    let all = [BAD_IP, ZEROS_IN_IP, MAPPED_IP, BAD_CIDR, ZEROS_IN_CIDR, MAPPED_CIDR, HOST_BITS];
    let mut stored: HashMap<String, HashSet<String>> = HashMap::new();
    e.0.retain(|error| {
        if !all.contains(&error.detail.as_str()) {
            return true;
        }
        let names: Vec<&str> =
            error.path.split('.').map(|step| step.split('[').next().unwrap_or_default()).collect();
        let known = stored.entry(names.join(".")).or_insert_with(|| {
            let mut found = HashSet::new();
            collect(old, &names, &mut found);
            found
        });
        !known.contains(&error.value)
    });
}

/// The values, as errors show them, of a field of all items of the lists on the way to it.
fn collect(value: &Value, names: &[&str], found: &mut HashSet<String>) {
    match (value, names) {
        (Value::Array(items), _) => items.iter().for_each(|item| collect(item, names, found)),
        (Value::Object(map), [name, rest @ ..]) => {
            // Upstream spells one field with a capital.
            let name = if *name == "LoadBalancerSourceRanges" { "loadBalancerSourceRanges" } else { name };
            map.get(name).into_iter().for_each(|member| collect(member, rest, found));
        }
        // The status of a pod has its addresses in objects, and they are shown without them.
        (Value::Object(map), []) => map.get("ip").into_iter().for_each(|ip| collect(ip, &[], found)),
        (Value::String(text), []) => {
            found.insert(Value::from(text.trim()).to_string());
        }
        _ => {}
    }
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
    let before = e.0.len();
    let (address, bits) = e.cidr(at)?;
    let canonical = format!("{address}/{bits}");
    if e.0.len() == before && canonical != at.str() {
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
