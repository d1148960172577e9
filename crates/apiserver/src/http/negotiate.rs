//! Which representation a client asks for.
//!
//! Objects are kept as JSON, so every answer is JSON; clients that prefer protobuf also list JSON or `*/*`.

use super::status::{Failure, Result};

/// The representation to answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Json,
    Yaml,
    /// `meta.k8s.io` Table, at this version.
    Table(MetaVersion),
    /// `PartialObjectMetadata`, or its list.
    Metadata(MetaVersion),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// What a resource can be transformed into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    pub table: bool,
    pub metadata: bool,
}

pub const ALL: Offer = Offer { table: true, metadata: true };
pub const PLAIN: Offer = Offer { table: false, metadata: false };

/// One clause of an `Accept` header.
pub struct Clause<'a> {
    pub media: &'a str,
    params: &'a str,
}

impl<'a> Clause<'a> {
    pub fn param(&self, name: &str) -> Option<&'a str> {
        self.params.split(';').find_map(|p| {
            let (key, value) = p.trim().split_once('=')?;
            (key.trim() == name).then(|| value.trim().trim_matches('"'))
        })
    }
}

pub fn clauses(accept: &str) -> impl Iterator<Item = Clause<'_>> {
    accept.split(',').map(|clause| {
        let (media, params) = clause.split_once(';').unwrap_or((clause, ""));
        Clause { media: media.trim(), params }
    })
}

/// The first clause that can be served wins, in the client's order.
pub fn negotiate(accept: Option<&str>, offer: Offer) -> Result<Output> {
    let accept = accept.unwrap_or("*/*");
    for clause in clauses(accept) {
        let plain = match clause.media {
            "" | "*/*" | "application/*" | "application/json" => Output::Json,
            "application/yaml" => Output::Yaml,
            _ => continue,
        };
        let version = match (clause.param("g"), clause.param("v")) {
            (None | Some("meta.k8s.io"), Some("v1")) => Some(MetaVersion::V1),
            (None | Some("meta.k8s.io"), Some("v1beta1")) => Some(MetaVersion::V1Beta1),
            _ => None,
        };
        match (clause.param("as"), version) {
            (None | Some(""), _) => return Ok(plain),
            (Some("Table"), Some(version)) if offer.table => return Ok(Output::Table(version)),
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some(version))
                if offer.metadata =>
            {
                return Ok(Output::Metadata(version));
            }
            _ => {}
        }
    }
    Err(Failure::not_acceptable(&["application/json", "application/yaml"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_clause_that_can_be_served_wins() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(negotiate(Some(kubectl), ALL).unwrap(), Output::Table(MetaVersion::V1));
        assert_eq!(negotiate(Some(kubectl), PLAIN).unwrap(), Output::Json);
        let typed = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(negotiate(Some(typed), ALL).unwrap(), Output::Json);
        assert_eq!(negotiate(None, ALL).unwrap(), Output::Json);
    }

    #[test]
    fn a_table_of_what_has_none_is_not_acceptable() {
        let only = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(negotiate(Some(only), PLAIN).unwrap_err().code(), 406);
    }
}
