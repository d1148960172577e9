//! Kubernetes quantities (`250m`, `1.5Gi`) as numbers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::runtime::Resources;

/// Thousandths of the unit, rounded up. `None` if it is not a quantity.
pub fn milli(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    // `1e3` is an exponent, `1E` a suffix.
    if let Some(exponent) = suffix.strip_prefix(['e', 'E']).filter(|rest| !rest.is_empty()) {
        let exponent: i32 = exponent.parse().ok()?;
        let value = number.parse::<f64>().ok()? * 10f64.powi(exponent);
        return Some((value * 1000.0).ceil() as i128);
    }
    let (multiplier, divisor): (i128, i128) = match suffix {
        "n" => (1, 1_000_000),
        "u" => (1, 1000),
        "m" => (1, 1),
        "" => (1000, 1),
        "k" => (1_000_000, 1),
        "M" => (1_000_000_000, 1),
        "G" => (1_000_000_000_000, 1),
        "T" => (1_000_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000_000, 1),
        "Ki" => (1000 << 10, 1),
        "Mi" => (1000 << 20, 1),
        "Gi" => (1000 << 30, 1),
        "Ti" => (1000 << 40, 1),
        "Pi" => (1000 << 50, 1),
        "Ei" => (1000 << 60, 1),
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = 10i128.checked_pow(fraction.len() as u32)? * divisor;
    let value = digits.checked_mul(multiplier)?;
    Some(value / scale + i128::from(value % scale > 0))
}

/// Whole units, rounded up.
pub fn whole(quantity: &Quantity) -> Option<i64> {
    milli(quantity).map(|m| (m / 1000 + i128::from(m % 1000 > 0)) as i64)
}

type Amounts = Option<BTreeMap<String, Quantity>>;

fn get<'a>(amounts: &'a Amounts, name: &str) -> Option<&'a Quantity> {
    amounts.as_ref()?.get(name)
}

fn cpu_shares(millicpu: i128) -> u64 {
    (millicpu * 1024 / 1000).clamp(2, 262_144) as u64
}

fn quota(millicpu: i128) -> i64 {
    (millicpu * 100).max(1000) as i64
}

/// Limits of one container.
pub fn container(resources: Option<&ResourceRequirements>) -> Resources {
    let none = ResourceRequirements::default();
    let resources = resources.unwrap_or(&none);
    let cpu_limit = get(&resources.limits, "cpu").and_then(milli);
    let cpu_request = get(&resources.requests, "cpu").and_then(milli).or(cpu_limit);
    Resources {
        cpu_shares: Some(cpu_shares(cpu_request.unwrap_or(0))),
        cpu_quota: cpu_limit.map(quota),
        memory_limit: get(&resources.limits, "memory").and_then(whole),
        pids_limit: None,
        oom_score_adj: None,
    }
}

/// Limits of the whole pod: the sum, where every container has one.
pub fn pod(pod: &Pod) -> Resources {
    let containers = pod.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default();
    let sum = |name: &str, limits: bool| -> Option<i128> {
        let one = |c: &Container| {
            let resources = c.resources.as_ref()?;
            get(if limits { &resources.limits } else { &resources.requests }, name).and_then(milli)
        };
        containers.iter().map(one).sum()
    };
    let requests: i128 =
        containers.iter().filter_map(|c| get(&c.resources.as_ref()?.requests, "cpu").and_then(milli)).sum();
    Resources {
        cpu_shares: Some(cpu_shares(requests)),
        cpu_quota: sum("cpu", true).map(quota),
        memory_limit: sum("memory", true).map(|m| (m / 1000) as i64),
        ..Resources::default()
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn qos_class(pod: &Pod) -> &'static str {
    let Some(spec) = &pod.spec else { return "BestEffort" };
    let all: Vec<&Container> = spec.containers.iter().chain(spec.init_containers.iter().flatten()).collect();
    let amount = |amounts: &Amounts, name: &str| get(amounts, name).and_then(milli).filter(|m| *m > 0);
    let mut any = false;
    let mut guaranteed = true;
    for container in all {
        let none = ResourceRequirements::default();
        let resources = container.resources.as_ref().unwrap_or(&none);
        for name in ["cpu", "memory"] {
            let (request, limit) = (amount(&resources.requests, name), amount(&resources.limits, name));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|r| Some(r) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read_as_kubernetes_reads_them() {
        let check = |text: &str, expected| assert_eq!(milli(&Quantity(text.into())), expected, "{text}");
        check("250m", Some(250));
        check("1", Some(1000));
        check("1.5", Some(1500));
        check("1Ki", Some(1_024_000));
        check("1.5Gi", Some(1_610_612_736_000));
        check("2k", Some(2_000_000));
        check("1e3", Some(1_000_000));
        check("100n", Some(1));
        check("x", None);
        assert_eq!(whole(&Quantity("1500m".into())), Some(2));
    }
}
