//! Which checks each kind has.

use serde_json::Value;

use super::at::{At, Errors};
use super::meta::NameSyntax;
use super::{
    addresses, api_services, autoscaling, batch, certificates, core, csi, device_slices, devices, events,
    flow, meta, networking, pod, pod_status, policies, policy, rbac, service, storage, webhooks, workload,
};
use crate::names::{config_key, dns_label, dns_subdomain, path_segment};

type Object = fn(&mut Errors, &At<'_, '_>);
type Update = fn(&mut Errors, &At<'_, '_>, &Value);

/// The checks of one kind. Kinds without a row have ordinary names and nothing else to check.
pub(super) struct Rules {
    group: &'static str,
    kind: &'static str,
    pub name: NameSyntax,
    /// Checks the object by itself; also on update, unless `update_is_whole`.
    pub object: Object,
    pub update: Update,
    /// `update` includes what is to be said about the object by itself.
    pub update_is_whole: bool,
    pub status: Update,
}

const fn row(group: &'static str, kind: &'static str, name: NameSyntax, object: Object) -> Rules {
    let (update, status) = (core::nothing_changed as Update, core::nothing_changed as Update);
    Rules { group, kind, name, object, update, update_is_whole: false, status }
}

impl Rules {
    /// On update, this in addition.
    const fn and(mut self, update: Update) -> Self {
        self.update = update;
        self
    }

    /// On update, this instead.
    const fn or(mut self, update: Update) -> Self {
        self.update = update;
        self.update_is_whole = true;
        self
    }

    const fn status(mut self, status: Update) -> Self {
        self.status = status;
        self
    }
}

const APPS: &str = "apps";
const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const DEVICES: &str = "resource.k8s.io";

