//! The CustomResourceDefinition object itself: defaults, what is refused, and its conditions.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::open_api;
use crate::field::FieldError;
use crate::names;
use crate::validate::{At, Errors, meta_update, object_meta, same};

/// Removed from a definition once its objects are gone.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Fills in names, conversion strategy and stored versions.
pub fn default_definition(object: &mut Value) {
    let spec = &mut object["spec"];
    let kind = spec["names"]["kind"].as_str().unwrap_or_default().to_owned();
    if spec["names"]["singular"].as_str().is_none_or(str::is_empty) {
        spec["names"]["singular"] = Value::from(kind.to_lowercase());
    }
    if spec["names"]["listKind"].as_str().is_none_or(str::is_empty) && !kind.is_empty() {
        spec["names"]["listKind"] = Value::from(format!("{kind}List"));
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({"strategy": "None"});
    }
    if let Some(webhook) = spec.pointer_mut("/conversion/webhook/clientConfig/service") {
        webhook.as_object_mut().map(|s| s.entry("port").or_insert(Value::from(443)));
    }
    let storage = storage_version(object).map(str::to_owned);
    if object["status"]["storedVersions"].as_array().is_none_or(Vec::is_empty) {
        object["status"]["storedVersions"] = Value::from(storage.into_iter().collect::<Vec<_>>());
    }
}

/// The version objects are stored in.
pub fn storage_version(object: &Value) -> Option<&str> {
    let versions = object.get("spec")?.get("versions")?.as_array()?;
    versions.iter().find(|v| v["storage"] == true)?.get("name")?.as_str()
}

/// Sets a condition of the definition's status; its time moves only with its status.
pub fn set_condition(object: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: &str) {
    let mut condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
    });
    if !object["status"].is_object() {
        object["status"] = Value::Object(Map::new());
    }
    if !object["status"]["conditions"].is_array() {
        object["status"]["conditions"] = Value::Array(Vec::new());
    }
    let Some(list) = object["status"]["conditions"].as_array_mut() else { return };
    match list.iter_mut().find(|c| c["type"] == kind) {
        Some(existing) => {
            if existing["status"] == condition["status"] {
                condition["lastTransitionTime"] = existing["lastTransitionTime"].take();
            }
            *existing = condition;
        }
        None => list.push(condition),
    }
}

/// Whether a condition is `True`.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == kind && c["status"] == "True")
}

pub fn validate_definition(object: &Value) -> Vec<FieldError> {
    let mut e = Errors::default();
    let root = At::root(object);
    let (metadata, spec) = (root.get("metadata"), root.get("spec"));
    object_meta(&mut e, &metadata, false, names::dns_subdomain);
    let expected = format!("{}.{}", spec.get("names").get("plural").str(), spec.get("group").str());
    let name = metadata.get("name");
    if !name.is_empty() && name.str() != expected {
        e.invalid(&name, "must be spec.names.plural+\".\"+spec.group");
    }
    whole(&mut e, &root);
    if is_protected(spec.get("group").str()) {
        api_approval(&mut e, &metadata);
    }
    if spec.get("preserveUnknownFields").bool() {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                      spec.versions[*].schema instead";
        e.invalid(&spec.get("preserveUnknownFields"), detail);
    }
    e.0
}

pub fn validate_definition_update(object: &Value, old: &Value) -> Vec<FieldError> {
    let mut e = Errors::default();
    let root = At::root(object);
    meta_update(&mut e, &root.get("metadata"), &old["metadata"]);
    whole(&mut e, &root);
    let spec = root.get("spec");
    let (old_spec, names) = (&old["spec"], spec.get("names"));
    if has_condition(old, "Established") {
        e.immutable(&spec.get("scope"), &old_spec["scope"]);
        e.immutable(&names.get("kind"), &old_spec["names"]["kind"]);
    }
    e.immutable(&spec.get("group"), &old_spec["group"]);
    e.immutable(&names.get("plural"), &old_spec["names"]["plural"]);
    e.0
}

pub fn validate_definition_status(object: &Value, old: &Value) -> Vec<FieldError> {
    let mut e = Errors::default();
    let root = At::root(object);
    meta_update(&mut e, &root.get("metadata"), &old["metadata"]);
    check_names(&mut e, &root.get("status").get("acceptedNames"));
    e.0
}

fn whole(e: &mut Errors, root: &At<'_, '_>) {
    let (spec, status) = (root.get("spec"), root.get("status"));
    check_spec(e, &spec);
    check_names(e, &status.get("acceptedNames"));
    stored_versions(e, &status.get("storedVersions"), &spec.get("versions"));
}

