//! Changes that a placement makes to what is sent to some sites.

use serde_json::{Value, json};
use tombolo_api::{EnvVar, Override};

use crate::object::{template_pointer, text};

#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    #[error("override {index}: the JSON patch cannot be read: {source}")]
    Unreadable {
        index: usize,
        #[source]
        source: serde_json::Error,
    },
    #[error("override {index}: the JSON patch does not fit {object}: {reason}")]
    DoesNotFit { index: usize, object: String, reason: String },
    #[error(
        "override {index}: an override may not change what the object is (apiVersion, kind, name, namespace)"
    )]
    Identity { index: usize },
}

/// Makes the changes of `overrides` (those for this site, with their index in the placement) to one object.
/// `root`: whether it is the root; overrides that name no kind are for the root only.
pub fn apply<'a>(
    object: &mut Value,
    root: bool,
    overrides: impl Iterator<Item = (usize, &'a Override)>,
) -> Result<(), OverrideError> {
    let kind = text(object, "/kind").to_owned();
    for (index, change) in overrides {
        let meant = if change.kinds.is_empty() { root } else { change.kinds.contains(&kind) };
        if !meant {
            continue;
        }
        let before = identity(object);
        if !change.json_patch.is_empty() {
            let patch = serde_json::from_value(json!(change.json_patch));
            let patch: json_patch::Patch =
                patch.map_err(|source| OverrideError::Unreadable { index, source })?;
            json_patch::patch(object, &patch).map_err(|error| OverrideError::DoesNotFit {
                index,
                object: format!("{kind}/{}", text(object, "/metadata/name")),
                reason: error.to_string(),
            })?;
        }
        if let Some(merge) = &change.merge {
            json_patch::merge(object, merge);
        }
        if let Some(image) = &change.image {
            each_container(object, &kind, |c| {
                let moved = with_registry(text(c, "/image"), &image.registry);
                c["image"] = json!(moved);
            });
        }
        each_container(object, &kind, |c| change.env.iter().for_each(|env| set_env(c, env)));
        for (field, more) in [("labels", &change.labels), ("annotations", &change.annotations)] {
            for (key, value) in more {
                object["metadata"][field][key] = json!(value);
                if let Some(pointer) = template_pointer(&kind).filter(|p| !p.is_empty())
                    && let Some(template) = object.pointer_mut(pointer)
                {
                    template["metadata"][field][key] = json!(value);
                }
            }
        }
        if identity(object) != before {
            return Err(OverrideError::Identity { index });
        }
    }
    Ok(())
}

fn identity(object: &Value) -> [String; 4] {
    ["/apiVersion", "/kind", "/metadata/namespace", "/metadata/name"].map(|p| text(object, p).to_owned())
}

fn each_container(object: &mut Value, kind: &str, mut f: impl FnMut(&mut Value)) {
    let Some(spec) = template_pointer(kind).and_then(|p| object.pointer_mut(&format!("{p}/spec"))) else {
        return;
    };
    for containers in ["containers", "initContainers"] {
        spec.get_mut(containers).and_then(Value::as_array_mut).into_iter().flatten().for_each(&mut f);
    }
}

fn set_env(container: &mut Value, env: &EnvVar) {
    let wanted = json!({"name": env.name, "value": env.value});
    if !container["env"].is_array() {
        container["env"] = json!([]);
    }
    let Some(all) = container["env"].as_array_mut() else { return };
    match all.iter_mut().find(|e| e["name"] == json!(env.name)) {
        Some(old) => *old = wanted,
        None => all.push(wanted),
    }
}

/// The first part of an image is a registry if it looks like a host; otherwise the image is of Docker Hub.
fn with_registry(image: &str, registry: &str) -> String {
    let is_host = |first: &str| first.contains(['.', ':']) || first == "localhost";
    let path = match image.split_once('/') {
        Some((first, rest)) if is_host(first) => rest.to_owned(),
        Some(_) => image.to_owned(),
        None => format!("library/{image}"),
    };
    format!("{}/{path}", registry.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_api::ImageOverride;

    fn deployment() -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}, "spec": {"replicas": 1, "template": {
            "metadata": {}, "spec": {"containers": [{"name": "c", "image": "nginx:1", "env": [{"name": "A", "value": "0"}]}]}}}})
    }

    fn run(change: Override) -> Result<Value, OverrideError> {
        let mut object = deployment();
        apply(&mut object, true, [(0, &change)].into_iter())?;
        Ok(object)
    }

    #[test]
    fn every_kind_of_override_changes_what_it_should() {
        let all = Override {
            json_patch: vec![json!({"op": "replace", "path": "/spec/replicas", "value": 5})],
            merge: Some(json!({"spec": {"paused": true}})),
            image: Some(ImageOverride { registry: "mirror.local:5000/".into() }),
            env: vec![
                EnvVar { name: "A".into(), value: "1".into() },
                EnvVar { name: "B".into(), value: "2".into() },
            ],
            labels: [("tier".into(), "edge".into())].into(),
            ..Default::default()
        };
        let object = run(all).expect("fits");
        assert_eq!(object["spec"]["replicas"], 5);
        assert_eq!(object["spec"]["paused"], true);
        let container = object.pointer("/spec/template/spec/containers/0").expect("one");
        assert_eq!(container["image"], "mirror.local:5000/library/nginx:1");
        assert_eq!(container["env"], json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]));
        assert_eq!(object["metadata"]["labels"]["tier"], "edge");
        assert_eq!(object.pointer("/spec/template/metadata/labels/tier"), Some(&json!("edge")));
    }

    #[test]
    fn registries_are_replaced_and_paths_kept() {
        for (image, moved) in [
            ("nginx", "r/library/nginx"),
            ("bitnami/redis:7", "r/bitnami/redis:7"),
            ("ghcr.io/a/b@sha256:00", "r/a/b@sha256:00"),
            ("localhost:5000/x", "r/x"),
        ] {
            assert_eq!(with_registry(image, "r"), moved);
        }
    }

    #[test]
    fn an_override_says_why_it_does_not_fit_and_never_renames() {
        let missing = Override {
            json_patch: vec![json!({"op": "remove", "path": "/spec/nothing"})],
            ..Default::default()
        };
        assert!(run(missing).expect_err("no such field").to_string().contains("override 0"));
        let rename =
            Override { merge: Some(json!({"metadata": {"namespace": "kube-system"}})), ..Default::default() };
        assert!(matches!(run(rename), Err(OverrideError::Identity { index: 0 })));
    }

    #[test]
    fn an_override_for_other_kinds_leaves_the_root_alone() {
        let change = Override {
            kinds: vec!["ConfigMap".into()],
            labels: [("a".into(), "b".into())].into(),
            ..Default::default()
        };
        assert_eq!(run(change).expect("fits"), deployment());
    }
}
