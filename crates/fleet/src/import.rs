//! Taking in a workload that runs at a site already, without a restart; and giving one back.

use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::{Value, json};
use tombolo_api::names;

use crate::config::FleetConfig;
use crate::intent::intent;
use crate::kinds;
use crate::object::Key;
use crate::references::named;
use crate::watches::as_json;

/// How long a site may take to show what is to be imported.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// Makes the hub's copy of an object at `site`, with what it names, and a Placement that keeps it there. The site's agent
/// then takes over what exists: same template, so nothing restarts.
pub async fn import(hub: &Client, at_site: &Client, site: &str, key: &Key) -> Result<(), Error> {
    let root = as_json(api(at_site, key).await?.get(&key.name).await?, &key.api_version, &key.kind);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": key.home()}});
    crate::install::apply(hub, namespace).await?;
    for need in named(&root) {
        if let Some(object) = api(at_site, &need).await?.get_opt(&need.name).await? {
            let object = as_json(object, &need.api_version, &need.kind);
            create(hub, &need, intent(&object)).await?;
        }
    }
    // The Placement comes first, so that the default one never sees the object.
    let name = placement_of(key);
    create(
        hub,
        &Key::new("tombolo.dev/v1alpha1", "Placement", key.home(), &name),
        placement(&name, site, key),
    )
    .await?;
    create(hub, key, copy(&root, &name)).await
}

/// The hub's copy of what runs at a site.
fn copy(root: &Value, placement: &str) -> Value {
    let mut object = intent(root);
    object["metadata"]["annotations"][names::ADOPT_ANNOTATION] = json!("true");
    object["metadata"]["annotations"][names::PLACEMENT_ANNOTATION] = json!(placement);
    object
}

/// Name of the Placement that an import makes.
pub fn placement_of(key: &Key) -> String {
    format!("import-{}-{}", key.kind.to_lowercase(), key.name)
}

/// Deletes the hub's copy of what was given back.
pub async fn forget(hub: &Client, key: &Key) -> Result<(), Error> {
    api(hub, key).await?.delete(&key.name, &Default::default()).await.map(drop)
}

fn placement(name: &str, site: &str, key: &Key) -> Value {
    json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Placement", "metadata": {"name": name, "namespace": key.home()},
        "spec": {"objects": [{"apiVersion": key.api_version, "kind": key.kind, "name": key.name}],
            "sites": {"names": [site]}, "adopt": true, "failover": {"stay": true}}})
}

/// Carries out the import that an annotation of the Site asks for, and notes there what became of it.
pub async fn asked(config: &FleetConfig, site: &str, text: &str) {
    let outcome = match text.split('|').collect::<Vec<_>>()[..] {
        [api_version, kind, namespace, name] => {
            let key = Key::new(api_version, kind, namespace, name);
            let at_site = config.tunnels.client(site);
            let done = import(&config.client, &at_site, site, &key);
            match tokio::time::timeout(PATIENCE, done).await {
                Ok(Ok(())) => String::new(),
                Ok(Err(Error::Api(status))) => status.message.clone(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the site does not answer".to_owned(),
            }
        }
        _ => "it must be apiVersion|kind|namespace|name".to_owned(),
    };
    tracing::info!(site, object = text, outcome, "import");
    let api: Api<tombolo_api::Site> = Api::all(config.client.clone());
    let notes =
        json!({names::IMPORT_ANNOTATION: null, names::IMPORTED_ANNOTATION: format!("{text}|{outcome}")});
    let patch = Patch::Merge(json!({"metadata": {"annotations": notes}}));
    if let Err(error) = api.patch(site, &PatchParams::default(), &patch).await {
        tracing::warn!(site, %error, "the outcome of an import was not noted");
    }
}

/// The hub stops managing an object; what runs at the sites stays there as it is.
pub async fn give_back(hub: &Client, key: &Key) -> Result<(), Error> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {names::GIVE_BACK_ANNOTATION: "true"}}}));
    api(hub, key).await?.patch(&key.name, &PatchParams::default(), &patch).await.map(drop)
}

async fn api(client: &Client, key: &Key) -> Result<Api<DynamicObject>, Error> {
    let resource = kinds::resource(client, &key.api_version, &key.kind).await?;
    Ok(kinds::objects(client, &resource, &key.namespace))
}

/// What is there already stays as it is.
async fn create(client: &Client, key: &Key, object: Value) -> Result<(), Error> {
    let object: DynamicObject = serde_json::from_value(object).map_err(Error::SerdeError)?;
    match api(client, key).await?.create(&PostParams::default(), &object).await {
        Err(Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tombolo_api::{HubRef, PlacementSpec, SiteSpec};

    use super::*;
    use crate::object::{template_pointer, work_name};
    use crate::render::{Target, render};

    /// What the site is told to run, of the hub's `root` with `uid`.
    fn applied(root: &Value, uid: &str, placement: &PlacementSpec) -> Value {
        let (spec, labels) = (SiteSpec::default(), BTreeMap::new());
        let target = Target {
            site: "a",
            spec: &spec,
            labels: &labels,
            groups: &[],
            replicas: Some(2),
            first_ordinal: 0,
            parts: &[],
        };
        let mut root = root.clone();
        root["metadata"]["uid"] = json!(uid);
        let hub = HubRef { id: "h".into(), epoch: 1, path: vec!["h".into()] };
        render(&root, &[], placement, &target, &hub).expect("fits").object
    }

    fn made(api_version: &str, kind: &str) -> Value {
        let mut object = json!({"apiVersion": api_version, "kind": kind,
            "metadata": {"name": "web", "namespace": "shop"}, "spec": {}});
        let pointer = template_pointer(kind).expect("a workload");
        let template = json!({"metadata": {"labels": {"app": "web"}, "annotations": {"kubectl.kubernetes.io/restartedAt": "t"}},
            "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        if pointer.starts_with("/spec/jobTemplate") {
            object["spec"]["jobTemplate"] = json!({"spec": {"template": template}});
        } else {
            object["spec"]["template"] = template;
        }
        object
    }

    #[test]
    fn what_the_hub_made_and_forgot_is_taken_in_again_with_the_very_template_that_runs() {
        let mut once = PlacementSpec::default();
        once.failover.at_most_once = true;
        let kinds = [
            ("apps/v1", "Deployment"),
            ("apps/v1", "StatefulSet"),
            ("apps/v1", "DaemonSet"),
            ("batch/v1", "CronJob"),
        ];
        for (api_version, kind) in kinds {
            for placement in [&PlacementSpec::default(), &once] {
                let pointer = template_pointer(kind).expect("a workload");
                let root = made(api_version, kind);
                let runs = applied(&root, "1", placement);
                let work = work_name(&Key::of(&root).expect("named"), "1");
                let label = format!("{pointer}/metadata/labels/tombolo.dev~1work");
                assert_eq!(runs.pointer(&label), Some(&json!(work)), "{kind}");
                // Given back, taken in, and that once more.
                let again = applied(&copy(&runs, "import"), "2", &PlacementSpec::default());
                assert_eq!(again.pointer(pointer), runs.pointer(pointer), "{kind}");
                let thrice = applied(&copy(&again, "import"), "3", &PlacementSpec::default());
                assert_eq!(thrice.pointer(pointer), runs.pointer(pointer), "{kind}");
            }
        }
    }
}
