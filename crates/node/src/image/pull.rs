//! Images from registries: manifests and blobs by the OCI distribution protocol, checked against their digests.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use base64::Engine;
use http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::io::AsyncWriteExt;

use super::http::{Http, HttpError, read};
use super::import::{ConfigBlob, architecture};
use super::reference::Reference;
use super::store::{Image, Store, StoreError};
use crate::runtime::PullSecret;

const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
const LARGEST_MANIFEST: usize = 4 << 20;

#[derive(Debug, Error)]
pub enum PullError {
    #[error("{0}")]
    Http(#[from] HttpError),
    #[error("{registry} answered {status} for {what}{hint}")]
    Status { registry: String, status: StatusCode, what: String, hint: &'static str },
    #[error("{what} is damaged: its digest is {found}, not {expected}")]
    Digest { what: String, expected: String, found: String },
    #[error("{what}: {source}")]
    Parse { what: String, source: serde_json::Error },
    #[error("the image has no variant for linux/{0}")]
    Platform(&'static str),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Reference(#[from] super::ReferenceError),
    #[error("the work was cut off")]
    CutOff,
}

impl PullError {
    /// No registry said anything about the image.
    pub fn is_away(&self) -> bool {
        match self {
            PullError::Http(error) => {
                matches!(error, HttpError::Connect { .. } | HttpError::Timeout(_) | HttpError::Talk { .. })
            }
            PullError::Status { status, .. } => status.is_server_error(),
            _ => false,
        }
    }
}

/// How registries are reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registries {
    /// Registry name -> base addresses (`https://host[:port]`) to try before it, in order.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Certificate authorities (PEM) to trust besides the machine's.
    pub authorities: Vec<String>,
    /// Registries spoken to without TLS. Those on this machine (`localhost`, `127.…`) always are tried so too.
    pub insecure: Vec<String>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    manifests: Vec<Variant>,
    config: Option<Blob>,
    #[serde(default)]
    layers: Vec<Blob>,
}

#[derive(Deserialize)]
struct Variant {
    digest: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Clone, Deserialize)]
struct Blob {
    digest: String,
}

impl Registries {
    /// Where to ask for an image, best first.
    fn sources(&self, reference: &Reference) -> Vec<String> {
        let registry = reference.registry.as_str();
        let mut sources = self.mirrors.get(registry).cloned().unwrap_or_default();
        let host = if registry == "docker.io" { "registry-1.docker.io" } else { registry };
        let here = host.starts_with("localhost") || host.starts_with("127.");
        if self.insecure.iter().any(|r| r == registry) || here {
            sources.push(format!("http://{host}"));
        }
        if !self.insecure.iter().any(|r| r == registry) {
            sources.push(format!("https://{host}"));
        }
        sources
    }

