//! Jobs and CronJobs.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors, same};
use super::{cron, meta, pod};
use crate::names;
use crate::selector::LabelSelector;

pub(super) fn job(e: &mut Errors, object: &At<'_, '_>) {
    let (metadata, spec) = (object.get("metadata"), object.get("spec"));
    generated_selector(e, &metadata, &spec);
    complete_spec(e, &spec);
    let completions = spec.get("completions").int().unwrap_or_default();
    if spec.get("completionMode").str() == "Indexed" && completions > 0 {
        let name = metadata.get("name");
        let host = format!("{}-{}", name.str(), completions - 1);
        if !names::dns_label(&host).is_empty() {
            e.invalid(&name, format!("will not able to create pod with invalid DNS label: {host}"));
        }
    }
}

fn complete_spec(e: &mut Errors, spec: &At<'_, '_>) {
    job_spec(e, spec);
    let selector = spec.get("selector");
    if selector.is_set() {
        meta::label_selector(e, &selector);
    } else {
        e.required(&selector, "");
    }
    let template = spec.get("template");
    let metadata = template.get("metadata");
    let labels = metadata.get("labels");
    if LabelSelector::from_object(Some(selector.value)).is_ok_and(|s| !s.matches(labels.value.as_object())) {
        e.invalid_value(&labels, labels.value, "`selector` does not match template `labels`");
    }
}

/// Unless asked otherwise, the selector is the server's, and the template carries its labels.
fn generated_selector(e: &mut Errors, metadata: &At<'_, '_>, spec: &At<'_, '_>) {
    let selector = spec.get("selector");
    if spec.get("manualSelector").bool() || !selector.is_set() {
        return;
    }
    let (uid, name) = (metadata.get("uid"), metadata.get("name"));
    if uid.is_empty() {
        e.required(&uid, "");
    }
    let template = spec.get("template");
    let template_meta = template.get("metadata");
    let labels = template_meta.get("labels");
    for (key, expected) in [
        ("controller-uid", uid.str()),
        ("job-name", name.str()),
        ("batch.kubernetes.io/controller-uid", uid.str()),
        ("batch.kubernetes.io/job-name", name.str()),
    ] {
        let label = labels.key(key);
        if !label.is_set() {
            e.required(&label, format!("must be '{expected}'"));
        } else if label.str() != expected {
            e.invalid_value(&label, labels.value, format!("must be '{expected}'"));
        }
    }
}

