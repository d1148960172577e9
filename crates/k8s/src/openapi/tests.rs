use super::*;

#[test]
fn apply_finds_field_validation_and_strategic_merge() {
    let document = v3("apps", "v1", &[]).unwrap();
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "apps", "version": "v1", "kind": "Deployment"})
    );
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
    assert_eq!(patch["operationId"], "patchAppsV1NamespacedDeployment");
    let schemas = &document["components"]["schemas"];
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    let volumes = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"];
    assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
}

#[test]
fn what_every_object_has_is_explained() {
    let crd = crontab();
    let document = v3("example.com", "v1", &Custom::of(&crd)).unwrap();
    let schemas = &document["components"]["schemas"];
    let metadata = &schemas["com.example.v1.CronTab"]["properties"]["metadata"];
    assert!(metadata["description"].as_str().unwrap().starts_with("Standard object's metadata"));
    assert_eq!(metadata["allOf"][0]["$ref"], format!("#/components/schemas/{}", crate::schema::OBJECT_META));
    let fields = schemas[crate::schema::OBJECT_META]["properties"].as_object().unwrap();
    for (name, field) in fields {
        assert!(field["description"].is_string(), "metadata.{name} has no words");
    }
    let document = v3("apps", "v1", &[]).unwrap();
    let deployment = &document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"]["properties"];
    assert!(
        deployment["metadata"]["description"].is_string() && deployment["spec"].get("description").is_none()
    );
}

#[test]
fn every_reference_leads_somewhere() {
    fn walk<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|v| walk(v, found));
            }
            Value::Array(items) => items.iter().for_each(|v| walk(v, found)),
            _ => {}
        }
    }
    let crd = crontab();
    let customs = Custom::of(&crd);
    for row in discovery::built_in().map(|r| (r.group, r.version)).chain([("example.com", "v1")]) {
        let document = v3(row.0, row.1, &customs).unwrap();
        let mut found = Vec::new();
        walk(&document, &mut found);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some_and(|s| !s.is_null()), "{row:?}: {reference}");
        }
    }
    let document = v2(&customs);
    let mut found = Vec::new();
    walk(&document, &mut found);
    assert!(
        found.iter().all(|r| document.pointer(r.strip_prefix('#').unwrap()).is_some_and(|s| !s.is_null()))
    );
}

fn crontab() -> Value {
    json!({"spec": {"group": "example.com", "scope": "Namespaced",
    "names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "listKind": "CronTabList"},
    "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {
        "type": "object", "required": ["a", "n"], "properties": {
            "a": {"type": "string", "oneOf": [{"pattern": "x"}]},
            "n": {"type": "string", "nullable": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"x": {"type": "string"}}},
        }}}}]}})
}

#[test]
fn custom_resources_are_published_like_built_in_ones() {
    let crd = crontab();
    let customs = Custom::of(&crd);
    let document = v3("example.com", "v1", &customs).unwrap();
    let patch = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/crontabs/{name}"]["patch"];
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_none());
    assert!(
        document["paths"].get("/apis/example.com/v1/namespaces/{namespace}/crontabs/{name}/status").is_some()
    );
    let schema = &document["components"]["schemas"]["com.example.v1.CronTab"];
    assert_eq!(schema["properties"]["a"]["oneOf"], json!([{"pattern": "x"}]));
    assert!(schema["properties"]["metadata"]["allOf"][0]["$ref"].is_string());
}

#[test]
fn version_2_says_only_what_its_readers_understand() {
    let crd = crontab();
    let document = v2(&Custom::of(&crd));
    let schema = &document["definitions"]["com.example.v1.CronTab"];
    assert_eq!(schema["properties"]["a"], json!({"type": "string"}));
    assert_eq!(schema["properties"]["n"], json!({}));
    assert_eq!(schema["required"], json!(["a"]));
    assert_eq!(schema["properties"]["free"], json!({"x-kubernetes-preserve-unknown-fields": true}));
}

#[test]
fn the_index_names_every_document_and_changes_with_it() {
    let plain = v3_hashes(&[]);
    assert_eq!(plain.len(), 22);
    let crd = crontab();
    let more = v3_hashes(&Custom::of(&crd));
    assert_eq!(more.len(), 23);
    assert_eq!(plain[..], more[..22]);
    let index = v3_index(&more);
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    assert_eq!(url, format!("/openapi/v3/apis/example.com/v1?hash={}", more[22].1));
}
