//! ResourceSlices: the devices that a driver offers.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors};
use super::csi::driver_name;
use super::devices::{EFFECTS, bounded, label, named_set, qualified_name};
use super::parts::quantity;
use super::scheduling::node_selector;
use crate::names;
use crate::quantity::Quantity;

const MOST_DEVICES: usize = 128;
/// With taints or counters, which make devices larger.
const MOST_ELABORATE_DEVICES: usize = 64;
const MOST_ATTRIBUTES: usize = 32;
const MOST_COUNTER_SETS: usize = 8;
const MOST_COUNTERS: usize = 32;
const MOST_CONSUMED_SETS: usize = 2;
const MOST_TAINTS: usize = 16;
const MOST_CONDITIONS: usize = 4;
const MOST_VALUES: usize = 10;
const LONGEST_VALUE: usize = 64;

pub(super) fn slice(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    driver_name(e, &spec.get("driver"));
    pool(e, &spec.get("pool"));
    let places = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
    let needed =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    place(e, &spec, &places, needed, ", but multiple fields are set");
    let (devices, counters) = (spec.get("devices"), spec.get("sharedCounters"));
    if devices.is_set() && counters.is_set() {
        let detail = "only one of `sharedCounters` or `devices` is allowed";
        e.invalid_value(&spec, &Value::from(""), detail);
    }
    let elaborate = devices
        .items()
        .any(|device| !device.get("taints").is_empty() || !device.get("consumesCounters").is_empty());
    let most = if elaborate { MOST_ELABORATE_DEVICES } else { MOST_DEVICES };
    let each_has_nodes = spec.get("perDeviceNodeSelection").bool();
    named_set(e, &devices, "name", most, |e, each| device(e, each, each_has_nodes));
    named_set(e, &counters, "name", MOST_COUNTER_SETS, |e, set| {
        e.name(&set.get("name"), names::dns_label);
        counters_of(e, set);
    });
}

pub(super) fn slice_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let spec = object.get("spec");
    e.immutable(&spec.get("pool").get("name"), &old["spec"]["pool"]["name"]);
    e.immutable(&spec.get("driver"), &old["spec"]["driver"]);
    e.immutable(&spec.get("nodeName"), &old["spec"]["nodeName"]);
}

fn pool(e: &mut Errors, pool: &At<'_, '_>) {
    let name = pool.get("name");
    if name.is_empty() {
        e.required(&name, "");
    } else {
        if name.str().len() > names::SUBDOMAIN_MAX {
            e.too_long(&name, names::SUBDOMAIN_MAX);
        }
        for part in name.str().split('/') {
            for complaint in names::dns_subdomain(part) {
                e.invalid_value(&name, &Value::from(part), complaint);
            }
        }
    }
    e.positive(&pool.get("resourceSliceCount"));
    e.at_least(&pool.get("generation"), 0, "must be greater than or equal to zero");
}

/// Where devices can be reached from is said in one of several ways.
fn place(e: &mut Errors, at: &At<'_, '_>, ways: &[&str], needed: &str, twice: &str) {
    let mut said = Vec::new();
    for way in ways {
        let value = at.get(way);
        match value.value {
            Value::Null => {}
            Value::Bool(false) => e.invalid(&value, "must be either unset or set to true"),
            Value::String(name) if name.is_empty() => {
                e.invalid(&value, "must be either unset or set to a non-empty string");
            }
            Value::String(name) => {
                said.push(format!("`{way}`"));
                e.complaints(&value, names::dns_subdomain(name));
            }
            Value::Object(_) => {
                said.push(format!("`{way}`"));
                node_selector(e, &value);
                let terms = value.get("nodeSelectorTerms");
                // One term is simple to merge with that of another slice.
                if ways.len() == 4 && terms.len() != 1 {
                    e.invalid(&terms, "must have exactly one node selector term");
                }
            }
            _ => said.push(format!("`{way}`")),
        }
    }
    match said.len() {
        0 => e.required(at, needed),
        1 => {}
        _ => {
            e.invalid_value(at, &Value::from(format!("{{{}}}", said.join(", "))), format!("{needed}{twice}"))
        }
    }
}

