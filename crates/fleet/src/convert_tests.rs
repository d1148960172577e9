use tombolo_api::Location;

use super::*;

/// Each of the first four sites is alone in one domain, and with all the others in the rest of them.
fn sites() -> Vec<engine::SiteView> {
    ["region", "zone", "provider", "tier", "none"]
        .into_iter()
        .map(|alone| {
            let in_domain = |domain: &str| Some(if domain == alone { "own" } else { "shared" }.to_owned());
            let location =
                Location { region: in_domain("region"), zone: in_domain("zone"), ..Default::default() };
            let tier = if alone == "tier" { Tier::Edge } else { Tier::Cloud };
            let spec = SiteSpec { tier, location, provider: in_domain("provider"), ..Default::default() };
            site_view(alone, &Site::new(alone, spec), Vec::new(), None, &[])
        })
        .collect()
}

/// Replicas per site, of eight.
fn placed(yaml: &str) -> BTreeMap<String, u32> {
    let placement: tombolo_api::Placement = serde_yaml_ng::from_str(yaml).expect("a Placement");
    let rule = rule(&placement.spec, Nature::Replicated, &BTreeSet::new());
    let request = engine::Request { replicas: 8, ..Default::default() };
    let decision = engine::place(&sites(), &rule, &request);
    decision.sites.iter().map(|place| (place.site.clone(), place.replicas)).collect()
}

#[test]
fn replicas_are_spread_over_the_domains_that_a_placement_names() {
    for by in ["region", "zone", "provider", "tier"] {
        let found = placed(&format!(
            "apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {{name: wide, namespace: shop}}
spec:
  spread:
  - by: {by}
    maxSkew: 1
"
        ));
        // Half of them in either domain: the site that is alone in its own has as many as the other four.
        for (site, replicas) in &found {
            assert_eq!(*replicas, if site == by { 4 } else { 1 }, "at site {site}, by {by}");
        }
    }
}

#[test]
fn replicas_are_spread_over_sites() {
    let found = placed(
        "apiVersion: tombolo.dev/v1alpha1
kind: Placement
metadata: {name: wide, namespace: shop}
spec:
  spread:
  - by: site
    min: 5
    maxSkew: 1
",
    );
    assert!(found.len() == 5 && found.values().all(|replicas| (1..=2).contains(replicas)), "{found:?}");
}
