//! The base objects, and where each kind is created.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};
use http::Request;
use serde::Deserialize;
use serde_json::{Value, json};

/// Kinds that are answered and not stored, and those that would change the servers' answers to others.
pub const NOT_KEPT: &[&str] = &[
    "Binding",
    "LocalSubjectAccessReview",
    "SelfSubjectAccessReview",
    "SelfSubjectReview",
    "SelfSubjectRulesReview",
    "SubjectAccessReview",
    "TokenReview",
    "APIService",
    "LimitRange",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ResourceQuota",
    "ServiceCIDR",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

/// Where each kind is created, by version and kind.
pub type Places = BTreeMap<(String, String), String>;

/// Every stable kind that the server lets clients create, subresources apart.
pub async fn places(server: &kube::Client) -> Result<Places> {
    let mut places = Places::new();
    let mut groups = vec![("v1".to_owned(), "/api/v1".to_owned())];
    for group in server.list_api_groups().await?.groups {
        let stable = group
            .versions
            .into_iter()
            .filter(|v| !v.version.contains("alpha") && !v.version.contains("beta"));
        groups.extend(stable.map(|v| (v.group_version.clone(), format!("/apis/{}", v.group_version))));
    }
    for (version, root) in groups {
        let list: Value = server.request(Request::get(&root).body(Vec::new())?).await?;
        for resource in list["resources"].as_array().into_iter().flatten() {
            let plural = resource["name"].as_str().unwrap_or_default();
            let creates = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("create")));
            if plural.contains('/') || !creates {
                continue;
            }
            let namespace = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
            let kind = resource["kind"].as_str().unwrap_or_default().to_owned();
            places.insert((version.clone(), kind), format!("{root}{namespace}/{plural}"));
        }
    }
    Ok(places)
}

pub fn corpus() -> Result<Vec<Value>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut files: Vec<_> =
        std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.sort();
    let mut objects = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            objects.push(Value::deserialize(document).with_context(|| format!("in {}", file.display()))?);
        }
    }
    Ok(objects)
}

pub fn kind_and_place<'p>(object: &Value, places: &'p Places) -> Result<(String, &'p str)> {
    let kind = object["kind"].as_str().context("a corpus object has no kind")?;
    let version = object["apiVersion"].as_str().context("a corpus object has no apiVersion")?;
    let place = places.get(&(version.to_owned(), kind.to_owned()));
    Ok((format!("{version} {kind}"), place.with_context(|| format!("upstream has no {kind}"))?))
}
