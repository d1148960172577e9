//! What every namespace gets: the `default` ServiceAccount and the cluster's root certificate.

use crate::{
    meta,
    shell::{Action, Cache, Controller, Enqueue, Key, Object, Watch, World},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use std::sync::Arc;

const DEFAULT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
     endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
     distributions of Kubernetes clusters.";

fn is_active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
    namespace.metadata.deletion_timestamp.is_none() && phase != Some("Terminating")
}

pub fn plan_account(namespace: &Namespace, account: Option<&ServiceAccount>) -> Vec<Action> {
    if !is_active(namespace) || account.is_some() {
        return Vec::new();
    }
    vec![meta::create(&ServiceAccount { metadata: named(namespace, DEFAULT), ..ServiceAccount::default() })]
}

pub fn plan_root_ca(namespace: &Namespace, found: Option<&ConfigMap>, ca: &str) -> Vec<Action> {
    if !is_active(namespace) {
        return Vec::new();
    }
    let data = [("ca.crt".to_owned(), ca.to_owned())];
    let Some(found) = found else {
        let mut metadata = named(namespace, ROOT_CA);
        metadata.annotations =
            Some([("kubernetes.io/description".to_owned(), DESCRIPTION.to_owned())].into());
        return vec![meta::create(&ConfigMap { metadata, data: Some(data.into()), ..ConfigMap::default() })];
    };
    if found.data.as_ref() == Some(&data.clone().into()) {
        return Vec::new();
    }
    let mut replaced = found.clone();
    replaced.data = Some(data.into());
    vec![Action::Replace {
        resource: ConfigMap::RESOURCE,
        namespace: meta::name(&namespace.metadata).to_owned(),
        name: ROOT_CA.into(),
        subresource: "",
        body: crate::shell::Json::of(&replaced),
    }]
}

fn named(namespace: &Namespace, name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: namespace.metadata.name.clone(),
        name: Some(name.into()),
        ..ObjectMeta::default()
    }
}

/// Keys are namespaces: enqueued when they change, or when the object we keep in them does.
fn wire<K: Object>(world: &Arc<World>, kept: &Cache<K>, enqueue: Enqueue) {
    let theirs = enqueue.clone();
    world.namespaces.on_change(move |_, new| {
        if let Some(namespace) = new {
            enqueue.add(Key::of(&namespace.metadata));
        }
    });
    kept.on_change(move |old, new| {
        // Ours alone is created by us; what needs a look is a removal or an edit.
        if let (Some(old), _) = (old, new) {
            theirs.add(Key::new("", meta::namespace(old.meta())));
        }
    });
}

pub struct ServiceAccounts;

impl Controller for ServiceAccounts {
    fn name(&self) -> &'static str {
        "serviceaccount"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Namespaces, Watch::ServiceAccounts]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        wire(world, &world.service_accounts, enqueue);
    }

    fn plan(&self, key: &Key, world: &World, _now: Timestamp) -> Vec<Action> {
        let Some(namespace) = world.namespaces.get(key) else { return Vec::new() };
        plan_account(&namespace, world.service_accounts.get(&Key::new(&key.name, DEFAULT)).as_deref())
    }
}

pub struct RootCa {
    pub ca: String,
}

impl Controller for RootCa {
    fn name(&self) -> &'static str {
        "root-ca"
    }

    fn watches(&self) -> &'static [Watch] {
        &[Watch::Namespaces, Watch::RootCas]
    }

    fn wire(&self, world: &Arc<World>, enqueue: Enqueue) {
        wire(world, &world.config_maps, enqueue);
    }

    fn plan(&self, key: &Key, world: &World, _now: Timestamp) -> Vec<Action> {
        let Some(namespace) = world.namespaces.get(key) else { return Vec::new() };
        plan_root_ca(&namespace, world.config_maps.get(&Key::new(&key.name, ROOT_CA)).as_deref(), &self.ca)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use proptest::prelude::*;
    use serde_json::json;

    fn namespace(phase: &str) -> Namespace {
        serde_json::from_value(json!({"metadata": {"name": "a"}, "status": {"phase": phase}})).unwrap()
    }

    #[test]
    fn an_active_namespace_gets_both_and_a_terminating_one_neither() {
        assert_eq!(plan_account(&namespace("Active"), None).len(), 1);
        assert_eq!(plan_root_ca(&namespace("Active"), None, "pem").len(), 1);
        assert!(plan_account(&namespace("Terminating"), None).is_empty());
        assert!(plan_root_ca(&namespace("Terminating"), None, "pem").is_empty());
    }

    #[test]
    fn an_edited_root_certificate_is_put_back() {
        let found: ConfigMap = serde_json::from_value(json!({"data": {"ca.crt": "mine"}})).unwrap();
        let plan = plan_root_ca(&namespace("Active"), Some(&found), "pem");
        let [Action::Replace { body, .. }] = plan.as_slice() else { panic!("{plan:?}") };
        assert_eq!(body.read::<ConfigMap>().unwrap().data.unwrap()["ca.crt"], "pem");
        let same: ConfigMap = serde_json::from_value(json!({"data": {"ca.crt": "pem"}})).unwrap();
        assert!(plan_root_ca(&namespace("Active"), Some(&same), "pem").is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn once_is_enough_and_a_namespace_that_goes_is_left_alone(
            active in any::<bool>(), account in any::<bool>(), data in prop::option::of(prop::collection::btree_map("(ca.crt|more)", "(pem|mine)", 0..3)),
        ) {
            let mut model = Model::default();
            if account {
                model.add::<ServiceAccount>(json!({"metadata": {"name": DEFAULT, "namespace": "a"}, "secrets": [{"name": "theirs"}]}));
            }
            if let Some(data) = data {
                model.add::<ConfigMap>(json!({"metadata": {"name": ROOT_CA, "namespace": "a"}, "data": data}));
            }
            let namespace = namespace(if active { "Active" } else { "Terminating" });
            let look = |model: &Model| {
                let mut actions = plan_account(&namespace, model.get::<ServiceAccount>(DEFAULT).as_deref());
                actions.extend(plan_root_ca(&namespace, model.get::<ConfigMap>(ROOT_CA).as_deref(), "pem"));
                actions
            };
            let first = look(&model);
            prop_assert!(active || first.is_empty());
            first.iter().for_each(|action| model.apply(action));
            prop_assert_eq!(look(&model), vec![]);
            if active {
                let data = model.get::<ConfigMap>(ROOT_CA).unwrap().data.clone().unwrap();
                prop_assert_eq!(data, [("ca.crt".to_owned(), "pem".to_owned())].into());
                let kept = model.get::<ServiceAccount>(DEFAULT).unwrap().secrets.is_some();
                prop_assert_eq!(kept, account, "an account that is there stays as it is");
            }
        }
    }
}