    /// Brings an image into the store. Layers that are there already are not fetched.
    pub async fn pull(
        &self,
        store: &Arc<Store>,
        name: &str,
        secrets: &[PullSecret],
    ) -> Result<Image, PullError> {
        let reference: Reference = name.parse()?;
        let http = Http::new(&self.authorities)?;
        let mut failure = None;
        for base in self.sources(&reference) {
            let secret = secrets
                .iter()
                .find(|s| s.registry == reference.registry || base.ends_with(&s.registry))
                .cloned();
            let secret = secret.or_else(|| {
                secrets
                    .iter()
                    .find(|s| s.registry == "index.docker.io" && reference.registry == "docker.io")
                    .cloned()
            });
            let mut source = Source {
                http: http.clone(),
                base,
                reference: reference.clone(),
                secret,
                authorization: None,
            };
            match source.pull(store).await {
                Ok(image) => return Ok(image),
                Err(error) => {
                    tracing::debug!(image = name, registry = source.base, %error, "pull failed");
                    // The registry's own word (the last) explains more than a mirror's, and any word more than silence.
                    if failure.is_none() || !error.is_away() {
                        failure = Some(error);
                    }
                }
            }
        }
        Err(failure.unwrap_or(PullError::CutOff))
    }
}

/// One registry, or mirror of it, with what it takes to be let in.
struct Source {
    http: Http,
    base: String,
    reference: Reference,
    secret: Option<PullSecret>,
    authorization: Option<String>,
}

impl Source {
    async fn pull(&mut self, store: &Arc<Store>) -> Result<Image, PullError> {
        let wanted = self.reference.digest.clone().or_else(|| self.reference.tag.clone()).unwrap_or_default();
        let (bytes, digest) = self.manifest(&wanted).await?;
        let mut manifest = parse(&bytes, "the manifest")?;
        if !manifest.manifests.is_empty() {
            let fits = |v: &&Variant| {
                v.platform.as_ref().is_some_and(|p| p.os == "linux" && p.architecture == architecture())
            };
            let variant = manifest.manifests.iter().find(fits).ok_or(PullError::Platform(architecture()))?;
            let (bytes, _) = self.manifest(&variant.digest.clone()).await?;
            manifest = parse(&bytes, "the manifest")?;
        }
        let config = manifest.config.ok_or(PullError::Platform(architecture()))?;
        let response = self.get(&format!("blobs/{}", config.digest), "*/*").await?;
        let bytes = read(response, LARGEST_MANIFEST).await?;
        check("the image configuration", &config.digest, &bytes)?;
        let described: ConfigBlob = serde_json::from_slice(&bytes)
            .map_err(|source| PullError::Parse { what: "the image configuration".into(), source })?;
        let names = [self.reference.clone()];
        let mut image = Image {
            id: config.digest.clone(),
            layers: Vec::new(),
            config: described.config,
            size: 0,
            digests: vec![format!("{}/{}@{digest}", self.reference.registry, self.reference.repository)],
        };
        for (blob, diff_id) in manifest.layers.iter().zip(&described.rootfs.diff_ids) {
            let (layer, size) = self.layer(store, blob, diff_id).await?;
            image.layers.push(layer);
            image.size += size;
        }
        Ok(store.add_image(image, &names)?)
    }

    /// A manifest and its digest.
    async fn manifest(&mut self, wanted: &str) -> Result<(bytes::Bytes, String), PullError> {
        let response = self.get(&format!("manifests/{wanted}"), ACCEPT).await?;
        let bytes = read(response, LARGEST_MANIFEST).await?;
        if wanted.starts_with("sha256:") {
            check("the manifest", wanted, &bytes)?;
        }
        let digest = format!("sha256:{:x}", Sha256::digest(&bytes));
        Ok((bytes, digest))
    }

