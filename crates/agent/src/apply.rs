//! Applying one Work at the site, in one pass: what it needs first, then the root. How it goes away again: [`crate::remove`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{
    Api, ApiResource, DynamicObject, GetParams, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::core::{ObjectMeta, PartialObjectMeta, Request, Status};
use kube::{Client, Error};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tombolo_api::{Drift, DriftItem, WorkSpec, names};

use crate::fields;
use crate::ledger::{Key, Ledger, Outcome, Root, Selects, Version};
use crate::owners::{Claim, Owner, Owners};

/// How often fields are given up to others within one apply.
const TRIMS: usize = 4;

/// Writes at the site, as the identity the owner gave to the hub; reads as the agent.
pub struct Applier {
    pub own: Client,
    pub acting: Client,
    pub manager: String,
    pub hub: String,
    kinds: Mutex<BTreeMap<(String, String), ApiResource>>,
}

/// Why an object was not applied.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(
        "{kind}/{name} exists at the site and was not made by this hub; set `adopt: true` in the Placement to take it over, or rename it"
    )]
    Foreign { kind: String, name: String },
    #[error("{kind}/{name} belongs to hub {hub}")]
    OtherHub { kind: String, name: String, hub: String },
    #[error("{kind}/{name} is still being removed for an earlier object of that name")]
    Leaving { kind: String, name: String },
    #[error("{0}")]
    Site(Box<Status>),
    #[error("the site's API does not answer: {0}")]
    Unreachable(String),
    #[error("the Work holds no usable object: {0}")]
    Malformed(String),
}

impl Refusal {
    pub fn reason(&self) -> String {
        match self {
            Self::Foreign { .. } => "Exists".into(),
            Self::OtherHub { .. } => "OtherHub".into(),
            Self::Leaving { .. } => "Leaving".into(),
            Self::Site(status) if status.reason.is_empty() => "Refused".into(),
            Self::Site(status) => status.reason.clone(),
            Self::Unreachable(_) => "SiteUnreachable".into(),
            Self::Malformed(_) => "Malformed".into(),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::Api(status) => Self::Site(status),
            other => Self::Unreachable(other.to_string()),
        }
    }
}

/// What was last seen of an object of this hub.
#[derive(Clone, Debug, PartialEq)]
pub struct Sight {
    pub owners: Owners,
    pub version: Version,
    /// What we set in it counts as written once, not yet as applied.
    pub created: bool,
}

struct Applied {
    key: Key,
    object: DynamicObject,
    drift: Vec<DriftItem>,
}

impl Applier {
    pub fn new(own: Client, acting: Client, hub: &str) -> Self {
        let manager = format!("{}-{}", names::SITE_MANAGER, names::hub_label(hub));
        Self { own, acting, manager, hub: hub.to_owned(), kinds: Mutex::default() }
    }

    pub fn owner(&self, work: &str, uid: &str) -> Owner {
        Owner { hub: self.hub.clone(), work: work.to_owned(), uid: uid.to_owned() }
    }

    /// Applies everything in `spec`. The first refusal is the answer; what came before it stays.
    pub async fn apply(
        &self,
        owner: &Owner,
        spec: &WorkSpec,
        ledger: &Arc<Mutex<Ledger>>,
        sight: &(dyn Fn(&Key) -> Option<Sight> + Sync),
    ) -> Outcome {
        let refused = |refusal: Refusal| Outcome {
            refused: Some((refusal.reason(), refusal.to_string())),
            ..Default::default()
        };
        let (mut drift, mut made) = (Vec::new(), Vec::new());
        let mut took =
            |applied: &Applied| made.push((applied.key.clone(), Version::of(&applied.object.metadata)));
        for done in
            join_all(spec.with.iter().map(|object| self.apply_one(owner, spec, object, false, ledger, sight)))
                .await
        {
            match done {
                Ok(applied) => {
                    took(&applied);
                    drift.extend(applied.drift);
                }
                Err(refusal) => return refused(refusal),
            }
        }
        match self.apply_one(owner, spec, &spec.object, true, ledger, sight).await {
            Ok(applied) => {
                took(&applied);
                drift.extend(applied.drift);
                drift.sort();
                let root = Root {
                    generation: applied.object.metadata.generation.unwrap_or_default(),
                    status: applied.object.data.get("status").cloned(),
                    selects: Selects::of(&applied.key.namespace, &applied.object.data),
                };
                Outcome { drift, root, refused: None, made }
            }
            Err(refusal) => refused(refusal),
        }
    }

