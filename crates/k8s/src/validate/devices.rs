//! Claims of devices, their templates, and classes of devices.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors, same};
use super::csi::driver_name;
use crate::{cel, names};

const MOST_REQUESTS: usize = 32;
const MOST_ALTERNATIVES: usize = 8;
const LONGEST_EXPRESSION: usize = 10 * 1024;
const LONGEST_PARAMETERS: usize = 10 * 1024;
pub(super) const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];

pub(super) fn class(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    selectors(e, &spec.get("selectors"));
    bounded(e, &spec.get("config"), MOST_REQUESTS, |e, config| opaque(e, &config.get("opaque")));
    let name = spec.get("extendedResourceName");
    if name.is_set() && !is_extended_resource(name.str()) {
        e.invalid(&name, "must be a valid extended resource name");
    }
}

/// A resource that nodes offer beyond those of Kubernetes itself.
fn is_extended_resource(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    !native && !name.starts_with("requests.") && names::label_key(&format!("requests.{name}")).is_empty()
}

pub(super) fn claim(e: &mut Errors, object: &At<'_, '_>) {
    device_claim(e, &object.get("spec").get("devices"));
}

pub(super) fn claim_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    e.immutable(&object.get("spec"), &old["spec"]);
}

pub(super) fn claim_template(e: &mut Errors, object: &At<'_, '_>) {
    let template = object.get("spec");
    let metadata = template.get("metadata");
    super::meta::labels(e, &metadata.get("labels"));
    super::meta::annotations(e, &metadata.get("annotations"));
    device_claim(e, &template.get("spec").get("devices"));
}

fn device_claim(e: &mut Errors, claim: &At<'_, '_>) {
    let requests = claim.get("requests");
    named_set(e, &requests, "name", MOST_REQUESTS, request);
    bounded(e, &claim.get("constraints"), MOST_REQUESTS, |e, constraint| {
        request_references(e, &constraint.get("requests"), requests.value);
        let (matching, distinct) = (constraint.get("matchAttribute"), constraint.get("distinctAttribute"));
        match (matching.is_set(), distinct.is_set()) {
            (true, false) => full_name(e, &matching),
            (false, true) => full_name(e, &distinct),
            (true, true) => {
                let detail = "exactly one of `matchAttribute` or `distinctAttribute` is required, but multiple \
                              fields are set";
                e.invalid(constraint, detail);
            }
            (false, false) => {
                e.required(constraint, "exactly one of `matchAttribute` or `distinctAttribute` is required");
            }
        }
    });
    bounded(e, &claim.get("config"), MOST_REQUESTS, |e, config| {
        request_references(e, &config.get("requests"), requests.value);
        opaque(e, &config.get("opaque"));
    });
}

/// Checks each item, if there are not too many.
pub(super) fn bounded(
    e: &mut Errors,
    list: &At<'_, '_>,
    most: usize,
    mut each: impl FnMut(&mut Errors, &At<'_, '_>),
) {
    if list.len() > most {
        e.too_many(list, list.len(), most);
        return;
    }
    list.items().for_each(|item| each(e, &item));
}

/// Like [`bounded`], and no two items have the same key.
pub(super) fn named_set(
    e: &mut Errors,
    list: &At<'_, '_>,
    key: &str,
    most: usize,
    each: impl FnMut(&mut Errors, &At<'_, '_>),
) {
    bounded(e, list, most, each);
    if list.len() > most {
        return;
    }
    let mut seen = HashSet::new();
    for item in list.items() {
        let name = item.get(key);
        if !seen.insert(name.str()) {
            e.duplicate(&item.with(name.value));
        }
    }
}

fn request(e: &mut Errors, request: &At<'_, '_>) {
    label(e, &request.get("name"));
    let (exactly, first) = (request.get("exactly"), request.get("firstAvailable"));
    match (exactly.is_set(), !first.is_empty()) {
        (false, false) => e.required(request, "exactly one of `exactly` or `firstAvailable` is required"),
        (true, true) => {
            let detail =
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            e.invalid_value(request, &Value::Null, detail);
        }
        (true, false) => wanted(e, &exactly),
        (false, true) => named_set(e, &first, "name", MOST_ALTERNATIVES, |e, alternative| {
            label(e, &alternative.get("name"));
            wanted(e, alternative);
        }),
    }
}

/// Which devices, and how many.
fn wanted(e: &mut Errors, wanted: &At<'_, '_>) {
    e.name(&wanted.get("deviceClassName"), names::dns_subdomain);
    selectors(e, &wanted.get("selectors"));
    let (mode, count) = (wanted.get("allocationMode"), wanted.get("count"));
    let number = count.int().unwrap_or_default();
    match mode.str() {
        "All" if number != 0 => e.invalid(&count, "must not be specified when allocationMode is 'All'"),
        "ExactCount" if number <= 0 => e.invalid(&count, "must be greater than zero"),
        "All" | "ExactCount" => {}
        _ => e.not_supported(&mode, &["All", "ExactCount"]),
    }
    wanted.get("tolerations").items().for_each(|each| toleration(e, &each));
}

