//! One root object, rendered for one site.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tombolo_api::{
    DivideBy, HubRef, LeaseTerms, ObjectRef, ObjectSelector, PlacementSpec, ReplicasMode, SpreadBy, Weight,
    WorkSpec, names,
};

use crate::intent::intent;
use crate::object::{Key, Nature, Object, annotation, nature, number, template_pointer, text, work_name};
use crate::overrides::{self, OverrideError};
use crate::parts;

/// A Work may not be larger.
pub const MOST: usize = 512 << 10;
/// Seconds a pod of an at-most-once workload may run without a renewed lease, where nothing else is said.
pub const LEASE_SECONDS: i64 = 40;
/// A lease leaves at least so many seconds between two renewals, however long the pod may take to stop.
const LEAST_RUN: i64 = 10;

#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error(transparent)]
    Override(#[from] OverrideError),
    #[error(
        "{object} with what it needs is {size} bytes, a Work holds {MOST}; move large files out of ConfigMaps and Secrets"
    )]
    TooLarge { object: String, size: usize },
}

/// Where a Work goes and with what.
pub struct Target<'a> {
    pub site: &'a str,
    pub spec: &'a tombolo_api::SiteSpec,
    pub labels: &'a BTreeMap<String, String>,
    pub groups: &'a [String],
    /// Replicas for this site; `None` for kinds without.
    pub replicas: Option<i64>,
    /// First ordinal of a StatefulSet whose replicas are shared out.
    pub first_ordinal: i64,
    /// What each chosen part of a hub below gets.
    pub parts: &'a [PartShare],
}

/// A part of a hub below with the replicas meant for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartShare {
    pub name: String,
    pub replicas: i64,
    /// How many sites are in it.
    pub sites: i64,
}

/// The Work for `root` at `target`. `needs` are the objects it names, in any order.
pub fn render(
    root: &Value,
    needs: &[Object],
    placement: &PlacementSpec,
    target: &Target<'_>,
    hub: &HubRef,
) -> Result<WorkSpec, RenderError> {
    let key = Key::of(root).unwrap_or_else(|| Key::new("", "", "", ""));
    let uid = text(root, "/metadata/uid");
    let work = work_name(&key, uid);
    let below = !target.spec.hubs.is_empty();
    let mine = || {
        let matches = |o: &&tombolo_api::Override| {
            o.sites.matches(target.site, target.spec, target.labels, target.groups)
                && !(below && passed_on(o))
        };
        placement.overrides.iter().enumerate().filter(move |(_, o)| matches(o))
    };
    let adopt = placement.adopt || annotation(root, names::ADOPT_ANNOTATION) == "true";
    let mut object = intent(root);
    set_replicas(&mut object, &key, placement, target);
    overrides::apply(&mut object, true, mine())?;
    let lease = at_most_once(&mut object, &key.kind, placement, &hub.id);
    // A label in the template lets the site find the pods; what is taken over keeps its template, so that nothing restarts.
    if !adopt {
        label_template(&mut object, &key.kind, &work);
    }
    if below {
        object["metadata"]["annotations"][PATH_ANNOTATION] = json!(hub.path.join(","));
    }
    let mut with = Vec::new();
    for need in needs {
        let mut need = intent(need);
        overrides::apply(&mut need, false, mine())?;
        with.push(need);
    }
    let delegate = below.then(|| delegated(placement, &key, target));
    if let Some(spec) = &delegate {
        with.push(json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Placement",
            "metadata": {"name": work, "namespace": key.home()}, "spec": spec}));
        object["metadata"]["annotations"][names::PLACEMENT_ANNOTATION] = json!(work);
    }
    let spec = WorkSpec {
        root: ObjectRef {
            api_version: key.api_version.clone(),
            kind: key.kind.clone(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: uid.to_owned(),
            generation: number(root, "/metadata/generation"),
        },
        hub: hub.clone(),
        object,
        with,
        replicas: if placement.site_scales { None } else { target.replicas },
        drift: placement.drift,
        adopt,
        tombstone: None,
        delegate: delegate.map(|spec| json!(spec)),
        lease,
    };
    let size = serde_json::to_vec(&spec).map_or(0, |bytes| bytes.len());
    if size > MOST { Err(RenderError::TooLarge { object: key.to_string(), size }) } else { Ok(spec) }
}