fn device(e: &mut Errors, device: &At<'_, '_>, has_nodes: bool) {
    label(e, &device.get("name"));
    let (attributes, capacity) = (device.get("attributes"), device.get("capacity"));
    let count = attributes.len() + capacity.len();
    if count > MOST_ATTRIBUTES {
        let detail =
            format!("the total number of attributes and capacities must not exceed {MOST_ATTRIBUTES}");
        e.invalid_value(device, &count.into(), detail);
    }
    for (name, value) in attributes.entries() {
        qualified_name(e, &attributes, name);
        attribute(e, &value);
    }
    let shared = device.get("allowMultipleAllocations").bool();
    for (name, value) in capacity.entries() {
        qualified_name(e, &capacity, name);
        let policy = value.get("requestPolicy");
        if policy.is_set() && shared {
            request_policy(e, &value, &policy);
        } else if policy.is_set() {
            e.forbidden(&policy, "allowMultipleAllocations must be true");
        }
    }
    bounded(e, &device.get("taints"), MOST_TAINTS, |e, taint| {
        let (key, value) = (taint.get("key"), taint.get("value"));
        e.complaints(&key, names::label_key(key.str()));
        e.complaints(&value, names::label_value(value.str()));
        e.one_of(&taint.get("effect"), &EFFECTS);
    });
    named_set(e, &device.get("consumesCounters"), "counterSet", MOST_CONSUMED_SETS, |e, consumed| {
        e.name(&consumed.get("counterSet"), names::dns_label);
        counters_of(e, consumed);
    });
    let ways = ["nodeName", "nodeSelector", "allNodes"];
    if has_nodes {
        let needed = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                      `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        place(e, device, &ways, needed, "");
    } else if ways.iter().any(|way| device.get(way).is_set()) {
        let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set \
                      to true in the ResourceSlice spec";
        e.invalid_value(device, &Value::Null, detail);
    }
    binding_conditions(e, device);
}

fn counters_of(e: &mut Errors, set: &At<'_, '_>) {
    let counters = set.get("counters");
    if counters.is_empty() {
        e.required(&counters, "");
    } else if counters.len() > MOST_COUNTERS {
        e.too_many(&counters, counters.len(), MOST_COUNTERS);
    } else {
        for (name, _) in counters.entries() {
            for complaint in names::dns_label(name) {
                e.invalid_value(&counters, &Value::from(name), complaint);
            }
        }
    }
}

fn attribute(e: &mut Errors, attribute: &At<'_, '_>) {
    let kinds = ["bool", "int", "string", "version"];
    match kinds.iter().filter(|kind| attribute.get(kind).is_set()).count() {
        0 => e.invalid_value(attribute, &Value::from(""), "exactly one value must be specified"),
        1 => {}
        _ => e.invalid(attribute, "exactly one value must be specified"),
    }
    let version = attribute.get("version");
    if version.is_set() && !is_semantic(version.str()) {
        e.invalid(&version, "must be a string compatible with semver.org spec 2.0.0");
    }
    for text in [&attribute.get("string"), &version] {
        if text.str().len() > LONGEST_VALUE {
            e.too_long(text, LONGEST_VALUE);
        }
    }
}

/// `1.2.3`, with `-alpha.1` and `+build` after it, as semver.org has it.
fn is_semantic(version: &str) -> bool {
    let (rest, build) = match version.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (version, None),
    };
    let (core, before) = match rest.split_once('-') {
        Some((core, before)) => (core, Some(before)),
        None => (rest, None),
    };
    let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b == b'-' || b.is_ascii_alphanumeric());
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let number = |part: &str| !part.is_empty() && digits(part) && (part == "0" || !part.starts_with('0'));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && before.is_none_or(|b| b.split('.').all(|part| word(part) && (!digits(part) || number(part))))
        && build.is_none_or(|b| b.split('.').all(word))
}

/// How much of a capacity a request may ask for.
fn request_policy(e: &mut Errors, capacity: &At<'_, '_>, policy: &At<'_, '_>) {
    let (values, range, default) =
        (policy.get("validValues"), policy.get("validRange"), policy.get("default"));
    let whole = quantity(&capacity.get("value")).unwrap_or_default();
    let kind = match (values.is_empty(), range.is_set()) {
        (false, true) => {
            let detail = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at \
                          the same time";
            return e.forbidden(policy, detail);
        }
        (true, false) => return,
        (false, false) => "validValues",
        (true, true) => "validRange",
    };
    match quantity(&default) {
        None => e.required(&default, format!("required when {kind} is defined")),
        Some(default) if kind == "validValues" => valid_values(e, &values, default, whole),
        Some(default) => valid_range(e, &range, default, whole),
    }
}

fn wrong(e: &mut Errors, at: &At<'_, '_>, value: Quantity, detail: String) {
    e.invalid_value(at, &Value::from(value.to_string()), detail);
}

fn valid_values(e: &mut Errors, values: &At<'_, '_>, default: Quantity, whole: Quantity) {
    let amounts: Vec<Quantity> = values.items().filter_map(|value| quantity(&value)).collect();
    for (i, pair) in amounts.windows(2).enumerate().filter(|(_, pair)| pair[0] > pair[1]) {
        wrong(e, &values.index(i + 1), pair[1], "values must be sorted in ascending order".to_owned());
    }
    if values.len() > MOST_VALUES {
        e.too_many(values, values.len(), MOST_VALUES);
    } else {
        for (i, amount) in amounts.iter().enumerate() {
            if *amount > whole {
                wrong(e, &values.index(i), *amount, format!("option is larger than capacity value: {whole}"));
            }
            if amounts[..i].iter().any(|before| before.units() == amount.units()) {
                e.duplicate(&values.index(i));
            }
        }
    }
    if !amounts.contains(&default) || values.len() > MOST_VALUES {
        wrong(e, values, default, "default value is not valid according to the requestPolicy".to_owned());
    }
}

fn valid_range(e: &mut Errors, range: &At<'_, '_>, default: Quantity, whole: Quantity) {
    let (low_at, high_at, step_at) = (range.get("min"), range.get("max"), range.get("step"));
    let Some(low) = quantity(&low_at) else {
        return e.required(&low_at, "required when validRange is defined");
    };
    if low > whole {
        wrong(e, &low_at, low, format!("min is larger than capacity value: {whole}"));
    }
    if default < low {
        wrong(e, &low_at, default, format!("default is less than min: {low}"));
    }
    let high = quantity(&high_at);
    if let Some(high) = high {
        if low > high {
            wrong(e, &high_at, low, format!("min is larger than max: {high}"));
        }
        if high > whole {
            wrong(e, &high_at, high, format!("max is larger than capacity value: {whole}"));
        }
        if default > high {
            wrong(e, &high_at, default, format!("default is more than max: {high}"));
        }
    }
    let Some(step) = quantity(&step_at) else { return };
    let next = low.plus(step);
    if next > whole {
        wrong(e, &step_at, step, format!("one step {next} is larger than capacity value: {whole}"));
    }
    for value in [Some(default), high].into_iter().flatten() {
        let beyond = value.units() - low.units();
        if step.units() != 0 && beyond % step.units() != 0 {
            let detail = format!("value is not a multiple of a given step ({step}) from ({low})");
            wrong(e, &step_at, value, detail);
        }
    }
}

fn binding_conditions(e: &mut Errors, device: &At<'_, '_>) {
    let (good, bad) = (device.get("bindingConditions"), device.get("bindingFailureConditions"));
    for list in [&good, &bad] {
        let mut seen = HashSet::new();
        bounded(e, list, MOST_CONDITIONS, |e, name| e.complaints(name, names::label_key(name.str())));
        for name in list.items() {
            if !seen.insert(name.str()) {
                e.duplicate(&name);
            }
        }
    }
    let known: HashSet<&str> =
        good.value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for name in bad.items().filter(|name| known.contains(name.str())) {
        e.invalid(&name, "bindingFailureConditions must not overlap with bindingConditions");
    }
    if good.is_empty() && !bad.is_empty() {
        e.invalid(&good, "bindingConditions are required to use bindingFailureConditions");
    }
    if bad.is_empty() && !good.is_empty() {
        e.invalid(&bad, "bindingFailureConditions are required to use bindingConditions");
    }
}

#[cfg(test)]
mod tests {
    use super::is_semantic;

    #[test]
    fn versions_are_those_of_semver() {
        for good in ["1.2.3", "0.0.0", "1.0.0-alpha.1", "1.0.0-0a", "1.0.0+build.7", "1.0.0-a+b-c"] {
            assert!(is_semantic(good), "{good}");
        }
        for bad in ["", "1.2", "1.2.3.4", "01.2.3", "1.0.0-01", "1.0.0-", "1.0.0+", "v1.2.3", "1.0.0+a..b"] {
            assert!(!is_semantic(bad), "{bad}");
        }
    }
}
