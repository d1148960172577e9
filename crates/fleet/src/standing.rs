//! What a Placement says about itself: how many objects it places, and which of them could not be.

use std::collections::{BTreeMap, HashMap};

use kube::Error;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tombolo_api::{Condition, Placement, PlacementStatus};

use crate::config::FleetConfig;
use crate::decide::Decided;
use crate::index::Index;
use crate::object::Key;

/// Names in one message; the rest is a number.
const NAMED: usize = 3;

/// The status of every Placement whose status is not what it should be.
pub fn news(index: &Index, now: &str) -> Vec<((String, String), PlacementStatus)> {
    let mut placed: HashMap<&(String, String), BTreeMap<&Key, &Decided>> = HashMap::new();
    for (key, decided) in &index.decided {
        placed.entry(&decided.by).or_default().insert(key, decided);
    }
    let nothing = BTreeMap::new();
    let one = |(id, placement): (&(String, String), &Placement)| {
        let before = placement.status.clone().unwrap_or_default();
        let mut after = before.clone();
        let objects = placed.get(id).unwrap_or(&nothing);
        after.objects = i64::try_from(objects.len()).unwrap_or(i64::MAX);
        condition(objects, now).set(&mut after.conditions);
        (after != before).then(|| (id.clone(), after))
    };
    index.placements.iter().filter_map(one).collect()
}

fn condition(objects: &BTreeMap<&Key, &Decided>, now: &str) -> Condition {
    let short: Vec<_> = objects.iter().filter(|(_, d)| d.unplaced > 0 || d.sites.is_empty()).collect();
    let mut named: Vec<String> =
        short.iter().take(NAMED).map(|(key, d)| format!("{key}: {}", d.summary)).collect();
    if short.len() > NAMED {
        named.push(format!("and {} more", short.len() - NAMED));
    }
    let (status, reason, message) = match (objects.len(), short.is_empty()) {
        (0, _) => ("True", "Nothing", "nothing follows it".to_owned()),
        (_, true) => ("True", "Placed", "all of them are placed".to_owned()),
        (_, false) => ("False", "NoRoom", named.join("; ")),
    };
    Condition {
        r#type: "Placed".into(),
        status: status.into(),
        reason: reason.into(),
        message,
        last_transition_time: now.into(),
    }
}

pub async fn show(
    config: &FleetConfig,
    id: &(String, String),
    status: &PlacementStatus,
) -> Result<(), Error> {
    let api: Api<Placement> = Api::namespaced(config.client.clone(), &id.0);
    let patch = Patch::Merge(json!({ "status": status }));
    match api.patch_status(&id.1, &PatchParams::default(), &patch).await {
        Err(Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
