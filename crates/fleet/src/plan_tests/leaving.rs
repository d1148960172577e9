//! Sites that are being removed.

use super::*;

fn leaving(name: &str, what: Option<&str>) -> Site {
    let mut site = site(name, "8");
    site.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    site.metadata.annotations = what.map(|what| [(names::ON_REMOVE_ANNOTATION.into(), what.into())].into());
    site
}

#[test]
fn what_a_removed_site_is_to_keep_gets_no_tombstone() {
    for (what, buried) in [(Some("keep"), false), (None, true)] {
        let mut index = fleet(&["a", "b"], prefer_a());
        index.put_object(key(), deployment(2, 1));
        step(&mut index, NOW);
        all_run(&mut index);
        assert_eq!(shares(&index), BTreeMap::from([("a".into(), 2)]));
        index.put_site(leaving("a", what), at(NOW));
        for _ in 0..3 {
            step(&mut index, NOW + 1);
        }
        let at_a = index.works_of(&key()).find(|(site, _)| *site == "a").expect("a Work").1.clone();
        assert_eq!(at_a.tombstone.is_some(), buried, "{what:?}");
        assert_eq!(shares(&index)["b"], 2, "{what:?}: the hub has its replicas elsewhere");
    }
}