fn toleration(e: &mut Errors, toleration: &At<'_, '_>) {
    let (key, operator, value) = (toleration.get("key"), toleration.get("operator"), toleration.get("value"));
    if !key.is_empty() {
        e.complaints(&key, names::label_key(key.str()));
    }
    match operator.str() {
        "Exists" if !value.is_empty() => e.invalid(&value, "must be empty for operator `Exists`"),
        "Equal" => e.complaints(&value, names::label_value(value.str())),
        _ => e.one_of(&operator, &["Equal", "Exists"]),
    }
    e.optional_one_of(&toleration.get("effect"), &EFFECTS);
}

fn selectors(e: &mut Errors, list: &At<'_, '_>) {
    bounded(e, list, MOST_REQUESTS, |e, selector| {
        let rule = selector.get("cel");
        if !rule.is_set() {
            e.required(&rule, "");
            return;
        }
        let expression = rule.get("expression");
        if expression.str().len() > LONGEST_EXPRESSION {
            e.too_long(&expression, LONGEST_EXPRESSION);
        } else if let Err(error) = cel::check_names(expression.str(), &["device"]) {
            e.invalid(&expression, error.to_string());
        }
    });
}

/// What a driver is told beyond the tables.
fn opaque(e: &mut Errors, opaque: &At<'_, '_>) {
    if !opaque.is_set() {
        e.required(opaque, "");
        return;
    }
    driver_name(e, &opaque.get("driver"));
    let parameters = opaque.get("parameters");
    let shown = Value::from("<value omitted>");
    match parameters.value {
        Value::Null => e.required(&parameters, ""),
        Value::Object(_) if parameters.value.to_string().len() > LONGEST_PARAMETERS => {
            e.too_long(&parameters, LONGEST_PARAMETERS);
        }
        Value::Object(_) => {}
        _ => e.invalid_value(&parameters, &shown, "must be a valid JSON object"),
    }
}

/// `request`, or `request/alternative`.
fn request_references(e: &mut Errors, list: &At<'_, '_>, requests: &Value) {
    const DETAIL: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let find = |list: &Value, name: &str| {
        list.as_array().into_iter().flatten().find(|request| request["name"] == name).cloned()
    };
    let mut seen = HashSet::new();
    bounded(e, list, MOST_REQUESTS, |e, reference| {
        let segments: Vec<&str> = reference.str().split('/').collect();
        if segments.len() <= 2 {
            for segment in &segments {
                for complaint in names::dns_label(segment) {
                    e.invalid_value(reference, &Value::from(*segment), complaint);
                }
            }
        }
        let found = match segments[..] {
            [request] => find(requests, request).is_some(),
            [request, alternative] => find(requests, request)
                .is_some_and(|request| find(&request["firstAvailable"], alternative).is_some()),
            _ => false,
        };
        if !found {
            e.invalid(reference, DETAIL);
        }
    });
    for reference in list.items().filter(|_| list.len() <= MOST_REQUESTS) {
        if !seen.insert(reference.str()) {
            e.duplicate(&reference);
        }
    }
}

pub(super) fn label(e: &mut Errors, at: &At<'_, '_>) {
    e.complaints(at, names::dns_label(at.str()));
}

/// `domain/identifier`, where the domain may be left out.
pub(super) fn qualified_name(e: &mut Errors, at: &At<'_, '_>, name: &str) {
    let wrong = |e: &mut Errors, detail: &str| e.invalid_value(at, &Value::from(""), detail);
    let parts: Vec<&str> = name.split('/').collect();
    match parts[..] {
        [id] => identifier(e, at, id),
        [domain, id] => {
            match domain {
                "" => wrong(e, "the domain must not be empty"),
                _ => driver_name(e, &at.with(&Value::from(domain))),
            }
            match id {
                "" => wrong(e, "the name must not be empty"),
                _ => identifier(e, at, id),
            }
        }
        _ => {}
    }
}

fn full_name(e: &mut Errors, at: &At<'_, '_>) {
    qualified_name(e, at, at.str());
    if !at.str().contains('/') {
        e.invalid(at, "a fully qualified name must be a domain and a name separated by a slash");
    }
}

fn identifier(e: &mut Errors, at: &At<'_, '_>, id: &str) {
    const LONGEST: usize = 32;
    if id.len() > LONGEST {
        e.too_long(at, LONGEST);
    }
    let fits = |c: char| c == '_' || c.is_ascii_alphanumeric();
    if id.is_empty() || !id.chars().all(fits) || id.starts_with(|c: char| c.is_ascii_digit()) {
        let message = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
                       alphanumeric characters or '_'";
        let examples = ["my_name", "MY_NAME", "MyName"];
        let detail = names::pattern_message(message, "[A-Za-z_][A-Za-z0-9_]*", &examples);
        e.invalid_value(at, &Value::from(id), detail);
    }
}

/// Claims with devices given to them: who has them, and that they stay given.
pub(super) fn claim_status(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let status = object.get("status");
    let (reserved, allocation) = (status.get("reservedFor"), status.get("allocation"));
    let mut seen = HashSet::new();
    for user in reserved.items() {
        for field in ["resource", "name", "uid"] {
            if user.get(field).is_empty() {
                e.required(&user.get(field), "");
            }
        }
        if !seen.insert(user.get("uid").str()) {
            e.duplicate(&user.with(user.get("uid").value));
        }
    }
    if !reserved.is_empty() && !allocation.is_set() {
        e.forbidden(&reserved, "may not be specified when `allocated` is not set");
    }
    let before = &old["status"]["allocation"];
    if allocation.is_set() && !before.is_null() && !same(allocation.value, before) {
        e.invalid(&allocation, "field is immutable");
    }
}
