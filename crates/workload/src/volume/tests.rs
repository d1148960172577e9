use super::*;
use crate::model::Model;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

fn class() -> Option<Arc<StorageClass>> {
    let class = json!({
        "metadata": {"name": "local"}, "provisioner": PROVISIONER, "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    Some(Arc::new(serde_json::from_value(class).unwrap()))
}

fn build(selected: bool) -> Model {
    let mut model = Model::default();
    model.add::<PersistentVolumeClaim>(json!({
        "metadata": {
            "name": "c", "namespace": "n", "uid": "u",
            "annotations": if selected { json!({crate::scheduler::SELECTED_NODE: "a"}) } else { json!({}) },
        },
        "spec": {
            "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        },
    }));
    model
}

fn step(model: &mut Model) {
    let node: Node =
        serde_json::from_value(json!({"metadata": {"name": "a", "labels": {"kubernetes.io/hostname": "a"}}}))
            .unwrap();
    let claim = model.get::<PersistentVolumeClaim>("c").unwrap();
    let selected = meta::annotation(&claim.metadata, crate::scheduler::SELECTED_NODE).is_some();
    let snapshot = Snapshot {
        claim,
        class: class(),
        volumes: model.list::<PersistentVolume>(),
        node: selected.then(|| Arc::new(node)),
        volume_dir: "/v".into(),
    };
    plan(&snapshot).iter().for_each(|action| model.apply(action));
    for volume in model.list::<PersistentVolume>() {
        plan_volume(&volume, model.get::<PersistentVolumeClaim>("c").as_deref())
            .iter()
            .for_each(|a| model.apply(a));
    }
}

#[test]
fn a_claim_waits_for_its_node_and_then_gets_a_directory_there() {
    let mut model = build(false);
    step(&mut model);
    assert!(model.list::<PersistentVolume>().is_empty());
    let mut model = build(true);
    for _ in 0..4 {
        step(&mut model);
    }
    let volume = model.get::<PersistentVolume>("pvc-u").unwrap();
    assert_eq!(volume.spec.as_ref().unwrap().host_path.as_ref().unwrap().path, "/v/pvc-u");
    assert_eq!(volume.status.as_ref().unwrap().phase.as_deref(), Some("Bound"));
    assert!(is_bound(&model.get::<PersistentVolumeClaim>("c").unwrap()));
}

#[test]
fn the_smallest_volume_that_fits_is_taken_before_one_is_made() {
    let mut model = build(true);
    for (name, size, node) in
        [("big", "9Gi", "a"), ("fits", "2Gi", "a"), ("small", "100Mi", "a"), ("far", "1Gi", "b")]
    {
        model.add::<PersistentVolume>(json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}},
            },
        }));
    }
    for _ in 0..4 {
        step(&mut model);
    }
    let claim = model.get::<PersistentVolumeClaim>("c").unwrap();
    assert_eq!(claim.spec.as_ref().unwrap().volume_name.as_deref(), Some("fits"));
    assert!(is_bound(&claim));
}

#[test]
fn a_released_volume_of_ours_goes_and_one_made_by_hand_stays() {
    let mut model = build(true);
    for _ in 0..4 {
        step(&mut model);
    }
    let volume = model.get::<PersistentVolume>("pvc-u").unwrap();
    assert!(plan_volume(&volume, None).iter().any(|action| matches!(action, Action::Delete { .. })));
    model.merge::<PersistentVolume>("pvc-u", json!({"metadata": {"annotations": {PROVISIONED_BY: null}}}));
    let volume = model.get::<PersistentVolume>("pvc-u").unwrap();
    assert!(!plan_volume(&volume, None).iter().any(|action| matches!(action, Action::Delete { .. })));
}

#[test]
fn sizes_are_read_with_their_units() {
    let size = |text: &str| bind::size(&Quantity(text.into()));
    assert_eq!(size("1Gi"), 1 << 30);
    assert_eq!(size("1.5Ki"), 1536);
    assert_eq!(size("2M"), 2_000_000);
    assert_eq!(size("7"), 7);
}
