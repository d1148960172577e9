//! Which Placement an object follows.

use std::collections::BTreeMap;

use serde_json::Value;
use tombolo_api::{ObjectSelector, Placement, names};

use crate::object::{Key, annotation, is_workload, strings};

/// What places an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice<'a> {
    By(&'a Placement),
    /// Its user said `tombolo.dev/placement: none`, or it is no workload and nothing selects it.
    Nowhere,
    /// A workload that should run somewhere and that nothing places; the text tells the user what to do.
    Unplaced(String),
}

/// The annotation decides; then the most specific Placement of the namespace; then the hub's default, for workloads.
pub fn choose<'a>(
    key: &Key,
    object: &Value,
    placements: &'a BTreeMap<(String, String), Placement>,
) -> Choice<'a> {
    let named = annotation(object, names::PLACEMENT_ANNOTATION);
    if named == "none" || key.is_internal() {
        return Choice::Nowhere;
    }
    if !named.is_empty() {
        return match placements.get(&(key.home().to_owned(), named.to_owned())) {
            Some(placement) => Choice::By(placement),
            None => Choice::Unplaced(format!(
                "there is no Placement {named} in namespace {}; create it or change the annotation {}",
                key.home(),
                names::PLACEMENT_ANNOTATION
            )),
        };
    }
    let labels = strings(object, "/metadata/labels");
    let home = |placement: &Placement| placement.metadata.namespace.as_deref() == Some(key.home());
    let best = placements
        .values()
        .filter(|p| home(p) && !is_default(p))
        .filter_map(|p| Some((fit(key, &labels, &p.spec.objects)?, p)))
        .max_by(|(a, p), (b, q)| a.cmp(b).then_with(|| q.metadata.name.cmp(&p.metadata.name)));
    if let Some((_, placement)) = best {
        return Choice::By(placement);
    }
    if !is_workload(key) {
        return Choice::Nowhere;
    }
    match placements.get(&(names::SYSTEM_NAMESPACE.to_owned(), names::DEFAULT_PLACEMENT.to_owned())) {
        Some(default) if default.spec.objects.is_empty() => Choice::By(default),
        Some(default) if fit(key, &labels, &default.spec.objects).is_some() => Choice::By(default),
        _ => Choice::Unplaced(format!(
            "no Placement in namespace {} selects it and the hub has no default placement; create a Placement",
            key.namespace
        )),
    }
}

fn is_default(placement: &Placement) -> bool {
    placement.metadata.namespace.as_deref() == Some(names::SYSTEM_NAMESPACE)
        && placement.metadata.name.as_deref() == Some(names::DEFAULT_PLACEMENT)
}

/// How specifically the selectors name the object; `None`: not at all.
fn fit(key: &Key, labels: &BTreeMap<String, String>, selectors: &[ObjectSelector]) -> Option<u8> {
    if selectors.is_empty() {
        return is_workload(key).then_some(0);
    }
    let weight = |s: &ObjectSelector| {
        u8::from(s.name.is_some()) * 4 + u8::from(s.labels.is_some()) * 2 + u8::from(s.kind.is_some())
    };
    selectors
        .iter()
        .filter(|s| s.matches(&key.api_version, &key.kind, &key.name, labels))
        .map(|s| 1 + weight(s))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tombolo_api::PlacementSpec;

    fn placements(all: &[(&str, &str, Vec<ObjectSelector>)]) -> BTreeMap<(String, String), Placement> {
        let make = |(namespace, name, objects): &(&str, &str, Vec<ObjectSelector>)| {
            let mut placement =
                Placement::new(name, PlacementSpec { objects: objects.clone(), ..Default::default() });
            placement.metadata.namespace = Some((*namespace).into());
            (((*namespace).into(), (*name).into()), placement)
        };
        all.iter().map(make).collect()
    }

    fn by(choice: &Choice<'_>) -> String {
        match choice {
            Choice::By(p) => p.metadata.name.clone().unwrap_or_default(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_most_specific_placement_of_the_namespace_wins_over_the_default() {
        let named = ObjectSelector { name: Some("web".into()), ..Default::default() };
        let kind = ObjectSelector { kind: Some("Deployment".into()), ..Default::default() };
        let all = placements(&[
            ("tombolo-system", "default", vec![]),
            ("shop", "all", vec![]),
            ("shop", "kind", vec![kind]),
            ("shop", "named", vec![named]),
        ]);
        let object = json!({"metadata": {"name": "web", "namespace": "shop"}});
        assert_eq!(by(&choose(&Key::new("apps/v1", "Deployment", "shop", "web"), &object, &all)), "named");
        assert_eq!(by(&choose(&Key::new("apps/v1", "Deployment", "shop", "x"), &object, &all)), "kind");
        assert_eq!(by(&choose(&Key::new("batch/v1", "Job", "shop", "x"), &object, &all)), "all");
        assert_eq!(by(&choose(&Key::new("batch/v1", "Job", "other", "x"), &object, &all)), "default");
    }

    #[test]
    fn configuration_travels_only_when_named_and_a_workload_without_placement_says_so() {
        let object = json!({"metadata": {"name": "c", "namespace": "shop"}});
        let config = Key::new("v1", "ConfigMap", "shop", "c");
        assert_eq!(choose(&config, &object, &placements(&[("shop", "all", vec![])])), Choice::Nowhere);
        let workload = Key::new("apps/v1", "Deployment", "shop", "c");
        assert!(matches!(choose(&workload, &object, &placements(&[])), Choice::Unplaced(_)));
    }

    #[test]
    fn an_object_can_be_kept_at_home_or_sent_by_name() {
        let all = placements(&[("shop", "a", vec![]), ("shop", "b", vec![])]);
        let key = Key::new("apps/v1", "Deployment", "shop", "web");
        let with = |name: &str| json!({"metadata": {"annotations": {names::PLACEMENT_ANNOTATION: name}}});
        assert_eq!(choose(&key, &with("none"), &all), Choice::Nowhere);
        assert_eq!(by(&choose(&key, &with("b"), &all)), "b");
        assert!(matches!(choose(&key, &with("missing"), &all), Choice::Unplaced(_)));
    }
}
