//! Which controllers run, and with what.

use crate::{
    certificate::Certificates,
    cleanup::{FinishedJobs, PodGarbage},
    cronjob::CronJobs,
    daemonset::DaemonSets,
    deployment::Deployments,
    endpoints::EndpointSlices,
    garbage::Garbage,
    job::{Jobs, OrphanedPods},
    namespace::Namespaces,
    node::{NodeLifecycle, NodePods, PodNetwork},
    quota::Quotas,
    replicaset::ReplicaSets,
    replication_controller::ReplicationControllers,
    scheduler::{Scheduler, Scheduling},
    service_account::{RootCa, ServiceAccounts},
    shell::{Controller, Engine},
    statefulset::StatefulSets,
    volume::Volumes,
};
use kube::Client;
use std::{collections::BTreeSet, sync::Arc};
use tokio_util::sync::CancellationToken;

/// A controller that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    CertificateSigning,
    CronJob,
    DaemonSet,
    Deployment,
    EndpointSlice,
    GarbageCollection,
    Job,
    Namespace,
    NodeLifecycle,
    PodGarbage,
    Quota,
    ReplicaSet,
    ReplicationController,
    Scheduler,
    ServiceAccount,
    StatefulSet,
    TtlAfterFinished,
    Volume,
}

impl Name {
    pub const ALL: [Name; 18] = [
        Self::CertificateSigning,
        Self::CronJob,
        Self::DaemonSet,
        Self::Deployment,
        Self::EndpointSlice,
        Self::GarbageCollection,
        Self::Job,
        Self::Namespace,
        Self::NodeLifecycle,
        Self::PodGarbage,
        Self::Quota,
        Self::ReplicaSet,
        Self::ReplicationController,
        Self::Scheduler,
        Self::ServiceAccount,
        Self::StatefulSet,
        Self::TtlAfterFinished,
        Self::Volume,
    ];

    /// What a hub runs itself; its workloads run at sites.
    pub const HUB: [Name; 4] =
        [Self::CertificateSigning, Self::GarbageCollection, Self::Namespace, Self::ServiceAccount];
}

/// The certificate authority with which approved requests are signed.
#[derive(Clone)]
pub struct Ca {
    pub cert_pem: String,
    pub key_pem: String,
}

pub struct Options {
    pub controllers: BTreeSet<Name>,
    /// Signs certificate requests; without it approved requests wait for somebody else.
    pub signer: Option<Ca>,
    /// Published as `kube-root-ca.crt` in every namespace; `None`: not published.
    pub root_ca: Option<String>,
    /// Where the local storage class makes directories on a node.
    pub volume_dir: String,
    /// Every node gets a part of this network for its pods; `None`: somebody else sees to that.
    pub pod_network: Option<PodNetwork>,
    pub shutdown: CancellationToken,
}

impl Options {
    /// Every controller, as a site runs them.
    pub fn site(shutdown: CancellationToken) -> Self {
        Self {
            controllers: Name::ALL.into(),
            signer: None,
            root_ca: None,
            volume_dir: "/var/lib/tombolo/volumes".into(),
            pod_network: None,
            shutdown,
        }
    }

    /// Only what a hub needs for its own objects.
    pub fn hub(shutdown: CancellationToken) -> Self {
        Self { controllers: Name::HUB.into(), ..Self::site(shutdown) }
    }
}

/// Runs the chosen controllers until `options.shutdown`.
pub async fn run(client: Client, options: Options) {
    let mut controllers: Vec<Arc<dyn Controller>> = Vec::new();
    for name in &options.controllers {
        match name {
            Name::Deployment => controllers.push(Arc::new(Deployments)),
            Name::EndpointSlice => controllers.push(Arc::new(EndpointSlices)),
            Name::DaemonSet => controllers.push(Arc::new(DaemonSets)),
            Name::Job => {
                controllers.push(Arc::new(Jobs));
                controllers.push(Arc::new(OrphanedPods));
            }
            Name::StatefulSet => controllers.push(Arc::new(StatefulSets)),
            Name::NodeLifecycle => {
                controllers.push(Arc::new(NodeLifecycle::default()));
                if let Some(network) = options.pod_network {
                    controllers.push(Arc::new(NodePods { network }));
                }
            }
            Name::CronJob => controllers.push(Arc::new(CronJobs)),
            Name::PodGarbage => controllers.push(Arc::new(PodGarbage)),
            Name::Quota => controllers.push(Arc::new(Quotas::default())),
            Name::TtlAfterFinished => controllers.push(Arc::new(FinishedJobs)),
            Name::CertificateSigning => controllers.push(Arc::new(Certificates {
                ca: options.signer.clone(),
                approves_nodes: options.controllers.contains(&Name::NodeLifecycle),
            })),
            Name::Volume => controllers.push(Arc::new(Volumes { dir: options.volume_dir.clone() })),
            Name::ReplicaSet => controllers.push(Arc::new(ReplicaSets)),
            Name::ReplicationController => controllers.push(Arc::new(ReplicationControllers)),
            Name::GarbageCollection => controllers.push(Arc::new(Garbage::default())),
            Name::Namespace => controllers.push(Arc::new(Namespaces)),
            Name::Scheduler => controllers.push(Arc::new(Scheduling(Arc::new(Scheduler::default())))),
            Name::ServiceAccount => {
                controllers.push(Arc::new(ServiceAccounts));
                if let Some(ca) = options.root_ca.clone() {
                    controllers.push(Arc::new(RootCa { ca }));
                }
            }
        }
    }
    Engine::new(client, controllers).run(options.shutdown).await;
}