    async fn apply_one(
        &self,
        owner: &Owner,
        spec: &WorkSpec,
        object: &Value,
        root: bool,
        ledger: &Arc<Mutex<Ledger>>,
        sight: &(dyn Fn(&Key) -> Option<Sight> + Sync),
    ) -> Result<Applied, Refusal> {
        let key = Key::of(object).ok_or_else(|| Refusal::Malformed("no apiVersion, kind or name".into()))?;
        let sight = sight(&key);
        // What is new is created, which never touches what somebody else made of the same name meanwhile.
        if sight.is_none() && !built_in(&key) {
            let mut body = object.clone();
            put(&mut body, "annotations", Owners::default().annotations(owner, |_| true));
            put(&mut body, "labels", self.labels());
            if let Some(applied) = self.create(&key, &body).await? {
                return Ok(applied);
            }
        }
        // What is ours alone, and was applied before, need not be looked at again.
        if let Some(sight) = sight.filter(|s| root && !s.created && s.owners.is_only(owner)) {
            let force = spec.drift == Drift::Force || spec.adopt;
            return self.patch_as(owner, &key, object, &sight.owners, force, ledger).await;
        }
        let found = self.metadata(&key).await?;
        let mut owners = Owners::of(found.as_ref().and_then(|f| f.metadata.annotations.as_ref()));
        let (kind, name) = (key.kind.clone(), key.name.clone());
        let mut force = spec.drift == Drift::Force;
        if found.is_some() {
            match owners.claim(owner, root) {
                // Those who made what was taken over still hold its fields; from then on they are the hub's.
                Claim::Free if spec.adopt => force = true,
                Claim::Free => {}
                Claim::Foreign if spec.adopt => {
                    force = true;
                    owners = owners.adopting();
                }
                // A ServiceAccount that every namespace has, and the like: use it as it is.
                Claim::Foreign if !root && built_in(&key) => {
                    force = false;
                    owners = owners.adopting();
                }
                Claim::Foreign => return Err(Refusal::Foreign { kind, name }),
                Claim::OtherHub(hub) => return Err(Refusal::OtherHub { kind, name, hub }),
                // The name is free once that Work is gone; one that no hub speaks of any more is taken over.
                Claim::OtherRoot(work) if ledger.lock().get(&work).is_some() => {
                    return Err(Refusal::Leaving { kind, name });
                }
                Claim::OtherRoot(_) => {}
            }
        }
        if let Some(found) = found {
            self.own_as_applied(&key, found).await?;
        }
        self.patch_as(owner, &key, object, &owners, force, ledger).await
    }

    async fn patch_as(
        &self,
        owner: &Owner,
        key: &Key,
        object: &Value,
        owners: &Owners,
        force: bool,
        ledger: &Arc<Mutex<Ledger>>,
    ) -> Result<Applied, Refusal> {
        let mut patch = object.clone();
        let annotations = owners.annotations(owner, |other| ledger.lock().alive(other));
        put(&mut patch, "annotations", annotations);
        put(&mut patch, "labels", self.labels());
        self.patch(key, patch, force).await
    }

    fn labels(&self) -> serde_json::Map<String, Value> {
        [(names::HUB_LABEL.to_owned(), json!(names::hub_label(&self.hub)))].into_iter().collect()
    }

