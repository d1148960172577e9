//! All caches of the process. One line per kind.

use super::{Cache, Key, Object, Refusals, Resource, Source, follow};
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::v1::{CronJob, Job},
    certificates::v1::CertificateSigningRequest,
    coordination::v1::Lease,
    core::v1::{
        ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
        ReplicationController, ResourceQuota, Service, ServiceAccount,
    },
    discovery::v1::EndpointSlice,
    storage::v1::StorageClass,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

macro_rules! world {
    ($($field:ident, $watch:ident: $kind:ty = ($group:literal, $version:literal, $name:literal, $plural:literal), $selector:expr;)*) => {
        /// A kind that can be watched; the union over all running controllers is what the process follows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Watch { $($watch),* }

        #[derive(Default)]
        pub struct World {
            $(pub $field: Arc<Cache<$kind>>,)*
            pub refusals: Refusals,
        }

        $(impl Object for $kind {
            const RESOURCE: Resource = Resource::new($group, $version, $name, $plural);
        })*

        impl World {
            pub(super) fn follow(&self, watch: Watch, client: Client, shutdown: CancellationToken) -> BoxFuture<'static, ()> {
                match watch {
                    $(Watch::$watch => {
                        let source = Source { resource: <$kind>::RESOURCE, field_selector: $selector };
                        Box::pin(follow(client, self.$field.clone(), source, shutdown))
                    }),*
                }
            }

            pub(super) async fn synced(&self, watch: Watch) {
                match watch { $(Watch::$watch => self.$field.synced().await),* }
            }

            /// Hands the server's answer to a write to the kind's cache. Answers of other kinds are ignored.
            /// Returns the name of the object.
            pub fn offer(&self, resource: &Resource, answer: &str) -> Option<String> {
                match (resource.group.as_ref(), resource.plural.as_ref()) {
                    $(($group, $plural) => {
                        let object = serde_json::from_str::<$kind>(answer).ok()?;
                        let name = object.metadata.name.clone();
                        self.$field.offer(object);
                        name
                    })*
                    _ => None,
                }
            }

            /// Tells `handler` about every change of the followed kinds (`true`: it exists). Returns the kinds it
            /// covers: those that are followed as a whole.
            pub fn on_any_change(
                &self,
                followed: &[Watch],
                handler: impl Fn(&Resource, &ObjectMeta, bool) + Clone + Send + Sync + 'static,
            ) -> Vec<Resource> {
                let mut covered = Vec::new();
                $({
                    let selector: Option<&str> = $selector;
                    if selector.is_none() && followed.contains(&Watch::$watch) {
                        let (handler, resource) = (handler.clone(), <$kind>::RESOURCE);
                        self.$field.on_change(move |old, new| {
                            // A name that was reused is a different object.
                            if let Some(old) = old && new.is_none_or(|new| new.metadata.uid != old.metadata.uid) {
                                handler(&resource, &old.metadata, false);
                            }
                            if let Some(new) = new {
                                handler(&resource, &new.metadata, true);
                            }
                        });
                        covered.push(<$kind>::RESOURCE);
                    }
                })*
                covered
            }

            pub(super) fn mark_deleting(&self, resource: &Resource, key: &Key, uid: Option<&str>, now: Timestamp) {
                match (resource.group.as_ref(), resource.plural.as_ref()) {
                    $(($group, $plural) => self.$field.mark_deleting(key, uid, now),)*
                    _ => {}
                }
            }
        }
    };
}

world! {
    certificate_requests, CertificateRequests: CertificateSigningRequest = ("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests"), None;
    config_maps, RootCas: ConfigMap = ("", "v1", "ConfigMap", "configmaps"), Some("metadata.name=kube-root-ca.crt");
    controller_revisions, ControllerRevisions: ControllerRevision = ("apps", "v1", "ControllerRevision", "controllerrevisions"), None;
    cron_jobs, CronJobs: CronJob = ("batch", "v1", "CronJob", "cronjobs"), None;
    daemon_sets, DaemonSets: DaemonSet = ("apps", "v1", "DaemonSet", "daemonsets"), None;
    deployments, Deployments: Deployment = ("apps", "v1", "Deployment", "deployments"), None;
    endpoint_slices, EndpointSlices: EndpointSlice = ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"), None;
    endpoints, Endpoints: Endpoints = ("", "v1", "Endpoints", "endpoints"), None;
    jobs, Jobs: Job = ("batch", "v1", "Job", "jobs"), None;
    leases, NodeLeases: Lease = ("coordination.k8s.io", "v1", "Lease", "leases"), Some("metadata.namespace=kube-node-lease");
    namespaces, Namespaces: Namespace = ("", "v1", "Namespace", "namespaces"), None;
    nodes, Nodes: Node = ("", "v1", "Node", "nodes"), None;
    pods, Pods: Pod = ("", "v1", "Pod", "pods"), None;
    quotas, Quotas: ResourceQuota = ("", "v1", "ResourceQuota", "resourcequotas"), None;
    replica_sets, ReplicaSets: ReplicaSet = ("apps", "v1", "ReplicaSet", "replicasets"), None;
    replication_controllers, ReplicationControllers: ReplicationController = ("", "v1", "ReplicationController", "replicationcontrollers"), None;
    service_accounts, ServiceAccounts: ServiceAccount = ("", "v1", "ServiceAccount", "serviceaccounts"), Some("metadata.name=default");
    services, Services: Service = ("", "v1", "Service", "services"), None;
    stateful_sets, StatefulSets: StatefulSet = ("apps", "v1", "StatefulSet", "statefulsets"), None;
    storage_classes, StorageClasses: StorageClass = ("storage.k8s.io", "v1", "StorageClass", "storageclasses"), None;
    volume_claims, VolumeClaims: PersistentVolumeClaim = ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"), None;
    volumes, Volumes: PersistentVolume = ("", "v1", "PersistentVolume", "persistentvolumes"), None;
}
