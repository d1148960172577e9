//! Defaults that depend on nothing else: type, then field and JSON text. Defaults that OpenAPI publishes are in the
//! tables already and not repeated here.

type Rows = &'static [(&'static str, &'static str)];

const SELECTORS_AND_POLICY: Rows = &[
    ("failurePolicy", r#""Fail""#),
    ("matchPolicy", r#""Equivalent""#),
    ("namespaceSelector", "{}"),
    ("objectSelector", "{}"),
    ("timeoutSeconds", "10"),
];
const FILE_MODE: Rows = &[("defaultMode", "420")];
const HTTPS_PORT: Rows = &[("port", "443")];
const FAIL: Rows = &[("failurePolicy", r#""Fail""#)];
const ALL_SCOPES: Rows = &[("scope", r#""*""#)];

/// A type may stand here more than once.
pub const RULES: &[(&str, Rows)] = &[
    (
        "io.k8s.api.admissionregistration.v1.MatchResources",
        &[("matchPolicy", r#""Equivalent""#), ("namespaceSelector", "{}"), ("objectSelector", "{}")],
    ),
    ("io.k8s.api.admissionregistration.v1.MutatingAdmissionPolicySpec", FAIL),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", SELECTORS_AND_POLICY),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", &[("reinvocationPolicy", r#""Never""#)]),
    ("io.k8s.api.admissionregistration.v1.NamedRuleWithOperations", ALL_SCOPES),
    ("io.k8s.api.admissionregistration.v1.RuleWithOperations", ALL_SCOPES),
    ("io.k8s.api.admissionregistration.v1.ServiceReference", HTTPS_PORT),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec", FAIL),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", SELECTORS_AND_POLICY),
    ("io.k8s.api.apps.v1.DaemonSetSpec", &[("revisionHistoryLimit", "10")]),
    (
        "io.k8s.api.apps.v1.DeploymentSpec",
        &[("replicas", "1"), ("revisionHistoryLimit", "10"), ("progressDeadlineSeconds", "600")],
    ),
    ("io.k8s.api.apps.v1.ReplicaSetSpec", &[("replicas", "1")]),
    (
        "io.k8s.api.apps.v1.StatefulSetPersistentVolumeClaimRetentionPolicy",
        &[("whenDeleted", r#""Retain""#), ("whenScaled", r#""Retain""#)],
    ),
    (
        "io.k8s.api.apps.v1.StatefulSetSpec",
        &[
            ("podManagementPolicy", r#""OrderedReady""#),
            ("persistentVolumeClaimRetentionPolicy", "{}"),
            ("replicas", "1"),
            ("revisionHistoryLimit", "10"),
        ],
    ),
    ("io.k8s.api.authentication.v1.TokenRequestSpec", &[("expirationSeconds", "3600")]),
    ("io.k8s.api.autoscaling.v1.HorizontalPodAutoscalerSpec", &[("minReplicas", "1")]),
    (
        "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerSpec",
        &[
            ("minReplicas", "1"),
            (
                "metrics",
                r#"[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":80}}}]"#,
            ),
        ],
    ),
    (
        "io.k8s.api.batch.v1.CronJobSpec",
        &[
            ("concurrencyPolicy", r#""Allow""#),
            ("suspend", "false"),
            ("successfulJobsHistoryLimit", "3"),
            ("failedJobsHistoryLimit", "1"),
        ],
    ),
    ("io.k8s.api.batch.v1.PodFailurePolicyOnPodConditionsPattern", &[("status", r#""True""#)]),
    ("io.k8s.api.core.v1.ConfigMapVolumeSource", FILE_MODE),
    (
        "io.k8s.api.core.v1.Container",
        &[("terminationMessagePath", r#""/dev/termination-log""#), ("terminationMessagePolicy", r#""File""#)],
    ),
    ("io.k8s.api.core.v1.DownwardAPIVolumeSource", FILE_MODE),
    ("io.k8s.api.core.v1.EndpointPort", &[("protocol", r#""TCP""#)]),
    (
        "io.k8s.api.core.v1.EphemeralContainer",
        &[("terminationMessagePath", r#""/dev/termination-log""#), ("terminationMessagePolicy", r#""File""#)],
    ),
    ("io.k8s.api.core.v1.HTTPGetAction", &[("path", r#""/""#), ("scheme", r#""HTTP""#)]),
    ("io.k8s.api.core.v1.HostPathVolumeSource", &[("type", r#""""#)]),
    ("io.k8s.api.core.v1.NamespaceStatus", &[("phase", r#""Active""#)]),
    ("io.k8s.api.core.v1.ObjectFieldSelector", &[("apiVersion", r#""v1""#)]),
    ("io.k8s.api.core.v1.PersistentVolumeClaimSpec", &[("volumeMode", r#""Filesystem""#)]),
    ("io.k8s.api.core.v1.PersistentVolumeStatus", &[("phase", r#""Pending""#)]),
    ("io.k8s.api.core.v1.PodLogOptions", &[("stream", r#""All""#)]),
    (
        "io.k8s.api.core.v1.PodSpec",
        &[
            ("dnsPolicy", r#""ClusterFirst""#),
            ("restartPolicy", r#""Always""#),
            ("securityContext", "{}"),
            ("terminationGracePeriodSeconds", "30"),
            ("schedulerName", r#""default-scheduler""#),
        ],
    ),
    (
        "io.k8s.api.core.v1.Probe",
        &[
            ("timeoutSeconds", "1"),
            ("periodSeconds", "10"),
            ("successThreshold", "1"),
            ("failureThreshold", "3"),
        ],
    ),
    ("io.k8s.api.core.v1.ProjectedVolumeSource", FILE_MODE),
    ("io.k8s.api.core.v1.Secret", &[("type", r#""Opaque""#)]),
    ("io.k8s.api.core.v1.SecretVolumeSource", FILE_MODE),
    ("io.k8s.api.core.v1.ServiceAccountTokenProjection", &[("expirationSeconds", "3600")]),
    ("io.k8s.api.discovery.v1.EndpointPort", &[("name", r#""""#), ("protocol", r#""TCP""#)]),
    (
        "io.k8s.api.flowcontrol.v1.ExemptPriorityLevelConfiguration",
        &[("nominalConcurrencyShares", "0"), ("lendablePercent", "0")],
    ),
    ("io.k8s.api.flowcontrol.v1.FlowSchemaSpec", &[("matchingPrecedence", "1000")]),
    (
        "io.k8s.api.flowcontrol.v1.LimitedPriorityLevelConfiguration",
        &[("nominalConcurrencyShares", "30"), ("lendablePercent", "0")],
    ),
    (
        "io.k8s.api.flowcontrol.v1.QueuingConfiguration",
        &[("handSize", "8"), ("queues", "64"), ("queueLengthLimit", "50")],
    ),
    ("io.k8s.api.networking.v1.IngressClassParametersReference", &[("scope", r#""Cluster""#)]),
    ("io.k8s.api.networking.v1.NetworkPolicyPort", &[("protocol", r#""TCP""#)]),
    ("io.k8s.api.rbac.v1.RoleRef", &[("apiGroup", r#""rbac.authorization.k8s.io""#)]),
    ("io.k8s.api.resource.v1.DeviceSubRequest", &[("allocationMode", r#""ExactCount""#)]),
    ("io.k8s.api.resource.v1.ExactDeviceRequest", &[("allocationMode", r#""ExactCount""#)]),
    ("io.k8s.api.resource.v1.NodeAllocatableResourceMapping", &[("allocationMultiplier", r#""1""#)]),
    ("io.k8s.api.scheduling.v1.PriorityClass", &[("preemptionPolicy", r#""PreemptLowerPriority""#)]),
    (
        "io.k8s.api.storage.v1.CSIDriverSpec",
        &[
            ("attachRequired", "true"),
            ("podInfoOnMount", "false"),
            ("storageCapacity", "false"),
            ("fsGroupPolicy", r#""ReadWriteOnceWithFSType""#),
            ("volumeLifecycleModes", r#"["Persistent"]"#),
            ("requiresRepublish", "false"),
            ("seLinuxMount", "false"),
        ],
    ),
    (
        "io.k8s.api.storage.v1.StorageClass",
        &[("reclaimPolicy", r#""Delete""#), ("volumeBindingMode", r#""Immediate""#)],
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionSpec",
        &[("conversion", r#"{"strategy":"None"}"#)],
    ),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.ServiceReference", HTTPS_PORT),
    ("io.k8s.kube-aggregator.pkg.apis.apiregistration.v1.ServiceReference", HTTPS_PORT),
];

#[cfg(test)]
mod tests {
    use super::RULES;
    use crate::schema::type_named;

    #[test]
    fn every_row_names_a_field_and_a_value_that_exist() {
        for (name, rows) in RULES {
            let type_ = type_named(name).unwrap_or_else(|| panic!("no type {name}"));
            for (field, text) in *rows {
                assert!(type_.field(field).is_some(), "{name} has no {field}");
                assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "{name}.{field}: {text}");
            }
        }
    }
}
