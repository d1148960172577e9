use super::*;
use std::sync::Arc;
use tombolo_api::{Override, SiteSelector, SiteSpec};

fn root(kind: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "generation": 4},
        "spec": {"replicas": 6, "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}},
        "status": {"replicas": 6}})
}

fn target<'a>(spec: &'a SiteSpec, labels: &'a BTreeMap<String, String>, replicas: i64) -> Target<'a> {
    Target { site: "a", spec, labels, groups: &[], replicas: Some(replicas), first_ordinal: 3, parts: &[] }
}

fn hub() -> HubRef {
    HubRef { id: "h".into(), epoch: 2, path: vec!["h".into()] }
}

#[test]
fn a_work_carries_the_site_s_share_the_generation_and_what_is_needed() {
    let (spec, labels) = (SiteSpec::default(), BTreeMap::new());
    let need = Arc::new(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "shop", "uid": "x"}, "data": {"a": "b"}}),
    );
    let work =
        render(&root("Deployment"), &[need], &PlacementSpec::default(), &target(&spec, &labels, 2), &hub())
            .expect("fits");
    assert_eq!(
        (work.replicas, work.object["spec"]["replicas"].as_i64(), work.root.generation),
        (Some(2), Some(2), 4)
    );
    assert_eq!(
        work.with,
        [
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "shop"}, "data": {"a": "b"}})
        ]
    );
    let name = work_name(&Key::of(&root("Deployment")).expect("named"), "u1");
    assert_eq!(work.object.pointer("/spec/template/metadata/labels/tombolo.dev~1work"), Some(&json!(name)));
    assert_eq!(work.object.get("status"), None);
}

#[test]
fn replicas_are_left_out_where_the_site_scales() {
    let (spec, labels) = (SiteSpec::default(), BTreeMap::new());
    let placement = PlacementSpec { site_scales: true, ..Default::default() };
    let work =
        render(&root("Deployment"), &[], &placement, &target(&spec, &labels, 2), &hub()).expect("fits");
    assert_eq!((work.replicas, work.object["spec"].get("replicas")), (None, None));
}

#[test]
fn pods_of_a_divided_stateful_set_are_numbered_over_all_sites() {
    let (spec, labels) = (SiteSpec::default(), BTreeMap::new());
    let work =
        render(&root("StatefulSet"), &[], &PlacementSpec::default(), &target(&spec, &labels, 2), &hub())
            .expect("fits");
    assert_eq!(work.object["spec"]["ordinals"], json!({"start": 3}));
}

#[test]
fn what_is_taken_over_keeps_its_template() {
    let (spec, labels) = (SiteSpec::default(), BTreeMap::new());
    let placement = PlacementSpec { adopt: true, ..Default::default() };
    let work =
        render(&root("Deployment"), &[], &placement, &target(&spec, &labels, 2), &hub()).expect("fits");
    assert_eq!(work.object.pointer("/spec/template/metadata/labels"), Some(&json!({"app": "web"})));
}

#[test]
fn overrides_for_other_sites_do_not_count() {
    let (spec, labels) = (SiteSpec::default(), BTreeMap::new());
    let change = |site: &str| Override {
        sites: SiteSelector { names: vec![site.into()], ..Default::default() },
        labels: [("for".to_owned(), site.to_owned())].into(),
        ..Default::default()
    };
    let placement = PlacementSpec { overrides: vec![change("b"), change("a")], ..Default::default() };
    let work =
        render(&root("Deployment"), &[], &placement, &target(&spec, &labels, 2), &hub()).expect("fits");
    assert_eq!(work.object["metadata"]["labels"], json!({"for": "a"}));
}

