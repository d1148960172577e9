//! Selection of sites by name, group and label, as data with a pure `matches`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Same meaning as a Kubernetes label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// All of these labels with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// All of these must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelRequirement {
    /// Name of the label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// For `In` and `NotIn`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Which sites. Everything that is given must hold; nothing given means every site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SiteSelector {
    /// Names of sites or of SiteGroups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Names never taken, also when the rest matches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Only of these tiers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<crate::Tier>,
    /// Only in these regions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Only in these zones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// Only of these providers; here and below an empty text means a site that states none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<String>,
    /// Whose law applies there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jurisdictions: Vec<String>,
    /// Only with these labels on the Site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<LabelSelector>,
}

impl LabelSelector {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.match_expressions.iter().all(|r| r.matches(labels))
    }
}

impl LabelRequirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|v| self.values.contains(v)),
            "NotIn" => value.is_none_or(|v| !self.values.contains(v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            // An operator we do not know selects nothing rather than everything.
            _ => false,
        }
    }
}

impl SiteSelector {
    /// `groups` are the names of the SiteGroups that the site belongs to.
    pub fn matches(
        &self,
        name: &str,
        spec: &crate::SiteSpec,
        labels: &BTreeMap<String, String>,
        groups: &[String],
    ) -> bool {
        let named = |list: &[String]| list.iter().any(|n| n == name || groups.contains(n));
        let any = |list: &[String], value: &Option<String>| {
            list.is_empty() || list.iter().any(|wanted| wanted == value.as_deref().unwrap_or_default())
        };
        (self.names.is_empty() || named(&self.names))
            && !named(&self.exclude)
            && (self.tiers.is_empty() || self.tiers.contains(&spec.tier))
            && any(&self.regions, &spec.location.region)
            && any(&self.zones, &spec.location.zone)
            && any(&self.providers, &spec.provider)
            && any(&self.jurisdictions, &spec.location.jurisdiction)
            && self.labels.as_ref().is_none_or(|s| s.matches(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SiteSpec, Tier};

    #[test]
    fn nothing_given_selects_every_site() {
        assert!(SiteSelector::default().matches("a", &SiteSpec::default(), &BTreeMap::new(), &[]));
    }

    #[test]
    fn a_group_name_selects_its_members_and_exclude_wins() {
        let mut selector = SiteSelector { names: vec!["north".into()], ..Default::default() };
        let spec = SiteSpec { tier: Tier::Edge, ..Default::default() };
        assert!(selector.matches("a", &spec, &BTreeMap::new(), &["north".into()]));
        assert!(!selector.matches("a", &spec, &BTreeMap::new(), &[]));
        selector.exclude = vec!["a".into()];
        assert!(!selector.matches("a", &spec, &BTreeMap::new(), &["north".into()]));
    }

    #[test]
    fn an_unknown_operator_selects_nothing() {
        let requirement = LabelRequirement { key: "a".into(), operator: "Near".into(), values: vec![] };
        let selector = LabelSelector { match_expressions: vec![requirement], ..Default::default() };
        assert!(!selector.matches(&BTreeMap::from([("a".into(), "b".into())])));
    }
}
