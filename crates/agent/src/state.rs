//! What an agent must remember: its key and certificate, the hub's CA and identity, and the highest epoch seen.
//!
//! Kept in a Secret of the site, because the agent's pod has no disk of its own and the key never leaves the site.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Error, ResourceExt};
use tombolo_api::names;

/// On the namespace of our own objects: an agent found none and made it.
const MADE_BY: &str = "tombolo.dev/made-by";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub ca: String,
    pub key: String,
    pub certificate: String,
    /// Identity of the hub that signed.
    pub hub: String,
    /// Highest epoch of that hub that was seen here.
    pub epoch: i64,
    /// UDP port of the hub, 0 if it has none.
    pub quic_port: u16,
    /// Where the hub's replicas are, as far as they are known.
    pub replicas: Vec<String>,
    /// Id (not the secret part) of the token that was used to join.
    pub token_id: String,
    /// Set when the hub said that it removed this site.
    pub removed: String,
}

impl State {
    pub fn joined(&self) -> bool {
        !self.certificate.is_empty() && !self.key.is_empty() && self.removed.is_empty()
    }

    fn identity(&self) -> Option<tombolo_tunnel::PeerIdentity> {
        let chain =
            tombolo_tunnel::tls::certificates(self.certificate.as_bytes(), "the site's certificate").ok()?;
        tombolo_tunnel::identity_of(chain.first()?)
    }

    /// Seconds since 1970 of the certificate's start and end.
    pub fn validity(&self) -> Option<(i64, i64)> {
        self.identity().map(|identity| (identity.not_before, identity.not_after))
    }

    /// The name that the hub knows this site by.
    pub fn site(&self) -> Option<String> {
        tombolo_api::names::site_of_user(&self.identity()?.user).map(str::to_owned)
    }

    fn data(&self) -> BTreeMap<String, ByteString> {
        let text = |key: &str, value: &str| (key.to_owned(), ByteString(value.as_bytes().to_vec()));
        BTreeMap::from([
            text("ca.crt", &self.ca),
            text("tls.key", &self.key),
            text("tls.crt", &self.certificate),
            text("hub", &self.hub),
            text("epoch", &self.epoch.to_string()),
            text("quicPort", &self.quic_port.to_string()),
            text("replicas", &self.replicas.join(" ")),
            text("tokenId", &self.token_id),
            text("removed", &self.removed),
        ])
    }

    fn from_data(data: &BTreeMap<String, ByteString>) -> Self {
        let text =
            |key: &str| data.get(key).map(|b| String::from_utf8_lossy(&b.0).into_owned()).unwrap_or_default();
        Self {
            ca: text("ca.crt"),
            key: text("tls.key"),
            certificate: text("tls.crt"),
            hub: text("hub"),
            epoch: text("epoch").parse().unwrap_or_default(),
            quic_port: text("quicPort").parse().unwrap_or_default(),
            replicas: text("replicas").split_whitespace().map(str::to_owned).collect(),
            token_id: text("tokenId"),
            removed: text("removed"),
        }
    }
}

/// The Secret behind a [`State`].
#[derive(Clone)]
pub struct StateSecret {
    client: Client,
    name: String,
}

impl StateSecret {
    pub fn new(client: Client, name: &str) -> Self {
        Self { client, name: name.to_owned() }
    }

    fn api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), names::SYSTEM_NAMESPACE)
    }

    pub async fn load(&self) -> Result<State, Error> {
        let found = self.api().get_opt(&self.name).await?;
        Ok(found.and_then(|s| s.data).map(|d| State::from_data(&d)).unwrap_or_default())
    }

    pub async fn save(&self, state: &State) -> Result<(), Error> {
        self.make_namespace().await?;
        let secret = Secret {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..Default::default() },
            data: Some(state.data()),
            ..Default::default()
        };
        let params = PatchParams::apply(names::SITE_MANAGER).force();
        self.api().patch(&self.name, &params, &Patch::Apply(&secret)).await.map(drop)
    }

    /// Removes the Secret, and the namespace if an agent made it and nobody uses it any more.
    pub async fn forget(&self) -> Result<(), Error> {
        match self.api().delete(&self.name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let ours =
            |found: &Namespace| found.labels().get(MADE_BY).is_some_and(|by| by == names::SITE_MANAGER);
        match namespaces.get_opt(names::SYSTEM_NAMESPACE).await {
            Ok(found) if found.as_ref().is_some_and(ours) => {
                crate::clean::remove_if_empty(&self.client, names::SYSTEM_NAMESPACE).await
            }
            _ => Ok(()),
        }
    }

    async fn make_namespace(&self) -> Result<(), Error> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(names::SYSTEM_NAMESPACE.into()),
                labels: Some([(MADE_BY.to_owned(), names::SITE_MANAGER.to_owned())].into()),
                ..Default::default()
            },
            ..Default::default()
        };
        match api.create(&PostParams::default(), &namespace).await {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if status.code == 409 => Ok(()),
            // Without the right to make namespaces the owner has made this one.
            Err(Error::Api(status)) if status.code == 403 => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_its_secret() {
        let state = State {
            ca: "ca".into(),
            key: "k".into(),
            certificate: "c".into(),
            hub: "h".into(),
            epoch: 7,
            quic_port: 6443,
            replicas: vec!["https://10.0.0.1:6443".into(), "https://10.0.0.2:6443".into()],
            token_id: "abc".into(),
            removed: "no more".into(),
        };
        assert_eq!(State::from_data(&state.data()), state);
        assert!(!state.joined());
    }

    /// As the first release wrote it; one that came later may have written more.
    #[test]
    fn a_state_of_another_release_is_read() {
        let fields =
            ["ca.crt", "tls.key", "tls.crt", "hub", "epoch", "quicPort", "replicas", "tokenId", "removed"];
        let values = ["ca", "k", "c", "h", "7", "6443", "https://10.0.0.1:6443", "abc", ""];
        let text = |(key, value): (&str, &str)| (key.to_owned(), ByteString(value.as_bytes().to_vec()));
        let mut kept: BTreeMap<_, _> = fields.into_iter().zip(values).map(text).collect();
        let state = State::from_data(&kept);
        assert_eq!((state.hub.as_str(), state.epoch, state.quic_port), ("h", 7, 6443));
        assert_eq!((state.replicas.len(), state.token_id.as_str(), state.joined()), (1, "abc", true));
        assert!(state.data().keys().all(|key| kept.contains_key(key)), "{:?}", state.data().keys());
        kept.insert("later".into(), ByteString(b"more".to_vec()));
        kept.remove("quicPort");
        assert_eq!(State::from_data(&kept), State { quic_port: 0, ..state });
    }
}
