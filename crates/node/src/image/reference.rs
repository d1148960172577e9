//! Names of images: `[registry/]repository[:tag][@digest]`.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

const DEFAULT_REGISTRY: &str = "docker.io";

/// A normalized image name: `nginx` is `docker.io/library/nginx:latest`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    pub registry: String,
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<String>,
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error("invalid image name {0:?}: {1}")]
pub struct ReferenceError(String, &'static str);

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Reference, ReferenceError> {
        let fail = |why| ReferenceError(text.to_owned(), why);
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest.to_owned())),
            None => (text, None),
        };
        if let Some(digest) = &digest {
            let hex =
                digest.strip_prefix("sha256:").ok_or_else(|| fail("the digest must start with sha256:"))?;
            if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(fail("the digest must be 64 hexadecimal digits"));
            }
        }
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.to_owned())),
            _ => (name, None),
        };
        if tag.as_deref().is_some_and(|t| t.is_empty() || t.len() > 128) {
            return Err(fail("the tag must have 1 to 128 characters"));
        }
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
                (first, rest.to_owned())
            }
            Some(_) => (DEFAULT_REGISTRY, name.to_owned()),
            None => (DEFAULT_REGISTRY, format!("library/{name}")),
        };
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
        if name.is_empty() || repository.is_empty() || !repository.chars().all(valid) {
            return Err(fail("the name must be made of lower case letters, digits and . _ - /"));
        }
        let tag = if tag.is_none() && digest.is_none() { Some("latest".into()) } else { tag };
        Ok(Reference { registry: registry.to_owned(), repository, tag, digest })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_mean_the_default_registry() {
        let name = |text: &str| text.parse::<Reference>().map(|r| r.to_string());
        assert_eq!(name("nginx").as_deref(), Ok("docker.io/library/nginx:latest"));
        assert_eq!(name("team/app:v1").as_deref(), Ok("docker.io/team/app:v1"));
        assert_eq!(name("localhost:5000/app").as_deref(), Ok("localhost:5000/app:latest"));
        assert_eq!(name("registry.k8s.io/pause:3.10").as_deref(), Ok("registry.k8s.io/pause:3.10"));
    }

    #[test]
    fn bad_names_are_refused_with_the_reason() {
        for text in ["", "UPPER", "a:", "a@sha256:12", "a b", "INVALID/Name:latest"] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }
}