#[test]
fn a_hub_below_gets_the_part_of_the_placement_it_must_decide() {
    let (spec, labels) = (SiteSpec { hubs: vec!["below".into()], ..Default::default() }, BTreeMap::new());
    let part = |name: &str, replicas, sites| PartShare { name: name.into(), replicas, sites };
    let parts = [part("edge:north//", 4, 2), part("cloud:south//EU", 2, 1), part("fog:west//", 0, 3)];
    let mut target = target(&spec, &labels, 6);
    target.parts = &parts;
    let for_edge = Override {
        sites: SiteSelector { tiers: vec![tombolo_api::Tier::Edge], ..Default::default() },
        labels: [("where".to_owned(), "edge".to_owned())].into(),
        ..Default::default()
    };
    let placement = PlacementSpec {
        sites: SiteSelector { names: vec!["a".into()], ..Default::default() },
        overrides: vec![for_edge],
        ..Default::default()
    };
    let work = render(&root("Deployment"), &[], &placement, &target, &hub()).expect("fits");
    let given = work.with.last().expect("a Placement");
    assert_eq!(given["kind"], "Placement");
    // Sites share the weight of their part, and a part that was given nothing has none.
    let weights = &given["spec"]["replicas"]["weights"];
    assert_eq!((&weights[0]["weight"], &weights[0]["sites"]["regions"]), (&json!(2000), &json!(["north"])));
    assert_eq!(
        (&weights[1]["weight"], &weights[1]["sites"]["jurisdictions"]),
        (&json!(2000), &json!(["EU"]))
    );
    assert_eq!(weights[2], json!({"weight": 0, "sites": {}}));
    // Names of sites stay here; an override by place is made where the place is.
    assert_eq!(given["spec"]["sites"].get("names"), None);
    assert_eq!(given["spec"]["overrides"][0]["labels"]["where"], "edge");
    assert_eq!(work.object["metadata"].get("labels"), None);
    assert_eq!(work.object["metadata"]["annotations"][PATH_ANNOTATION], "h");
}

#[test]
fn a_hub_below_that_was_given_one_place_divides_there_as_the_placement_says() {
    let (spec, labels) = (SiteSpec { hubs: vec!["below".into()], ..Default::default() }, BTreeMap::new());
    let parts = [PartShare { name: "edge:north//".into(), replicas: 4, sites: 2 }];
    let mut target = target(&spec, &labels, 4);
    target.parts = &parts;
    let spread = tombolo_api::Spread { max_skew: Some(1), min: Some(3), ..Default::default() };
    let mut placement = PlacementSpec { spread: vec![spread], ..Default::default() };
    placement.replicas.divide_by = DivideBy::Pack;
    let work = render(&root("Deployment"), &[], &placement, &target, &hub()).expect("fits");
    let given = &work.with.last().expect("a Placement")["spec"];
    assert_eq!(given["replicas"]["divideBy"], "Pack");
    assert_eq!(given["sites"]["regions"], json!(["north"]));
    assert_eq!(given["spread"], json!([{"by": "site", "maxSkew": 1}]));
}

#[test]
fn a_work_that_is_too_large_is_refused_with_its_size() {
    let (spec, labels) = (SiteSpec::default(), BTreeMap::new());
    let need = Arc::new(json!({"kind": "ConfigMap", "data": {"a": "x".repeat(MOST)}}));
    let error =
        render(&root("Deployment"), &[need], &PlacementSpec::default(), &target(&spec, &labels, 2), &hub())
            .expect_err("too large");
    assert!(error.to_string().contains("deployment/web in shop"), "{error}");
}

#[test]
fn an_at_most_once_pod_carries_its_deadline() {
    let (spec, labels) = (SiteSpec::default(), BTreeMap::new());
    let mut placement = PlacementSpec::default();
    placement.failover.at_most_once = true;
    let work =
        render(&root("Deployment"), &[], &placement, &target(&spec, &labels, 1), &hub()).expect("fits");
    assert_eq!(work.lease, Some(LeaseTerms { seconds: 40, stop_seconds: 30, before_seconds: None }));
    assert_eq!(
        work.object.pointer("/spec/template/metadata/annotations/tombolo.dev~1at-most-once-seconds"),
        Some(&json!("40"))
    );
}