fn job_spec(e: &mut Errors, spec: &At<'_, '_>) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        e.non_negative(&spec.get(field));
    }
    let (per_index, failed) = (spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes"));
    if failed.is_set() && !per_index.is_set() {
        e.required(&per_index, "when maxFailedIndexes is specified");
    }
    let mode = spec.get("completionMode");
    e.set_one_of(&mode, &["NonIndexed", "Indexed"]);
    let (completions, parallelism) = (spec.get("completions"), spec.get("parallelism"));
    if mode.str() == "Indexed" {
        if !completions.is_set() {
            e.required(&completions, "when completion mode is Indexed");
        }
        if parallelism.int().is_some_and(|p| p > 100_000) {
            e.invalid(&parallelism, "must be less than or equal to 100000 when completion mode is Indexed");
        }
        if let (Some(all), Some(failing)) = (completions.int(), failed.int())
            && failing > all
        {
            e.invalid(&failed, "must be less than or equal to completions");
        }
    } else {
        for at in [&per_index, &failed] {
            if at.is_set() {
                e.invalid(at, "requires indexed completion mode");
            }
        }
        if spec.get("successPolicy").is_set() {
            e.invalid(&spec.get("successPolicy"), "requires indexed completion mode");
        }
    }
    let policy = spec.get("podFailurePolicy");
    failure_policy(e, spec, &policy);
    let replacement = spec.get("podReplacementPolicy");
    match policy.is_set() {
        true => e.optional_one_of(&replacement, &["Failed"]),
        false => e.optional_one_of(&replacement, &["Failed", "TerminatingOrFailed"]),
    }
    let template = spec.get("template");
    pod::template(e, &template);
    let template_spec = template.get("spec");
    let restart = template_spec.get("restartPolicy");
    match restart.str() {
        "" | "Always" => e.required(&restart, "valid values: \"OnFailure\", \"Never\""),
        "Never" => {}
        "OnFailure" if policy.is_set() => {
            e.invalid(&restart, "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" => {}
        _ => e.not_supported(&restart, &["OnFailure", "Never"]),
    }
}

fn failure_policy(e: &mut Errors, spec: &At<'_, '_>, policy: &At<'_, '_>) {
    let rules = policy.get("rules");
    if rules.len() > 20 {
        e.too_many(&rules, rules.len(), 20);
    }
    for rule in rules.items() {
        let action = rule.get("action");
        match action.str() {
            "" => e.required(&action, "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]"),
            "FailIndex" if !spec.get("backoffLimitPerIndex").is_set() => {
                e.invalid(&action, "requires the backoffLimitPerIndex to be set");
            }
            _ => e.optional_one_of(&action, &["Count", "FailIndex", "FailJob", "Ignore"]),
        }
        let (codes, conditions) = (rule.get("onExitCodes"), rule.get("onPodConditions"));
        if codes.is_set() {
            let (operator, values) = (codes.get("operator"), codes.get("values"));
            e.optional_one_of(&operator, &["In", "NotIn"]);
            if values.is_empty() {
                e.invalid_value(&values, &Value::Array(Vec::new()), "at least one value is required");
            } else if values.len() > 255 {
                e.too_many(&values, values.len(), 255);
            }
            for value in values.items() {
                if operator.str() == "In" && value.int() == Some(0) {
                    e.invalid(&value, "must not be 0 for the In operator");
                }
            }
        }
        for condition in conditions.items() {
            e.complaints(&condition.get("type"), names::label_key(condition.get("type").str()));
            e.optional_one_of(&condition.get("status"), &["False", "True", "Unknown"]);
        }
        let omitted = |e: &mut Errors, detail: &str| {
            e.invalid(&rule, detail);
            if let Some(last) = e.0.last_mut() {
                last.value.clear();
            }
        };
        if codes.is_set() && !conditions.is_empty() {
            omitted(e, "specifying both OnExitCodes and OnPodConditions is not supported");
        }
        if !codes.is_set() && conditions.is_empty() {
            omitted(e, "specifying one of OnExitCodes and OnPodConditions is required");
        }
    }
}

pub(super) fn job_update(e: &mut Errors, object: &At<'_, '_>, old: &Value) {
    let spec = object.get("spec");
    complete_spec(e, &spec);
    let before = &old["spec"];
    let (completions, parallelism) = (spec.get("completions"), spec.get("parallelism"));
    if spec.get("completionMode").str() != "Indexed" {
        e.immutable(&completions, &before["completions"]);
    } else if completions.int() != before["completions"].as_i64() && completions.int() != parallelism.int() {
        e.invalid(&completions, "can only be modified in tandem with spec.parallelism");
    }
    e.immutable(&spec.get("selector"), &before["selector"]);
    template_update(e, &spec, before);
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        e.immutable(&spec.get(field), &before[field]);
    }
}

/// A suspended job that never started may still be told where to run.
fn template_update(e: &mut Errors, spec: &At<'_, '_>, before: &Value) {
    let template = spec.get("template");
    let suspended = before["suspend"] == true;
    let frozen = |template: &Value| {
        let mut template = template.clone();
        if suspended {
            if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("labels");
                metadata.remove("annotations");
            }
            if let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) {
                for field in ["nodeSelector", "tolerations", "schedulingGates"] {
                    pod.remove(field);
                }
                pod.get_mut("affinity").and_then(Value::as_object_mut).map(|a| a.remove("nodeAffinity"));
                for container in pod.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten()
                {
                    container.as_object_mut().map(|c| c.remove("resources"));
                }
            }
        }
        template
    };
    if !same(&frozen(template.value), &frozen(&before["template"])) {
        e.invalid(&template, "field is immutable");
    }
}

pub(super) fn cron_job(e: &mut Errors, object: &At<'_, '_>) {
    cron_spec(e, object);
    let metadata = object.get("metadata");
    let name = metadata.get("name");
    if name.str().len() > 52 {
        e.invalid(&name, "must be no more than 52 characters");
    }
}

fn cron_spec(e: &mut Errors, object: &At<'_, '_>) {
    let spec = object.get("spec");
    let schedule = spec.get("schedule");
    if schedule.is_empty() {
        e.required(&schedule, "");
    } else {
        if let Err(error) = cron::check(schedule.str()) {
            e.invalid(&schedule, error);
        }
        if schedule.str().contains("TZ") {
            e.invalid(&schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
        }
    }
    e.non_negative(&spec.get("startingDeadlineSeconds"));
    let zone = spec.get("timeZone");
    if zone.is_set() {
        if zone.is_empty() {
            e.invalid(&zone, "timeZone must be nil or non-empty string");
        } else if zone.str().eq_ignore_ascii_case("local") {
            let detail =
                "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
            e.invalid(&zone, detail);
        } else if jiff::tz::TimeZone::get(zone.str()).is_err() {
            e.invalid(&zone, format!("unknown time zone {}", zone.str()));
        }
    }
    e.one_of(&spec.get("concurrencyPolicy"), &["Allow", "Forbid", "Replace"]);
    let template = spec.get("jobTemplate");
    let job = template.get("spec");
    job_spec(e, &job);
    if job.get("manualSelector").bool() {
        e.not_supported(&job.get("manualSelector"), &["nil", "false"]);
    }
    e.non_negative(&spec.get("successfulJobsHistoryLimit"));
    e.non_negative(&spec.get("failedJobsHistoryLimit"));
}

pub(super) fn cron_job_update(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    cron_spec(e, object);
}

pub(super) fn job_status(e: &mut Errors, object: &At<'_, '_>, _old: &Value) {
    let status = object.get("status");
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        e.non_negative(&status.get(field));
    }
    let uncounted = status.get("uncountedTerminatedPods");
    let mut seen = HashSet::new();
    for field in ["succeeded", "failed"] {
        for id in uncounted.get(field).items() {
            if id.is_empty() {
                e.invalid(&id, "must not be empty");
            } else if !seen.insert(id.str()) {
                e.duplicate(&id);
            }
        }
    }
}