fn stored_versions(e: &mut Errors, stored: &At<'_, '_>, versions: &At<'_, '_>) {
    if stored.is_empty() {
        e.invalid_value(stored, &Value::Null, "must have at least one stored version");
        return;
    }
    let named = |name: &str| versions.items().any(|v| v.get("name").str() == name);
    for version in versions.items().filter(|v| v.get("storage").bool()) {
        let name = version.get("name");
        if !stored.items().any(|s| s.str() == name.str()) {
            e.invalid(stored, format!("must have the storage version {}", name.str()));
        }
    }
    for item in stored.items().filter(|item| !named(item.str())) {
        let v = item.str();
        e.invalid(
            &item,
            format!(
                "missing from spec.versions; {v} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {v} and removes {v} from \
                 status.storedVersions"
            ),
        );
    }
}

fn check_spec(e: &mut Errors, spec: &At<'_, '_>) {
    let group = spec.get("group");
    let complaints = names::dns_subdomain(group.str());
    if group.is_empty() {
        e.required(&group, "");
    } else if !complaints.is_empty() {
        e.invalid(&group, complaints.join(","));
    } else if !group.str().contains('.') {
        e.invalid(&group, "should be a domain with at least one dot");
    }
    e.one_of(&spec.get("scope"), &["Cluster", "Namespaced"]);
    let versions = spec.get("versions");
    if !is_shared(&versions, "schema") || !versions.index(0).get("schema").get("openAPIV3Schema").is_set() {
        for version in versions.items() {
            let schema = version.get("schema");
            if !schema.get("openAPIV3Schema").is_set() {
                e.required(&schema.get("openAPIV3Schema"), "");
            }
        }
    }
    let mut seen = HashSet::new();
    let mut duplicate = false;
    for version in versions.items() {
        let name = version.get("name");
        duplicate |= !seen.insert(name.str());
        let complaints = names::dns1035_label(name.str());
        if !complaints.is_empty() {
            e.invalid(&name, complaints.join(","));
        }
        deprecation(e, &version);
    }
    parts(e, spec, &versions);
    if duplicate {
        e.invalid(&versions, "must contain unique version names");
    }
    if versions.items().filter(|v| v.get("storage").bool()).count() != 1 {
        e.invalid(&versions, "must have exactly one version marked as storage version");
    }
    let names = spec.get("names");
    for name in ["plural", "singular", "kind", "listKind"] {
        if names.get(name).is_empty() {
            e.required(&names.get(name), "");
        }
    }
    check_names(e, &names);
    conversion(e, &spec.get("conversion"));
}

fn check_names(e: &mut Errors, names: &At<'_, '_>) {
    let mut label = |at: &At<'_, '_>, mixed: bool| {
        let text = if mixed { at.str().to_lowercase() } else { at.str().to_owned() };
        let complaints = names::dns1035_label(&text).join(",");
        if !complaints.is_empty() {
            let prefix = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
            e.invalid(at, format!("{prefix}{complaints}"));
        }
    };
    for (name, mixed) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        if !names.get(name).is_empty() {
            label(&names.get(name), mixed);
        }
    }
    for list in ["shortNames", "categories"] {
        names.get(list).items().for_each(|item| label(&item, false));
    }
    let (kind, list_kind) = (names.get("kind"), names.get("listKind"));
    if !kind.is_empty() && kind.str() == list_kind.str() {
        e.invalid(&list_kind, "kind and listKind may not be the same");
    }
}

fn conversion(e: &mut Errors, conversion: &At<'_, '_>) {
    if !conversion.is_set() {
        return;
    }
    e.one_of(&conversion.get("strategy"), &["None", "Webhook"]);
    let webhook = conversion.get("webhook");
    if conversion.get("strategy").str() != "Webhook" {
        if webhook.is_set() {
            e.forbidden(&webhook, "should not be set when strategy is not set to Webhook");
        }
        return;
    }
    // Upstream validates the internal form, whose fields are one level up.
    let config = webhook.get("clientConfig");
    let shown = conversion.get("webhookClientConfig");
    if !config.is_set() {
        e.required(&shown, "required when strategy is set to Webhook");
    } else if config.get("url").is_set() == config.get("service").is_set() {
        e.required(&shown, "exactly one of url or service is required");
    }
    let reviews = webhook.get("conversionReviewVersions");
    let shown = conversion.get("conversionReviewVersions");
    if reviews.is_empty() {
        e.required(&shown, "");
    } else if !reviews.items().any(|v| matches!(v.str(), "v1" | "v1beta1")) {
        e.invalid_value(&shown, reviews.value, "must include at least one of v1, v1beta1");
    }
}

fn deprecation(e: &mut Errors, version: &At<'_, '_>) {
    let warning = version.get("deprecationWarning");
    if !warning.is_set() {
        return;
    }
    if !version.get("deprecated").bool() {
        e.invalid(&warning, "can only be set for deprecated versions");
        return;
    }
    if warning.str().len() > 256 {
        e.invalid(&warning, "must be <= 256 characters long");
    }
    if warning.str().is_empty() {
        e.invalid(&warning, "must not be an empty string");
    }
}

/// What all versions have in common upstream moves to the top of the spec, and reports there.
fn is_shared(versions: &At<'_, '_>, part: &str) -> bool {
    let first = versions.index(0);
    versions.items().all(|v| same(v.get(part).value, first.get(part).value))
}