/// On an object given to a hub below: the hubs it came through.
pub const PATH_ANNOTATION: &str = "path.tombolo.dev/hubs";

fn set_replicas(object: &mut Value, key: &Key, placement: &PlacementSpec, target: &Target<'_>) {
    if nature(&key.api_version, &key.kind) != Nature::Replicated {
        return;
    }
    if placement.site_scales {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            spec.remove("replicas");
        }
    } else if let Some(replicas) = target.replicas {
        object["spec"]["replicas"] = json!(replicas);
        // Shared-out replicas keep names of their own: pods are numbered over all sites.
        if key.kind == "StatefulSet" && target.first_ordinal != number(object, "/spec/ordinals/start") {
            object["spec"]["ordinals"] = json!({"start": target.first_ordinal});
        }
    }
}

fn label_template(object: &mut Value, kind: &str, work: &str) {
    let Some(pointer) = template_pointer(kind) else { return };
    if let Some(template) = object.pointer_mut(pointer) {
        template["metadata"]["labels"][names::WORK_LABEL] = json!(work);
    }
}

fn at_most_once(object: &mut Value, kind: &str, placement: &PlacementSpec, hub: &str) -> Option<LeaseTerms> {
    if !placement.failover.at_most_once {
        return None;
    }
    let pointer = template_pointer(kind)?;
    let template = object.pointer_mut(pointer)?;
    let terms = lease_terms(template, placement);
    template["metadata"]["annotations"][names::AT_MOST_ONCE_ANNOTATION] = json!(terms.seconds.to_string());
    // Whose lease counts, where a site is tied to several hubs.
    template["metadata"]["annotations"][names::HUB_LABEL] = json!(names::hub_label(hub));
    Some(terms)
}

/// How long a pod of this template may run unheard, where the placement says that it may run at most once.
pub fn lease_terms(template: &Value, placement: &PlacementSpec) -> LeaseTerms {
    let stop = template.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30);
    let wished = placement.failover.lease_seconds.unwrap_or(LEASE_SECONDS);
    LeaseTerms { seconds: wished.max(stop.max(0) + LEAST_RUN), stop_seconds: stop, before_seconds: None }
}

/// Names and labels of sites mean something only at the hub that knows them; all else is decided at the site itself,
/// which may be further below.
fn passed_on(change: &tombolo_api::Override) -> bool {
    change.sites.names.is_empty()
        && change.sites.exclude.is_empty()
        && change.sites.labels.is_none()
        && change.sites != Default::default()
}

/// What a hub below must decide itself: how to share out its replicas over the places it was given them for.
fn delegated(placement: &PlacementSpec, key: &Key, target: &Target<'_>) -> PlacementSpec {
    let nature = nature(&key.api_version, &key.kind);
    let replicated = nature == Nature::Replicated && placement.replicas.mode == ReplicasMode::Divide;
    let given: Vec<&PartShare> = target
        .parts
        .iter()
        .filter(|part| !part.name.is_empty() && (part.replicas > 0 || !replicated))
        .collect();
    let mut spec = placement.clone();
    spec.objects = vec![ObjectSelector {
        api_version: Some(key.api_version.clone()),
        kind: Some(key.kind.clone()),
        name: Some(key.name.clone()),
        labels: None,
    }];
    spec.sites = parts::union(given.iter().map(|part| part.name.as_str()));
    spec.overrides.retain(passed_on);
    if spec.replicas.copies.is_some() {
        spec.replicas.copies = Some(i64::try_from(given.len()).unwrap_or(1).max(1));
    }
    if !replicated {
        return spec;
    }
    // What was spread over places here is not spread again there; within one place it still is.
    spec.spread.retain(|s| given.len() == 1 && s.by == SpreadBy::Site);
    spec.spread.iter_mut().for_each(|s| (s.min, s.max) = (None, None));
    if given.len() > 1 {
        let weight = |part: &PartShare| Weight {
            sites: parts::selector(&part.name).unwrap_or_default(),
            weight: part.replicas * WEIGHT / part.sites.max(1),
        };
        spec.prefer = Vec::new();
        spec.replicas.divide_by = DivideBy::Weight;
        spec.replicas.weights = given.iter().map(|part| weight(part)).collect();
        // A place that was given nothing gets nothing.
        spec.replicas.weights.push(Weight::default());
    }
    spec
}

/// The weight of one replica; large, because a part's weight is shared by its sites.
const WEIGHT: i64 = 1000;

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