static TABLE: &[Rules] = &[
    row("", "Pod", dns_subdomain, pod::create).or(pod::update).status(pod_status::status),
    row("", "ConfigMap", dns_subdomain, core::config_map).or(core::config_map_update),
    row("", "Secret", dns_subdomain, core::secret).or(core::secret_update),
    row("", "Service", dns_label, service::service)
        .or(service::service_update)
        .status(service::service_status),
    row("", "Endpoints", dns_subdomain, service::endpoints),
    row("", "Namespace", dns_label, core::namespace).status(core::namespace_status),
    row("", "Node", dns_subdomain, core::node).or(core::node_update).status(core::node_status),
    row("", "LimitRange", dns_subdomain, core::limit_range),
    row("", "ResourceQuota", dns_subdomain, core::resource_quota).or(core::resource_quota_update),
    row("", "PersistentVolume", dns_subdomain, storage::volume).or(storage::volume_update),
    row("", "PersistentVolumeClaim", dns_subdomain, storage::claim).or(storage::claim_update),
    row("", "ReplicationController", dns_subdomain, workload::replication_controller)
        .status(workload::replicas_status),
    row("", "PodTemplate", dns_subdomain, |e, object| pod::template(e, &object.get("template"))),
    row(APPS, "Deployment", dns_subdomain, workload::deployment)
        .and(workload::selector_immutable)
        .status(workload::replicas_status),
    row(APPS, "ReplicaSet", dns_subdomain, workload::replica_set)
        .and(workload::selector_immutable)
        .status(workload::replicas_status),
    row(APPS, "StatefulSet", dns_label, workload::stateful_set)
        .or(workload::stateful_set_update)
        .status(workload::replicas_status),
    row(APPS, "DaemonSet", dns_subdomain, workload::daemon_set)
        .and(workload::selector_immutable)
        .status(workload::replicas_status),
    row(APPS, "ControllerRevision", dns_subdomain, workload::controller_revision)
        .and(workload::data_immutable),
    row("batch", "Job", dns_subdomain, batch::job).or(batch::job_update).status(batch::job_status),
    row("batch", "CronJob", dns_subdomain, batch::cron_job).or(batch::cron_job_update),
    row("discovery.k8s.io", "EndpointSlice", dns_subdomain, service::endpoint_slice)
        .or(service::endpoint_slice_update),
    row("networking.k8s.io", "NetworkPolicy", dns_subdomain, networking::network_policy),
    row("networking.k8s.io", "Ingress", dns_subdomain, networking::ingress)
        .status(networking::ingress_status),
    row("networking.k8s.io", "IngressClass", dns_subdomain, networking::ingress_class)
        .or(networking::ingress_class_update),
    row("networking.k8s.io", "IPAddress", addresses::ip_name, addresses::ip_address)
        .and(addresses::ip_address_update),
    row("networking.k8s.io", "ServiceCIDR", dns_subdomain, addresses::service_cidr)
        .or(addresses::service_cidr_update),
    row("policy", "PodDisruptionBudget", path_segment, policy::disruption_budget)
        .status(policy::disruption_budget_status),
    row("autoscaling", "HorizontalPodAutoscaler", dns_subdomain, autoscaling::autoscaler)
        .or(autoscaling::autoscaler_update)
        .status(autoscaling::autoscaler_status),
    row("scheduling.k8s.io", "PriorityClass", dns_subdomain, policy::priority_class)
        .or(policy::priority_class_update),
    row("coordination.k8s.io", "Lease", dns_subdomain, policy::lease).or(policy::lease_update),
    row("coordination.k8s.io", "LeaseCandidate", config_key, core::nothing),
    row("node.k8s.io", "RuntimeClass", dns_subdomain, policy::runtime_class)
        .and(policy::runtime_class_update),
    row(STORAGE, "StorageClass", dns_subdomain, storage::class).or(storage::class_update),
    row(STORAGE, "CSIDriver", dns_subdomain, storage::driver).and(storage::driver_update),
    row(STORAGE, "CSINode", dns_subdomain, csi::node).and(csi::node_update),
    row(STORAGE, "CSIStorageCapacity", dns_subdomain, csi::capacity).or(csi::capacity_update),
    row(STORAGE, "VolumeAttachment", dns_subdomain, csi::attachment)
        .and(storage::spec_immutable)
        .status(csi::attachment_status),
    row(STORAGE, "VolumeAttributesClass", dns_subdomain, csi::attributes_class)
        .and(csi::attributes_class_update),
    row(RBAC, "Role", path_segment, rbac::role),
    row(RBAC, "ClusterRole", path_segment, rbac::cluster_role),
    row(RBAC, "RoleBinding", path_segment, rbac::role_binding).or(rbac::role_ref_immutable),
    row(RBAC, "ClusterRoleBinding", path_segment, rbac::cluster_role_binding).or(rbac::role_ref_immutable),
    row(ADMISSION, "ValidatingWebhookConfiguration", dns_subdomain, webhooks::webhooks)
        .or(webhooks::webhooks_update),
    row(ADMISSION, "MutatingWebhookConfiguration", dns_subdomain, webhooks::webhooks)
        .or(webhooks::webhooks_update),
    row(ADMISSION, "ValidatingAdmissionPolicy", dns_subdomain, policies::validating_policy)
        .or(policies::validating_policy_update)
        .status(meta::status_conditions),
    row(ADMISSION, "ValidatingAdmissionPolicyBinding", dns_subdomain, policies::validating_binding),
    row(ADMISSION, "MutatingAdmissionPolicy", dns_subdomain, policies::mutating_policy)
        .or(policies::mutating_policy_update),
    row(ADMISSION, "MutatingAdmissionPolicyBinding", dns_subdomain, policies::mutating_binding),
    row("certificates.k8s.io", "CertificateSigningRequest", path_segment, certificates::signing_request)
        .or(certificates::signing_request_update)
        .status(certificates::signing_request_status),
    row(DEVICES, "DeviceClass", dns_subdomain, devices::class),
    row(DEVICES, "ResourceClaim", dns_subdomain, devices::claim)
        .or(devices::claim_update)
        .status(devices::claim_status),
    row(DEVICES, "ResourceClaimTemplate", dns_subdomain, devices::claim_template).or(devices::claim_update),
    row(DEVICES, "ResourceSlice", dns_subdomain, device_slices::slice).and(device_slices::slice_update),
    row("flowcontrol.apiserver.k8s.io", "FlowSchema", dns_subdomain, flow::flow_schema)
        .status(flow::conditions),
    row("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", dns_subdomain, flow::priority_level)
        .status(flow::conditions),
    row("", "Event", path_segment, events::core_event).or(events::core_event_update),
    row("events.k8s.io", "Event", path_segment, events::event).or(events::event_update),
    row("apiregistration.k8s.io", "APIService", path_segment, api_services::api_service)
        .status(api_services::api_service_status),
];

pub(super) fn find(group: &str, kind: &str) -> Option<&'static Rules> {
    TABLE.iter().find(|r| r.kind == kind && r.group == group)
}