    async fn layer(
        &mut self,
        store: &Arc<Store>,
        blob: &Blob,
        diff_id: &str,
    ) -> Result<(String, u64), PullError> {
        let diff_id = diff_id.trim_start_matches("sha256:").to_owned();
        if let Some(size) = store.layer_size(&diff_id) {
            return Ok((diff_id, size));
        }
        let mut body = self.get(&format!("blobs/{}", blob.digest), "*/*").await?.into_body();
        let scratch = store.scratch("pull")?;
        let outcome = async {
            let path = scratch.join("blob");
            let mut file = tokio::fs::File::create(&path).await?;
            let mut digest = Sha256::new();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|source| HttpError::Talk { host: self.base.clone(), source })?;
                if let Ok(data) = frame.into_data() {
                    digest.update(&data);
                    file.write_all(&data).await?;
                }
            }
            file.flush().await?;
            let found = format!("sha256:{:x}", digest.finalize());
            if found != blob.digest {
                return Err(PullError::Digest {
                    what: "a layer".into(),
                    expected: blob.digest.clone(),
                    found,
                });
            }
            let store = store.clone();
            let unpack = move || {
                store.add_layer(
                    File::open(path).map_err(super::store::at(std::path::Path::new("blob")))?,
                    &diff_id,
                )
            };
            Ok(tokio::task::spawn_blocking(unpack).await.map_err(|_| PullError::CutOff)??)
        };
        let outcome = outcome.await;
        let _ = std::fs::remove_dir_all(&scratch);
        outcome
    }

    /// GET below the repository, letting itself in if asked to.
    async fn get(
        &mut self,
        path: &str,
        accept: &str,
    ) -> Result<http::Response<hyper::body::Incoming>, PullError> {
        let url = format!("{}/v2/{}/{path}", self.base, self.reference.repository);
        for attempt in 0..2 {
            let mut headers = vec![(header::ACCEPT, accept.to_owned())];
            headers.extend(self.authorization.clone().map(|a| (header::AUTHORIZATION, a)));
            let response = self.http.get(&url, &headers).await?;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            }
            if status == StatusCode::UNAUTHORIZED && attempt == 0 {
                let challenge = response
                    .headers()
                    .get(header::WWW_AUTHENTICATE)
                    .and_then(|v| v.to_str().ok())
                    .unwrap_or("")
                    .to_owned();
                self.authorization = self.authorize(&challenge).await?;
                if self.authorization.is_some() {
                    continue;
                }
            }
            let hint = match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    ": give the pod an imagePullSecret for this registry"
                }
                StatusCode::NOT_FOUND => ": no such image or tag",
                _ => "",
            };
            return Err(PullError::Status {
                registry: self.base.clone(),
                status,
                what: self.reference.to_string(),
                hint,
            });
        }
        Err(PullError::CutOff)
    }

    async fn authorize(&self, challenge: &str) -> Result<Option<String>, PullError> {
        let basic = self.secret.as_ref().map(|s| {
            let pair = format!("{}:{}", s.username, s.password);
            format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
        });
        let Some(fields) = challenge.strip_prefix("Bearer ") else { return Ok(basic) };
        let fields = challenge_fields(fields);
        let Some(realm) = fields.get("realm") else { return Ok(basic) };
        let mut url = realm.clone();
        let mut separator = if url.contains('?') { '&' } else { '?' };
        for key in ["service", "scope"] {
            if let Some(value) = fields.get(key) {
                url.push_str(&format!("{separator}{key}={}", value.replace(' ', "%20")));
                separator = '&';
            }
        }
        let headers: Vec<_> = basic.into_iter().map(|b| (header::AUTHORIZATION, b)).collect();
        let response = self.http.get(&url, &headers).await?;
        let status = response.status();
        if !status.is_success() {
            let hint = match self.secret {
                Some(_) => ": the credentials in the imagePullSecret were refused",
                None => ": give the pod an imagePullSecret for this registry",
            };
            return Err(PullError::Status {
                registry: realm.clone(),
                status,
                what: self.reference.to_string(),
                hint,
            });
        }
        let answer: serde_json::Value = serde_json::from_slice(&read(response, 1 << 20).await?)
            .map_err(|source| PullError::Parse { what: "the registry's token".into(), source })?;
        let token = answer["token"].as_str().or(answer["access_token"].as_str());
        Ok(token.map(|token| format!("Bearer {token}")))
    }
}

fn parse(bytes: &[u8], what: &str) -> Result<Manifest, PullError> {
    serde_json::from_slice(bytes).map_err(|source| PullError::Parse { what: what.into(), source })
}

fn check(what: &str, expected: &str, bytes: &[u8]) -> Result<(), PullError> {
    let found = format!("sha256:{:x}", Sha256::digest(bytes));
    if found == expected {
        return Ok(());
    }
    Err(PullError::Digest { what: what.into(), expected: expected.into(), found })
}

/// `realm="https://…",service="…"`; commas inside quotes belong to the value.
fn challenge_fields(text: &str) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let name = name.trim_matches([',', ' ']).to_owned();
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        fields.insert(name, value.to_owned());
        rest = after;
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_may_have_commas_inside_quotes() {
        let fields = challenge_fields(
            "realm=\"https://auth.example/token\",service=\"r\",scope=\"repository:a:pull,push\"",
        );
        assert_eq!(fields["realm"], "https://auth.example/token");
        assert_eq!(fields["scope"], "repository:a:pull,push");
    }

    #[test]
    fn mirrors_go_first_and_only_this_machine_is_spoken_to_in_the_clear() {
        let mut registries = Registries::default();
        registries.mirrors.insert("docker.io".into(), vec!["https://mirror.site".into()]);
        let sources = |name: &str| registries.sources(&name.parse().expect("name"));
        assert_eq!(sources("nginx"), ["https://mirror.site", "https://registry-1.docker.io"]);
        assert_eq!(sources("localhost:5000/a"), ["http://localhost:5000", "https://localhost:5000"]);
        assert_eq!(sources("ghcr.io/a/b"), ["https://ghcr.io"]);
    }
}
