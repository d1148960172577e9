//! The columns of built-in resources, in upstream's order. Priority 1 is shown with `-o wide` only.

use jiff::Timestamp;
use serde_json::Value;

use super::{age, cells, pod, text};

pub struct Column {
    pub name: &'static str,
    pub type_: &'static str,
    pub format: &'static str,
    pub priority: u8,
    pub cell: Cell,
}

/// How a cell comes out of an object. Paths are JSON pointers.
pub enum Cell {
    Name,
    Age,
    /// The text at a path, or something else where there is none.
    Text(&'static str, &'static str),
    Int(&'static str),
    Bool(&'static str, bool),
    /// The number of entries of a list or map.
    Count(&'static str),
    /// Names and images of the containers in a list.
    Names(&'static str),
    Images(&'static str),
    Labels(&'static str),
    Selector(&'static str),
    /// The texts of a list.
    Joined(&'static str, &'static str),
    Call(fn(&Value, Timestamp) -> Value),
}

impl Cell {
    pub fn render(&self, object: &Value, now: Timestamp) -> Value {
        let containers = |path: &str, field: &str| {
            text::join(text::items(object, path).iter().map(|c| text::text(c, field)), ",")
        };
        match self {
            Cell::Name => object["metadata"]["name"].clone(),
            Cell::Age => age(object.pointer("/metadata/creationTimestamp"), now).into(),
            Cell::Text(path, instead) => match object.pointer(path) {
                None | Some(Value::Null) => (*instead).into(),
                Some(Value::String(s)) if s.is_empty() => (*instead).into(),
                Some(Value::String(s)) => s.as_str().into(),
                Some(other) => other.to_string().into(),
            },
            Cell::Int(path) => text::int(object, path).into(),
            Cell::Bool(path, instead) => {
                object.pointer(path).and_then(Value::as_bool).unwrap_or(*instead).into()
            }
            Cell::Count(path) => cells::count(object, path).into(),
            Cell::Names(path) => containers(path, "/name").into(),
            Cell::Images(path) => containers(path, "/image").into(),
            Cell::Labels(path) => text::labels(object.pointer(path).and_then(Value::as_object)).into(),
            Cell::Selector(path) => text::selector(object.pointer(path)).into(),
            Cell::Joined(path, separator) => {
                text::join(text::items(object, path).iter().filter_map(Value::as_str), separator).into()
            }
            Cell::Call(make) => make(object, now),
        }
    }
}

const fn col(name: &'static str, cell: Cell) -> Column {
    Column { name, type_: "string", format: "", priority: 0, cell }
}

const fn int(name: &'static str, cell: Cell) -> Column {
    Column { name, type_: "integer", format: "", priority: 0, cell }
}

const fn flag(name: &'static str, cell: Cell) -> Column {
    Column { name, type_: "boolean", format: "", priority: 0, cell }
}

const fn wide(name: &'static str, cell: Cell) -> Column {
    Column { name, type_: "string", format: "", priority: 1, cell }
}

const NAME: Column = named("Name", Cell::Name, 0);
const AGE: Column = col("Age", Cell::Age);

const fn named(name: &'static str, cell: Cell, priority: u8) -> Column {
    Column { name, type_: "string", format: "name", priority, cell }
}

/// What upstream shows of kinds it has no columns for.
pub const CREATED_AT: &[Column] = &[
    NAME,
    Column {
        name: "Created At",
        type_: "date",
        format: "",
        priority: 0,
        cell: Cell::Text("/metadata/creationTimestamp", "<unknown>"),
    },
];

pub static PODS: &[Column] = &[
    NAME,
    col("Ready", Cell::Call(pod::ready)),
    col("Status", Cell::Call(pod::status)),
    col("Restarts", Cell::Call(pod::restarts)),
    AGE,
    wide("IP", Cell::Text("/status/podIPs/0/ip", "<none>")),
    wide("Node", Cell::Text("/spec/nodeName", "<none>")),
    wide("Nominated Node", Cell::Text("/status/nominatedNodeName", "<none>")),
    wide("Readiness Gates", Cell::Call(pod::readiness_gates)),
];

const EVENTS: &[Column] = &[
    col("Last Seen", Cell::Call(cells::event_last_seen)),
    col("Type", Cell::Text("/type", "")),
    col("Reason", Cell::Text("/reason", "")),
    col("Object", Cell::Call(cells::event_object)),
    wide("Subobject", Cell::Call(cells::event_subobject)),
    wide("Source", Cell::Call(cells::event_source)),
    col("Message", Cell::Call(cells::event_message)),
    wide("First Seen", Cell::Call(|o, now| cells::event_first_seen(o, now).into())),
    wide("Count", Cell::Call(cells::event_count)),
    named("Name", Cell::Name, 1),
];

const AUTOSCALERS: &[Column] = &[
    NAME,
    col(
        "Reference",
        Cell::Call(|o, _| cells::pair(o, "/spec/scaleTargetRef/kind", "/spec/scaleTargetRef/name")),
    ),
    col("Targets", Cell::Call(cells::autoscaler_targets)),
    col("MinPods", Cell::Text("/spec/minReplicas", "<unset>")),
    col("MaxPods", Cell::Int("/spec/maxReplicas")),
    col("Replicas", Cell::Int("/status/currentReplicas")),
    AGE,
];

const ROLE_BINDINGS: &[Column] = &[
    NAME,
    col("Role", Cell::Call(|o, _| cells::pair(o, "/roleRef/kind", "/roleRef/name"))),
    AGE,
    wide("Users", Cell::Call(|o, _| cells::subjects(o, "User"))),
    wide("Groups", Cell::Call(|o, _| cells::subjects(o, "Group"))),
    wide("ServiceAccounts", Cell::Call(|o, _| cells::subjects(o, "ServiceAccount"))),
];

const WEBHOOKS: &[Column] = &[NAME, int("Webhooks", Cell::Count("/webhooks")), AGE];

const POLICY_BINDINGS: &[Column] = &[
    NAME,
    col("PolicyName", Cell::Text("/spec/policyName", "")),
    col("ParamRef", Cell::Call(cells::policy_parameters)),
    AGE,
];

const REPLICAS: &[Column] = &[
    NAME,
    int("Desired", Cell::Int("/spec/replicas")),
    int("Current", Cell::Int("/status/replicas")),
    int("Ready", Cell::Int("/status/readyReplicas")),
    AGE,
    wide("Containers", Cell::Names(CONTAINERS)),
    wide("Images", Cell::Images(CONTAINERS)),
    wide("Selector", Cell::Selector("/spec/selector")),
];

const CONTAINERS: &str = "/spec/template/spec/containers";
const JOB_CONTAINERS: &str = "/spec/jobTemplate/spec/template/spec/containers";

const ADMISSION: &str = "admissionregistration.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const DEVICES: &str = "resource.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";

/// Group, resource, columns. Resources not listed show [`CREATED_AT`].
pub const COLUMNS: &[(&str, &str, &[Column])] = &[
    ("", "pods", PODS),
    ("", "events", EVENTS),
    ("events.k8s.io", "events", EVENTS),
    (
        "",
        "componentstatuses",
        &[
            NAME,
            col("Status", Cell::Call(cells::component_status)),
            col("Message", Cell::Text("/conditions/0/message", "")),
            col("Error", Cell::Text("/conditions/0/error", "")),
        ],
    ),
    (
        "",
        "configmaps",
        &[
            NAME,
            col(
                "Data",
                Cell::Call(|o, _| (cells::count(o, "/data") + cells::count(o, "/binaryData")).into()),
            ),
            AGE,
        ],
    ),
    ("", "endpoints", &[NAME, col("Endpoints", Cell::Call(cells::endpoints)), AGE]),
    ("", "namespaces", &[NAME, col("Status", Cell::Text("/status/phase", "")), AGE]),
    (
        "",
        "nodes",
        &[
            NAME,
            col("Status", Cell::Call(cells::node_status)),
            col("Roles", Cell::Call(cells::node_roles)),
            AGE,
            col("Version", Cell::Text("/status/nodeInfo/kubeletVersion", "")),
            wide("Internal-IP", Cell::Call(|o, _| cells::node_address(o, "InternalIP"))),
            wide("External-IP", Cell::Call(|o, _| cells::node_address(o, "ExternalIP"))),
            wide("OS-Image", Cell::Text("/status/nodeInfo/osImage", "<unknown>")),
            wide("Kernel-Version", Cell::Call(cells::node_kernel)),
            wide("Container-Runtime", Cell::Text("/status/nodeInfo/containerRuntimeVersion", "<unknown>")),
        ],
    ),
    (
        "",
        "persistentvolumeclaims",
        &[
            NAME,
            col("Status", Cell::Call(cells::phase)),
            col("Volume", Cell::Text("/spec/volumeName", "")),
            col("Capacity", Cell::Call(cells::claim_capacity)),
            col("Access Modes", Cell::Call(cells::claim_modes)),
            col("StorageClass", Cell::Call(cells::storage_class)),
            col("VolumeAttributesClass", Cell::Text("/spec/volumeAttributesClassName", "<unset>")),
            AGE,
            wide("VolumeMode", Cell::Text("/spec/volumeMode", "<unset>")),
        ],
    ),
    (
        "",
        "persistentvolumes",
        &[
            NAME,
            col("Capacity", Cell::Text("/spec/capacity/storage", "0")),
            col("Access Modes", Cell::Call(|o, _| cells::access_modes(o, "/spec/accessModes").into())),
            col("Reclaim Policy", Cell::Text("/spec/persistentVolumeReclaimPolicy", "")),
            col("Status", Cell::Call(cells::phase)),
            col("Claim", Cell::Call(cells::volume_claim)),
            col("StorageClass", Cell::Call(cells::storage_class)),
            col("VolumeAttributesClass", Cell::Text("/spec/volumeAttributesClassName", "<unset>")),
            col("Reason", Cell::Text("/status/reason", "")),
            AGE,
            wide("VolumeMode", Cell::Text("/spec/volumeMode", "<unset>")),
        ],
    ),
    (
        "",
        "podtemplates",
        &[
            NAME,
            col("Containers", Cell::Names("/template/spec/containers")),
            col("Images", Cell::Images("/template/spec/containers")),
            col("Pod Labels", Cell::Labels("/template/metadata/labels")),
        ],
    ),
    (
        "",
        "replicationcontrollers",
        &[
            NAME,
            int("Desired", Cell::Int("/spec/replicas")),
            int("Current", Cell::Int("/status/replicas")),
            int("Ready", Cell::Int("/status/readyReplicas")),
            AGE,
            wide("Containers", Cell::Names(CONTAINERS)),
            wide("Images", Cell::Images(CONTAINERS)),
            wide("Selector", Cell::Labels("/spec/selector")),
        ],
    ),
    (
        "",
        "resourcequotas",
        &[
            NAME,
            col("Request", Cell::Call(|o, _| cells::quota(o, false))),
            col("Limit", Cell::Call(|o, _| cells::quota(o, true))),
            AGE,
        ],
    ),
    ("", "secrets", &[NAME, col("Type", Cell::Text("/type", "")), col("Data", Cell::Count("/data")), AGE]),
    ("", "serviceaccounts", &[NAME, AGE]),
    (
        "",
        "services",
        &[
            NAME,
            col("Type", Cell::Text("/spec/type", "")),
            col("Cluster-IP", Cell::Text("/spec/clusterIPs/0", "<none>")),
            col("External-IP", Cell::Call(cells::service_external)),
            col("Port(s)", Cell::Call(cells::service_ports)),
            AGE,
            wide("Selector", Cell::Labels("/spec/selector")),
        ],
    ),
    (
        "apiregistration.k8s.io",
        "apiservices",
        &[
            NAME,
            col("Service", Cell::Call(cells::api_service)),
            col("Available", Cell::Call(cells::api_service_available)),
            AGE,
        ],
    ),
    (
        "apps",
        "controllerrevisions",
        &[
            NAME,
            col("Controller", Cell::Call(cells::controller)),
            col("Revision", Cell::Int("/revision")),
            AGE,
        ],
    ),
    (
        "apps",
        "daemonsets",
        &[
            NAME,
            int("Desired", Cell::Int("/status/desiredNumberScheduled")),
            int("Current", Cell::Int("/status/currentNumberScheduled")),
            int("Ready", Cell::Int("/status/numberReady")),
            int("Up-to-date", Cell::Int("/status/updatedNumberScheduled")),
            int("Available", Cell::Int("/status/numberAvailable")),
            col("Node Selector", Cell::Labels("/spec/template/spec/nodeSelector")),
            AGE,
            wide("Containers", Cell::Names(CONTAINERS)),
            wide("Images", Cell::Images(CONTAINERS)),
            wide("Selector", Cell::Selector("/spec/selector")),
        ],
    ),
    (
        "apps",
        "deployments",
        &[
            NAME,
            col("Ready", Cell::Call(cells::ready_of_desired)),
            col("Up-to-date", Cell::Int("/status/updatedReplicas")),
            col("Available", Cell::Int("/status/availableReplicas")),
            AGE,
            wide("Containers", Cell::Names(CONTAINERS)),
            wide("Images", Cell::Images(CONTAINERS)),
            wide("Selector", Cell::Selector("/spec/selector")),
        ],
    ),
    ("apps", "replicasets", REPLICAS),
    (
        "apps",
        "statefulsets",
        &[
            NAME,
            col("Ready", Cell::Call(cells::ready_of_desired)),
            AGE,
            wide("Containers", Cell::Names(CONTAINERS)),
            wide("Images", Cell::Images(CONTAINERS)),
        ],
    ),
    ("autoscaling", "horizontalpodautoscalers", AUTOSCALERS),
    (
        "batch",
        "cronjobs",
        &[
            NAME,
            col("Schedule", Cell::Text("/spec/schedule", "")),
            col("Timezone", Cell::Text("/spec/timeZone", "<none>")),
            flag("Suspend", Cell::Call(cells::suspended)),
            int("Active", Cell::Count("/status/active")),
            col("Last Schedule", Cell::Call(cells::last_schedule)),
            AGE,
            wide("Containers", Cell::Names(JOB_CONTAINERS)),
            wide("Images", Cell::Images(JOB_CONTAINERS)),
            wide("Selector", Cell::Selector("/spec/jobTemplate/spec/selector")),
        ],
    ),
    (
        "batch",
        "jobs",
        &[
            NAME,
            col("Status", Cell::Call(cells::job_status)),
            col("Completions", Cell::Call(cells::job_completions)),
            col("Duration", Cell::Call(cells::job_duration)),
            AGE,
            wide("Containers", Cell::Names(CONTAINERS)),
            wide("Images", Cell::Images(CONTAINERS)),
            wide("Selector", Cell::Selector("/spec/selector")),
        ],
    ),
    (
        "certificates.k8s.io",
        "certificatesigningrequests",
        &[
            NAME,
            AGE,
            col("SignerName", Cell::Text("/spec/signerName", "<none>")),
            col("Requestor", Cell::Text("/spec/username", "")),
            col("RequestedDuration", Cell::Call(cells::requested_duration)),
            col("Condition", Cell::Call(cells::request_condition)),
        ],
    ),
    (
        NETWORKING,
        "ingressclasses",
        &[
            named(
                "Name",
                Cell::Call(|o, _| cells::default_name(o, "ingressclass.kubernetes.io/is-default-class")),
                0,
            ),
            col("Controller", Cell::Text("/spec/controller", "")),
            col("Parameters", Cell::Call(cells::ingress_class_parameters)),
            AGE,
        ],
    ),
    (
        NETWORKING,
        "ingresses",
        &[
            NAME,
            col("Class", Cell::Text("/spec/ingressClassName", "<none>")),
            col("Hosts", Cell::Call(cells::ingress_hosts)),
            col("Address", Cell::Call(|o, _| cells::balancer(o).into())),
            col("Ports", Cell::Call(cells::ingress_ports)),
            AGE,
        ],
    ),
    (NETWORKING, "ipaddresses", &[NAME, col("ParentRef", Cell::Call(cells::parent))]),
    (NETWORKING, "networkpolicies", &[NAME, col("Pod-Selector", Cell::Selector("/spec/podSelector")), AGE]),
    (NETWORKING, "servicecidrs", &[NAME, col("CIDRs", Cell::Joined("/spec/cidrs", ",")), AGE]),
    (
        "policy",
        "poddisruptionbudgets",
        &[
            NAME,
            col("Min Available", Cell::Text("/spec/minAvailable", "N/A")),
            col("Max Unavailable", Cell::Text("/spec/maxUnavailable", "N/A")),
            int("Allowed Disruptions", Cell::Int("/status/disruptionsAllowed")),
            AGE,
        ],
    ),
    (RBAC, "clusterrolebindings", ROLE_BINDINGS),
    (RBAC, "rolebindings", ROLE_BINDINGS),
    (
        STORAGE,
        "csidrivers",
        &[
            NAME,
            flag("AttachRequired", Cell::Bool("/spec/attachRequired", true)),
            flag("PodInfoOnMount", Cell::Bool("/spec/podInfoOnMount", false)),
            flag("StorageCapacity", Cell::Bool("/spec/storageCapacity", false)),
            col("TokenRequests", Cell::Call(cells::token_requests)),
            flag("RequiresRepublish", Cell::Bool("/spec/requiresRepublish", false)),
            col("Modes", Cell::Call(|o, _| cells::joined_or(o, "/spec/volumeLifecycleModes", "<none>"))),
            AGE,
        ],
    ),
    (STORAGE, "csinodes", &[NAME, int("Drivers", Cell::Count("/spec/drivers")), AGE]),
    (
        STORAGE,
        "storageclasses",
        &[
            named("Name", Cell::Call(cells::storage_class_name), 0),
            col("Provisioner", Cell::Text("/provisioner", "")),
            col("ReclaimPolicy", Cell::Text("/reclaimPolicy", "Delete")),
            col("VolumeBindingMode", Cell::Text("/volumeBindingMode", "Immediate")),
            col("AllowVolumeExpansion", Cell::Bool("/allowVolumeExpansion", false)),
            AGE,
        ],
    ),
    (
        STORAGE,
        "volumeattachments",
        &[
            NAME,
            named("Attacher", Cell::Text("/spec/attacher", ""), 0),
            col("PV", Cell::Text("/spec/source/persistentVolumeName", "")),
            col("Node", Cell::Text("/spec/nodeName", "")),
            flag("Attached", Cell::Bool("/status/attached", false)),
            AGE,
        ],
    ),
    (STORAGE, "volumeattributesclasses", &[NAME, col("DriverName", Cell::Text("/driverName", "")), AGE]),
    (
        ADMISSION,
        "mutatingadmissionpolicies",
        &[
            NAME,
            int("Mutations", Cell::Count("/spec/mutations")),
            col("ParamKind", Cell::Call(cells::policy_kind)),
            AGE,
        ],
    ),
    (
        ADMISSION,
        "validatingadmissionpolicies",
        &[
            NAME,
            int("Validations", Cell::Count("/spec/validations")),
            col("ParamKind", Cell::Call(cells::policy_kind)),
            AGE,
        ],
    ),
    (ADMISSION, "mutatingadmissionpolicybindings", POLICY_BINDINGS),
    (ADMISSION, "validatingadmissionpolicybindings", POLICY_BINDINGS),
    (ADMISSION, "mutatingwebhookconfigurations", WEBHOOKS),
    (ADMISSION, "validatingwebhookconfigurations", WEBHOOKS),
    (
        "scheduling.k8s.io",
        "priorityclasses",
        &[
            NAME,
            int("Value", Cell::Int("/value")),
            flag("Global-Default", Cell::Bool("/globalDefault", false)),
            AGE,
            col("PreemptionPolicy", Cell::Text("/preemptionPolicy", "")),
        ],
    ),
    ("coordination.k8s.io", "leases", &[NAME, col("Holder", Cell::Text("/spec/holderIdentity", "")), AGE]),
    ("node.k8s.io", "runtimeclasses", &[NAME, col("Handler", Cell::Text("/handler", "")), AGE]),
    (
        "discovery.k8s.io",
        "endpointslices",
        &[
            NAME,
            col("AddressType", Cell::Text("/addressType", "")),
            col("Ports", Cell::Call(cells::slice_ports)),
            col("Endpoints", Cell::Call(cells::slice_endpoints)),
            AGE,
        ],
    ),
    (DEVICES, "deviceclasses", &[NAME, AGE]),
    (DEVICES, "resourceclaims", &[NAME, col("State", Cell::Call(cells::claim_state)), AGE]),
    (DEVICES, "resourceclaimtemplates", &[NAME, AGE]),
    (
        DEVICES,
        "resourceslices",
        &[
            NAME,
            col("Node", Cell::Text("/spec/nodeName", "")),
            col("Driver", Cell::Text("/spec/driver", "")),
            col("Pool", Cell::Text("/spec/pool/name", "")),
            AGE,
        ],
    ),
    (
        FLOW,
        "flowschemas",
        &[
            NAME,
            col("PriorityLevel", Cell::Text("/spec/priorityLevelConfiguration/name", "")),
            col("MatchingPrecedence", Cell::Int("/spec/matchingPrecedence")),
            col("DistinguisherMethod", Cell::Text("/spec/distinguisherMethod/type", "<none>")),
            AGE,
            col("MissingPL", Cell::Call(cells::missing_priority_level)),
        ],
    ),
    (
        FLOW,
        "prioritylevelconfigurations",
        &[
            NAME,
            col("Type", Cell::Text("/spec/type", "")),
            col(
                "NominalConcurrencyShares",
                Cell::Call(|o, _| cells::number_or(o, "/spec/limited/nominalConcurrencyShares")),
            ),
            col(
                "Queues",
                Cell::Call(|o, _| cells::number_or(o, "/spec/limited/limitResponse/queuing/queues")),
            ),
            col(
                "HandSize",
                Cell::Call(|o, _| cells::number_or(o, "/spec/limited/limitResponse/queuing/handSize")),
            ),
            col(
                "QueueLengthLimit",
                Cell::Call(|o, _| {
                    cells::number_or(o, "/spec/limited/limitResponse/queuing/queueLengthLimit")
                }),
            ),
            AGE,
        ],
    ),
];