    /// `None`: it is there already, or nothing of its kind can be there yet.
    async fn create(&self, key: &Key, body: &Value) -> Result<Option<Applied>, Refusal> {
        let object: DynamicObject =
            serde_json::from_value(body.clone()).map_err(|e| Refusal::Malformed(e.to_string()))?;
        let params = PostParams { dry_run: false, field_manager: Some(self.manager.clone()) };
        match self.api(&self.acting, key).create(&params, &object).await {
            Ok(object) => Ok(Some(Applied { key: key.clone(), object, drift: Vec::new() })),
            Err(Error::Api(status)) if status.code == 404 || status.reason == "AlreadyExists" => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What we created counts as written by us once; from the first change on we are who applies it, so that a field which
    /// the hub no longer sets goes away.
    async fn own_as_applied(
        &self,
        key: &Key,
        mut found: PartialObjectMeta<DynamicObject>,
    ) -> Result<(), Refusal> {
        for _ in 0..TRIMS {
            let Some(patch) = self.taking_over(&found) else { return Ok(()) };
            let params = PatchParams { field_manager: Some(self.manager.clone()), ..Default::default() };
            match self.api(&self.acting, key).patch_metadata(&key.name, &params, &Patch::Merge(&patch)).await
            {
                Ok(_) => return Ok(()),
                Err(Error::Api(status)) if status.code == 404 => return Ok(()),
                // Something that starts has its status written all the time.
                Err(Error::Api(status)) if status.code == 409 => match self.metadata(key).await? {
                    Some(newer) => found = newer,
                    None => return Ok(()),
                },
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refusal::Unreachable(format!("{key} is changed by others as fast as it is taken over")))
    }

    /// Where among the managers the fields are that we created, unless we have applied since.
    fn created(&self, metadata: &ObjectMeta) -> Option<usize> {
        let managers = metadata.managed_fields.as_ref()?;
        let ours = |entry: &ManagedFieldsEntry, operation: &str| {
            entry.manager.as_deref() == Some(&self.manager)
                && entry.operation.as_deref() == Some(operation)
                && entry.subresource.as_deref().unwrap_or_default().is_empty()
        };
        let applied = managers.iter().any(|entry| ours(entry, "Apply"));
        managers.iter().position(|entry| ours(entry, "Update")).filter(|_| !applied)
    }

    pub fn sight(&self, metadata: &ObjectMeta) -> Sight {
        Sight {
            owners: Owners::of(metadata.annotations.as_ref()),
            version: Version::of(metadata),
            // Where the managers were left out, it may have been: a patch would find our own first write in its way.
            created: metadata.managed_fields.is_none() || self.created(metadata).is_some(),
        }
    }

    /// The patch that makes the fields we created applied ones, if there are such.
    fn taking_over(&self, found: &PartialObjectMeta<DynamicObject>) -> Option<Value> {
        let at = self.created(&found.metadata)?;
        let mut managers = found.metadata.managed_fields.clone()?;
        managers[at].operation = Some("Apply".into());
        let version = &found.metadata.resource_version;
        Some(json!({"metadata": {"managedFields": managers, "resourceVersion": version}}))
    }

    /// Server-side apply; fields that others hold are left to them unless `force`.
    async fn patch(&self, key: &Key, mut patch: Value, force: bool) -> Result<Applied, Refusal> {
        let api = self.api(&self.acting, key);
        let mut params = PatchParams::apply(&self.manager);
        params.force = force;
        let mut drift = Vec::new();
        let mut made_namespace = false;
        let mut looked_up = false;
        let mut api = api;
        for _ in 0..TRIMS + 2 {
            match api.patch(&key.name, &params, &Patch::Apply(&patch)).await {
                Ok(object) => return Ok(Applied { key: key.clone(), object, drift }),
                Err(Error::Api(status)) if status.code == 409 && conflicts(&status) => {
                    for (field, manager) in conflicting(&status) {
                        fields::remove(&mut patch, &field);
                        drift.push(DriftItem { object: key.to_string(), field, manager });
                    }
                }
                Err(Error::Api(status)) if status.code == 404 && !made_namespace && no_namespace(&status) => {
                    self.make_namespace(&key.namespace).await?;
                    made_namespace = true;
                }
                Err(Error::Api(status)) if status.code == 404 && !looked_up => {
                    looked_up = true;
                    if !self.look_up(key).await {
                        return Err(Refusal::Site(status));
                    }
                    api = self.api(&self.acting, key);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let message = format!("{key} is changed by others as fast as it is applied");
        Err(Refusal::Unreachable(message))
    }

    async fn make_namespace(&self, name: &str) -> Result<(), Refusal> {
        let key = Key {
            api_version: "v1".into(),
            kind: "Namespace".into(),
            namespace: String::new(),
            name: name.into(),
        };
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let mut object: DynamicObject =
            serde_json::from_value(object).map_err(|e| Refusal::Malformed(e.to_string()))?;
        // The label says that it may go with the hub: never on one that somebody else made in this moment.
        object.metadata.labels = Some([(names::HUB_LABEL.to_owned(), names::hub_label(&self.hub))].into());
        let params = PostParams { dry_run: false, field_manager: Some(self.manager.clone()) };
        match self.api(&self.acting, &key).create(&params, &object).await {
            Err(Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// What the site has under this name, without its content.
    pub async fn metadata(&self, key: &Key) -> Result<Option<PartialObjectMeta<DynamicObject>>, Refusal> {
        let mut request = Request::new(self.api(&self.own, key).resource_url())
            .get_metadata(&key.name, &GetParams::default())
            .map_err(Error::BuildRequest)?;
        // A client inside the site's own process leaves these out unless asked.
        let more = if request.uri().query().is_some() { '&' } else { '?' };
        if let Ok(uri) = format!("{}{more}omitManagedFields=false", request.uri()).parse() {
            *request.uri_mut() = uri;
        }
        match self.own.request(request).await {
            Ok(found) => Ok(Some(found)),
            // A custom kind whose plural we guessed wrong answers "not found" as well; the patch finds that out.
            Err(Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn api(&self, client: &Client, key: &Key) -> Api<DynamicObject> {
        let resource = self.resource(&key.api_version, &key.kind);
        if key.namespace.is_empty() {
            Api::all_with(client.clone(), &resource)
        } else {
            Api::namespaced_with(client.clone(), &key.namespace, &resource)
        }
    }

    /// The resource of a kind: guessed from its name until the site's discovery says otherwise.
    pub fn resource(&self, api_version: &str, kind: &str) -> ApiResource {
        let id = (api_version.to_owned(), kind.to_owned());
        self.kinds.lock().get(&id).cloned().unwrap_or_else(|| ApiResource::from_gvk(&gvk(api_version, kind)))
    }

    /// What discovery said of a kind.
    pub fn learn(&self, resource: ApiResource) {
        self.kinds.lock().insert((resource.api_version.clone(), resource.kind.clone()), resource);
    }

    pub async fn look_up(&self, key: &Key) -> bool {
        let found = kube::discovery::pinned_kind(&self.own, &gvk(&key.api_version, &key.kind)).await;
        let Ok((resource, _)) = found else { return false };
        let changed = resource.plural != self.resource(&key.api_version, &key.kind).plural;
        self.learn(resource);
        changed
    }
}

pub fn gvk(api_version: &str, kind: &str) -> GroupVersionKind {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    GroupVersionKind::gvk(group, version, kind)
}

fn put(object: &mut Value, field: &str, more: serde_json::Map<String, Value>) {
    let entry = &mut object["metadata"][field];
    match entry.as_object_mut() {
        Some(map) => map.extend(more),
        None => *entry = Value::Object(more),
    }
}

fn conflicts(status: &Status) -> bool {
    conflicting(status).next().is_some()
}

/// Field and manager of every conflict that server-side apply names.
fn conflicting(status: &Status) -> impl Iterator<Item = (String, String)> + '_ {
    status.details.iter().flat_map(|d| &d.causes).filter(|c| c.reason == "FieldManagerConflict").map(
        |cause| {
            let manager = cause.message.split('"').nth(1).unwrap_or("unknown");
            (cause.field.clone(), manager.to_owned())
        },
    )
}

fn no_namespace(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|d| d.kind == "namespaces")
        || status.message.starts_with("namespaces ")
}

/// Objects that every namespace has without anybody's doing.
pub fn built_in(key: &Key) -> bool {
    matches!(
        (key.kind.as_str(), key.name.as_str()),
        ("ServiceAccount", "default") | ("ConfigMap", "kube-root-ca.crt")
    )
}

/// When a Work is tried again after drift came back at once: the site's own controllers may be fighting us.
pub fn calm(last: Option<Instant>, now: Instant) -> Option<Instant> {
    let quiet = Duration::from_secs(1);
    last.filter(|at| now.duration_since(*at) < quiet).map(|at| at + quiet)
}

#[cfg(test)]
#[path = "apply_tests.rs"]
pub mod tests;