fn parts(e: &mut Errors, spec: &At<'_, '_>, versions: &At<'_, '_>) {
    type Part = (&'static str, &'static str, fn(&mut Errors, &At<'_, '_>, &At<'_, '_>));
    let parts: [Part; 4] = [
        ("schema", "validation", |e, part, version| {
            let schema = part.get("openAPIV3Schema");
            if schema.is_set() {
                open_api::check_schema(e, &schema, version.get("subresources").get("status").is_set());
            }
        }),
        ("subresources", "subresources", |e, part, _| scale(e, &part.get("scale"))),
        ("additionalPrinterColumns", "additionalPrinterColumns", |e, part, _| {
            part.items().for_each(|column| printer_column(e, &column));
        }),
        ("selectableFields", "selectableFields", |e, part, version| {
            selectable(e, part, &version.get("schema").get("openAPIV3Schema"));
        }),
    ];
    for (name, shared, check) in parts {
        if is_shared(versions, name) {
            let first = versions.index(0);
            check(e, &spec.get(shared).with(first.get(name).value), &first);
        } else {
            versions.items().for_each(|version| check(e, &version.get(name), &version));
        }
    }
}

fn scale(e: &mut Errors, scale: &At<'_, '_>) {
    if !scale.is_set() {
        return;
    }
    for (name, prefix) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let path = scale.get(name);
        if path.is_empty() {
            e.required(&path, "");
        } else if !path.str().starts_with('.') {
            e.invalid(&path, "must be a simple json path starting with .");
        } else if !path.str().starts_with(prefix) {
            e.invalid(&path, format!("should be a json path under {}", prefix.trim_end_matches('.')));
        }
    }
    let labels = scale.get("labelSelectorPath");
    if !labels.is_empty() && !labels.str().starts_with(".spec.") && !labels.str().starts_with(".status.") {
        e.invalid(&labels, "should be a json path under either .spec or .status");
    }
}

fn printer_column(e: &mut Errors, column: &At<'_, '_>) {
    if column.get("name").is_empty() {
        e.required(&column.get("name"), "");
    }
    let kind = column.get("type");
    let kinds = ["boolean", "date", "integer", "number", "string"];
    let detail = format!("must be one of {}", kinds.join(","));
    if kind.is_empty() {
        e.required(&kind, detail);
    } else if !kinds.contains(&kind.str()) {
        e.invalid(&kind, detail);
    }
    let formats = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    let format = column.get("format");
    if !format.is_empty() && !formats.contains(&format.str()) {
        e.invalid(&format, format!("must be one of {}", formats.join(",")));
    }
    let path = column.get("jsonPath");
    let shown = column.get("JSONPath");
    if path.is_empty() {
        e.required(&shown, "");
    } else if !path.str().starts_with('.') {
        e.invalid_value(&shown, path.value, "must be a simple json path starting with .");
    }
}

fn selectable(e: &mut Errors, fields: &At<'_, '_>, schema: &At<'_, '_>) {
    let mut seen = Vec::new();
    for field in fields.items() {
        let path = field.get("jsonPath");
        if path.is_empty() {
            e.required(&path, "");
            continue;
        }
        let mut node = Some(schema.value);
        for step in path.str().split('.').skip(1) {
            node = node.and_then(|n| n.get("properties")).and_then(|p| p.get(step));
        }
        match node.and_then(|n| n.get("type")).and_then(Value::as_str) {
            None => {
                e.invalid(&path, "is an invalid path: does not refer to a valid field");
                continue;
            }
            Some("string" | "boolean" | "integer") => {}
            Some(_) => {
                let detail = "must point to a field of type string, boolean or integer. Enum string fields and \
                              strings with formats are allowed.";
                e.invalid(&path, detail);
            }
        }
        if path.str().starts_with(".metadata") {
            e.invalid(&path, "must not point to fields in metadata");
        }
        if seen.contains(&path.str()) {
            e.duplicate(&path);
        }
        seen.push(path.str());
    }
    if seen.len() > 8 {
        e.too_many(fields, seen.len(), 8);
    }
}

fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|g| group == *g || group.ends_with(&format!(".{g}")))
}

fn api_approval(e: &mut Errors, metadata: &At<'_, '_>) {
    const ANNOTATION: &str = "api-approved.kubernetes.io";
    let annotations = metadata.get("annotations");
    let approval = annotations.key(ANNOTATION);
    let text = approval.str();
    if text.is_empty() {
        let detail = format!(
            "protected groups must have approval annotation {ANNOTATION:?}, see \
             https://github.com/kubernetes/enhancements/pull/1111"
        );
        e.required(&approval, detail);
    } else if !(text.starts_with("unapproved") || (text.contains("://") && text.len() > 8)) {
        let detail = format!(
            "protected groups must have approval annotation {ANNOTATION:?} with either a URL or a reason starting \
             with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
        );
        e.invalid(&approval, detail);
    }
}
