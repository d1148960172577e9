//! `tombolo explain place`: the decision about one object, made again from what the API says now, with every site's reason.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};
use tombolo_api::{Placement, Site, SiteGroup, Work, names};
use tombolo_placement::sites::{Decision, Explanation};

use crate::choose::{Choice, choose};
use crate::clock::Moment;
use crate::decide::decision;
use crate::index::Index;
use crate::kinds;
use crate::object::Key;
use crate::stuck::STUCK;
use crate::watches::as_json;

/// What is known about the place of one object. People read its `Display`, programs its [`Explained::json`]: both are
/// made from the decision itself.
#[derive(Clone, Debug)]
pub enum Explained {
    Placed {
        /// Namespace and name of the Placement that it follows.
        by: String,
        decision: Decision,
    },
    /// With the reason, as a sentence.
    NotPlaced(String),
}

impl Explained {
    /// The sites that the decision speaks of, each once.
    pub fn sites(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.lines().iter().map(|line| line.site.as_str()).collect();
        names.dedup();
        names
    }

    /// Numbers that the table shows as `-` are `null`.
    pub fn json(&self) -> Value {
        match self {
            Self::NotPlaced(why) => json!({"placement": null, "sites": [], "summary": why}),
            Self::Placed { by, decision } => json!({
                "placement": by,
                "sites": decision.sites.iter().map(line).collect::<Vec<_>>(),
                "wanted": decision.wanted,
                "unplaced": decision.unplaced,
                "moved": decision.moved,
                "waiting": decision.waiting,
                "summary": decision.to_string(),
                "notes": decision.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            }),
        }
    }

    fn lines(&self) -> &[Explanation] {
        match self {
            Self::Placed { decision, .. } => &decision.sites,
            Self::NotPlaced(_) => &[],
        }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Placed { by, decision } => write!(f, "placed by Placement {by}\n\n{}", decision.table()),
            Self::NotPlaced(why) => writeln!(f, "{why}"),
        }
    }
}

fn line(place: &Explanation) -> Value {
    let mut line = json!({
        "site": place.site,
        "chosen": place.chosen,
        "replicas": place.replicas,
        "fits": place.fits,
        "preference": place.preference.map(|rank| rank + 1),
        "score": place.preference.map(|_| place.score),
        "why": place.reason.to_string(),
    });
    if !place.part.is_empty() {
        line["part"] = json!(place.part);
    }
    if place.before != place.replicas {
        line["was"] = json!(place.before);
    }
    line
}

/// Asks the hub behind `client` for all that the decision depends on, and makes it.
pub async fn explain(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: &str,
    name: &str,
    lease_seconds: i64,
) -> Result<Explained, Error> {
    let resource = kinds::resource(client, api_version, kind).await?;
    let root = kinds::objects(client, &resource, namespace).get(name).await?;
    let root = as_json(root, api_version, kind);
    let key = Key::new(api_version, kind, namespace, name);
    let all = ListParams::default();
    let leases = all.clone().fields(&format!("metadata.name={}", names::SITE_LEASE));
    let leases = Api::<Lease>::all(client.clone()).list(&leases).await?.items;
    let agreed = leases.iter().filter_map(|l| l.spec.as_ref()?.lease_duration_seconds).max();
    // Made from what the API says: here the clock of whoever asks is all there is, and a site that is ready is not silent.
    let wall = jiff::Timestamp::now().as_second();
    let now = Moment { steady: wall, wall };
    let mut index =
        Index::new(Default::default(), false, Moment::default(), agreed.map_or(lease_seconds, i64::from));
    for group in Api::<SiteGroup>::all(client.clone()).list(&all).await? {
        index.put_group(group);
    }
    for site in Api::<Site>::all(client.clone()).list(&all).await? {
        // One that was never heard is silent since it was made.
        let made = site.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        index.put_site(site, Moment { steady: made, wall: made });
    }
    for placement in Api::<Placement>::all(client.clone()).list(&all).await? {
        index.put_placement(placement);
    }
    for work in Api::<Work>::all(client.clone()).list(&all).await? {
        index.put_work(work);
    }
    for lease in leases {
        if let Some(site) = lease.namespace().as_deref().and_then(names::site_of_namespace) {
            let ready = index.sites.get(site).is_some_and(|state| state.site.is_ready());
            let renewed = lease.spec.and_then(|s| s.renew_time).map_or(0, |t| t.0.as_second());
            index.heard(site, if ready { 0 } else { wall - renewed }, now);
        }
    }
    Ok(explained(&mut index, &key, root, now.steady))
}

/// The decision, from an index that has all of it but the root, and remembers nothing.
pub fn explained(index: &mut Index, key: &Key, root: Value, now: i64) -> Explained {
    let root = Arc::new(root);
    index.put_object(key.clone(), root.clone());
    // Since when is not known here; what the hub made of it stands on the object.
    index.note_stuck(key, now - STUCK);
    index.stuck.recall(key, &root, now);
    match choose(key, &root, &index.placements) {
        Choice::Nowhere => {
            Explained::NotPlaced(format!("{key} is not placed: nothing selects it, or it says so itself"))
        }
        Choice::Unplaced(why) => Explained::NotPlaced(format!("{key} is not placed: {why}")),
        Choice::By(placement) => {
            let by = format!("{}/{}", placement.namespace().unwrap_or_default(), placement.name_any());
            Explained::Placed { by, decision: decision(index, key, &root, placement, now) }
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_placement::sites::{Domain, Note, Reason};

    use super::*;

    fn place(site: &str, part: &str, replicas: u32, reason: Reason) -> Explanation {
        let chosen = replicas > 0;
        Explanation {
            site: site.into(),
            part: part.into(),
            chosen,
            replicas,
            before: 0,
            fits: chosen.then_some(100),
            preference: chosen.then_some(0),
            score: 83,
            reason,
        }
    }

    #[test]
    fn programs_read_the_same_as_people() {
        let allowed = vec!["EU".to_owned()];
        let sites = vec![
            place("cloud", "", 1, Reason::Chosen),
            place("north", "z   1", 4, Reason::ChosenFull),
            place("north", "z2", 0, Reason::NotSelected),
            place("wide   name", "", 0, Reason::Jurisdiction { has: String::new(), allowed }),
        ];
        let notes = vec![Note::FewDomains { by: Domain::Zone, wanted: 2, used: 1 }];
        let decision = Decision { sites, wanted: 6, unplaced: 1, moved: 0, waiting: 0, notes };
        let explained = Explained::Placed { by: "default/edge-first".into(), decision };
        let (json, text) = (explained.json(), explained.to_string());
        assert_eq!(explained.sites(), ["cloud", "north", "wide   name"]);
        assert_eq!(json["placement"], "default/edge-first");
        assert_eq!((&json["wanted"], &json["unplaced"]), (&json!(6), &json!(1)));
        assert_eq!(
            json["sites"][1],
            json!({"site": "north", "part": "z   1", "chosen": true, "replicas": 4, "was": 0, "fits": 100,
                   "preference": 1, "score": 83, "why": "chosen, now full"})
        );
        assert_eq!(
            json["sites"][3],
            json!({"site": "wide   name", "chosen": false, "replicas": 0, "fits": null, "preference": null,
                   "score": null, "why": "jurisdiction not known, allowed EU"})
        );
        assert!(text.starts_with("placed by Placement default/edge-first\n\nSITE "), "{text}");
        for said in [&json["summary"], &json["notes"][0], &json["sites"][3]["why"]] {
            assert!(text.contains(said.as_str().expect("a sentence")), "{said} is not in {text}");
        }
    }

    #[test]
    fn an_object_without_a_place_says_why() {
        let explained =
            Explained::NotPlaced("configmap/a in default is not placed: nothing selects it".into());
        assert!(explained.to_string().ends_with("nothing selects it\n") && explained.sites().is_empty());
        assert_eq!(explained.json()["placement"], Value::Null);
        assert_eq!(explained.json()["summary"], "configmap/a in default is not placed: nothing selects it");
    }
}
