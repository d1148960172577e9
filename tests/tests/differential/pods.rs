//! Pods for pod security to judge: a hardened one, once for every setting that a level might look at, at the pod and at each of
//! its containers.

use serde_json::{Value, json};

/// Where a setting can be.
#[derive(Clone, Copy)]
enum Part {
    Pod,
    Init,
    First,
    Second,
    /// All containers.
    Each,
}

use Part::{Each, First, Init, Pod, Second};

type Values = Vec<Value>;

/// Fields of containers, and whether a pod has them too, with what they are set to. Null takes away.
fn fields() -> Vec<(&'static str, bool, Values)> {
    let http = |host: Value| json!({"httpGet": {"port": 80, "host": host}});
    let tcp = |host: Value| json!({"tcpSocket": {"port": 80, "host": host}});
    let handlers = || {
        vec![http(json!("1.2.3.4")), http(json!("127.0.0.1")), http(json!("")), tcp(json!("a.example.com"))]
    };
    let hooks = |name: &str| handlers().into_iter().map(|handler| json!({name: handler})).collect::<Values>();
    let selinux = [
        ("type", "container_t"),
        ("type", "container_init_t"),
        ("type", "container_kvm_t"),
        ("type", "container_engine_t"),
        ("type", "spc_t"),
        ("type", ""),
        ("user", "u"),
        ("role", "r"),
        ("level", "s0:c1,c2"),
    ];
    let mut selinux: Values = selinux.into_iter().map(|(key, value)| json!({key: value})).collect();
    selinux.push(json!({"type": "other_t", "user": "u", "role": "r"}));
    let ports = |ports: &[u16]| {
        let ports = ports.iter().enumerate();
        ports.map(|(n, port)| json!({"containerPort": n + 1, "hostPort": port})).collect::<Value>()
    };
    vec![
        ("securityContext/seLinuxOptions", true, selinux),
        ("securityContext/runAsNonRoot", true, vec![json!(true), json!(false), Value::Null]),
        ("securityContext/runAsUser", true, vec![json!(0), json!(1000), Value::Null]),
        (
            "securityContext/seccompProfile",
            true,
            vec![
                json!({"type": "Unconfined"}),
                json!({"type": "RuntimeDefault"}),
                json!({"type": "Localhost", "localhostProfile": "a"}),
                json!({"type": "Odd"}),
                Value::Null,
            ],
        ),
        (
            "securityContext/appArmorProfile",
            true,
            vec![
                json!({"type": "Unconfined"}),
                json!({"type": "RuntimeDefault"}),
                json!({"type": "Localhost", "localhostProfile": "a"}),
                json!({"type": "Odd"}),
                json!({"type": "Localhost"}),
                json!({"type": "Localhost", "localhostProfile": " a"}),
                json!({"type": "Localhost", "localhostProfile": ""}),
                json!({"type": "RuntimeDefault", "localhostProfile": "a"}),
                json!({"type": ""}),
                Value::Null,
            ],
        ),
        (
            "securityContext/windowsOptions",
            true,
            vec![
                json!({"hostProcess": true}),
                json!({"hostProcess": false}),
                json!({"runAsUserName": "a"}),
                Value::Null,
            ],
        ),
        ("securityContext/privileged", false, vec![json!(true), json!(false)]),
        ("securityContext", false, vec![json!({"privileged": true}), Value::Null]),
        ("securityContext/allowPrivilegeEscalation", false, vec![json!(true), json!(false), Value::Null]),
        ("securityContext/procMount", false, vec![json!("Unmasked"), json!("Default"), json!("Odd")]),
        (
            "securityContext/capabilities",
            false,
            vec![
                json!({"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
                json!({"drop": ["ALL"], "add": ["CHOWN"]}),
                json!({"drop": ["ALL"], "add": ["SYS_TIME", "NET_ADMIN", "CHOWN"]}),
                json!({"drop": ["NET_RAW"], "add": ["ALL", "NET_ADMIN"]}),
                json!({"drop": ["all"]}),
                json!({"add": ["CAP_CHOWN"]}),
                Value::Null,
            ],
        ),
        ("ports", false, vec![ports(&[80]), ports(&[8080, 80]), ports(&[80, 9]), ports(&[0])]),
        ("livenessProbe", false, handlers()),
        ("readinessProbe", false, handlers()),
        ("startupProbe", false, handlers()),
        ("lifecycle", false, [hooks("postStart"), hooks("preStop")].concat()),
    ]
}

/// Settings that only a pod has: a path from its root, and what it is set to.
fn of_pods() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    let mut set = |path: &str, value: Value| all.push((path.to_owned(), value));
    for flag in ["hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace"] {
        set(&format!("spec/{flag}"), json!(true));
        set(&format!("spec/{flag}"), json!(false));
    }
    set("spec/os", json!({"name": "windows"}));
    set("spec/os", json!({"name": "linux"}));
    let sources = [
        ("hostPath", json!({"path": "/"})),
        ("gcePersistentDisk", json!({"pdName": "a"})),
        ("awsElasticBlockStore", json!({"volumeID": "a"})),
        ("gitRepo", json!({"repository": "a"})),
        ("nfs", json!({"server": "a", "path": "/"})),
        ("iscsi", json!({"targetPortal": "a", "iqn": "iqn.2001-04.com.example:a", "lun": 0})),
        ("glusterfs", json!({"endpoints": "a", "path": "b"})),
        ("rbd", json!({"monitors": ["a"], "image": "b"})),
        ("flexVolume", json!({"driver": "a/b"})),
        ("cinder", json!({"volumeID": "a"})),
        ("cephfs", json!({"monitors": ["a"]})),
        ("flocker", json!({"datasetName": "a"})),
        ("fc", json!({"targetWWNs": ["a"], "lun": 0})),
        ("azureFile", json!({"secretName": "a", "shareName": "b"})),
        ("vsphereVolume", json!({"volumePath": "a"})),
        ("quobyte", json!({"registry": "a:1", "volume": "b"})),
        ("azureDisk", json!({"diskName": "a", "diskURI": "b"})),
        ("portworxVolume", json!({"volumeID": "a"})),
        ("scaleIO", json!({"gateway": "a", "system": "b", "secretRef": {"name": "c"}, "volumeName": "d"})),
        ("storageos", json!({"volumeName": "a"})),
        ("image", json!({"reference": "a"})),
        ("configMap", json!({"name": "a"})),
        ("secret", json!({"secretName": "a"})),
        ("emptyDir", json!({})),
        ("downwardAPI", json!({})),
        ("projected", json!({"sources": []})),
        ("csi", json!({"driver": "a"})),
        ("persistentVolumeClaim", json!({"claimName": "a"})),
    ];
    for (kind, source) in sources {
        set("spec/volumes", json!([{"name": "v", kind: source}]));
        set("spec/volumes", json!([{"name": "v", kind: source}, {"name": "a", kind: source}]));
        set("spec/volumes", json!([{"name": "v", kind: source}, {"name": "w", "hostPath": {"path": "/"}}]));
        set(
            "spec/volumes",
            json!([{"name": "v", "nfs": {"server": "a", "path": "/"}}, {"name": "w", kind: source}]),
        );
    }
    set("spec/volumes", json!([{"name": "v"}]));
    set("spec/volumes", json!([{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]));
    for name in [
        "kernel.shm_rmid_forced",
        "kernel.msgmax",
        "kernel/shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
        "net.ipv4.tcp_mem",
        "net.core.somaxconn",
        "net.core.rmem_max",
    ] {
        set("spec/securityContext/sysctls", json!([{"name": name, "value": "1"}]));
        set(
            "spec/securityContext/sysctls",
            json!([{"name": "vm.b", "value": "1"}, {"name": name, "value": "1"}, {"name": "vm.a", "value": "1"}]),
        );
    }
    let annotation = |key: &str| format!("metadata/annotations/{}", key.replace('/', "~1"));
    for container in ["c", "i", "none"] {
        let key = annotation(&format!("container.apparmor.security.beta.kubernetes.io/{container}"));
        for profile in ["unconfined", "runtime/default", "localhost/a", "", "odd"] {
            set(&key, json!(profile));
        }
        let key = annotation(&format!("container.seccomp.security.alpha.kubernetes.io/{container}"));
        set(&key, json!("unconfined"));
    }
    let [c, d] = ["c", "d"].map(|name| format!("container.apparmor.security.beta.kubernetes.io/{name}"));
    set("metadata/annotations", json!({c: "unconfined", d: "unconfined"}));
    set(&annotation("seccomp.security.alpha.kubernetes.io/pod"), json!("unconfined"));
    all
}

/// One violation of each kind, for what is said of two or all of them.
fn violations() -> Vec<(Part, &'static str, Value)> {
    vec![
        // First, for the others to add to it.
        (First, "securityContext", json!({"privileged": true, "capabilities": {"drop": ["ALL"]}})),
        (Pod, "hostNetwork", json!(true)),
        (Pod, "hostPID", json!(true)),
        (Pod, "hostIPC", json!(true)),
        (Pod, "volumes", json!([{"name": "v", "hostPath": {"path": "/"}}])),
        (Pod, "securityContext/sysctls", json!([{"name": "vm.a", "value": "1"}])),
        (Pod, "securityContext/windowsOptions", json!({"hostProcess": true})),
        (Pod, "securityContext/appArmorProfile", json!({"type": "Unconfined"})),
        (First, "securityContext/capabilities", json!({"add": ["SYS_TIME"]})),
        (First, "securityContext/allowPrivilegeEscalation", json!(true)),
        (First, "securityContext/procMount", json!("Unmasked")),
        (First, "securityContext/seLinuxOptions", json!({"type": "spc_t"})),
        (First, "securityContext/runAsNonRoot", json!(false)),
        (First, "securityContext/runAsUser", json!(0)),
        (First, "securityContext/seccompProfile", json!({"type": "Unconfined"})),
        (First, "ports", json!([{"containerPort": 80, "hostPort": 80}])),
        (First, "livenessProbe", json!({"httpGet": {"port": 80, "host": "a"}})),
        (Second, "lifecycle", json!({"preStop": {"tcpSocket": {"port": 80, "host": "b"}}})),
    ]
}

/// A pod that fits every level.
pub fn hardened() -> Value {
    let container = |name: &str| {
        json!({"name": name, "image": "pause",
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}})
    };
    // Nothing adds a volume for its token, whose name is random.
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "automountServiceAccountToken": false,
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [container("i")],
        "containers": [container("c"), container("d")],
    }})
}

/// A pod that says no more than it must.
pub fn bare() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "pause"}]}})
}

pub fn put(value: &mut Value, path: &str, to: &Value) {
    let keys = path.split('/').map(|key| key.replace("~1", "/"));
    *keys.fold(value, |value, key| &mut value[key]) = to.clone();
}

impl Part {
    fn put(self, pod: &mut Value, path: &str, to: &Value) {
        let spec = &mut pod["spec"];
        let part = match self {
            Pod => spec,
            Init => &mut spec["initContainers"][0],
            First => &mut spec["containers"][0],
            Second => &mut spec["containers"][1],
            Each => return [Init, First, Second].into_iter().for_each(|part| part.put(pod, path, to)),
        };
        put(part, path, to);
    }

    fn name(self) -> &'static str {
        match self {
            Pod => "pod",
            Init => "i",
            First => "c",
            Second => "d",
            Each => "each",
        }
    }
}

/// All pods, with what is special about each.
pub fn pods() -> Vec<(String, Value)> {
    let mut pods = vec![("hardened".to_owned(), hardened())];
    for (path, value) in of_pods() {
        let mut pod = hardened();
        put(&mut pod, &path, &value);
        pods.push((format!("{path} {value}"), pod));
    }
    for (path, pods_too, values) in fields() {
        let settings = |part: Part| values.iter().map(move |value| (part, value));
        for part in [Pod, Init, First, Each].into_iter().filter(|part| pods_too || !matches!(part, Pod)) {
            for (part, value) in settings(part) {
                for (relaxation, to) in [
                    ("", json!(null)),
                    ("hostUsers", json!(false)),
                    ("hostNetwork", json!(true)),
                    ("os", json!({"name": "windows"})),
                ] {
                    let mut pod = hardened();
                    part.put(&mut pod, path, value);
                    if !relaxation.is_empty() {
                        Pod.put(&mut pod, relaxation, &to);
                    }
                    pods.push((format!("{} {path} {value} {relaxation}", part.name()), pod));
                }
            }
        }
        let pairs = [(Pod, First), (Pod, Each), (First, Second), (Init, First)];
        for (one, other) in pairs.into_iter().filter(|(one, _)| pods_too || !matches!(one, Pod)) {
            for (one, value) in settings(one) {
                for (other, and) in settings(other) {
                    let mut pod = hardened();
                    one.put(&mut pod, path, value);
                    other.put(&mut pod, path, and);
                    let what = format!("{} and {} {path} {value} {and}", one.name(), other.name());
                    pods.push((what, pod));
                }
            }
        }
        for value in &values {
            let mut pod = hardened();
            for part in [Pod, Init, First, Second].into_iter().filter(|part| pods_too || !matches!(part, Pod))
            {
                part.put(&mut pod, path, value);
            }
            pods.push((format!("everywhere {path} {value}"), pod));
        }
    }
    let violations = violations();
    let mut all = hardened();
    for (n, (part, path, value)) in violations.iter().enumerate() {
        // These are not valid with some of the others.
        if !["securityContext/windowsOptions", "securityContext/procMount"].contains(path) {
            part.put(&mut all, path, value);
        }
        for (other, and, to) in &violations[..n] {
            let mut pod = hardened();
            other.put(&mut pod, and, to);
            part.put(&mut pod, path, value);
            // Only valid so.
            if [*path, *and].contains(&"securityContext/procMount") {
                Pod.put(&mut pod, "hostUsers", &json!(false));
            }
            pods.push((format!("{path} with {and}"), pod));
        }
    }
    pods.push(("all violations".to_owned(), all));
    pods.push(("bare".to_owned(), bare()));
    for options in [json!(null), json!({"hostProcess": true}), json!({"hostProcess": false})] {
        for flag in [json!(null), json!(true), json!(false)] {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
                "os": {"name": "windows"}, "hostNetwork": options["hostProcess"] == true,
                "containers": [{"name": "c", "image": "pause"}], "automountServiceAccountToken": false,
                "securityContext": {"runAsNonRoot": flag, "windowsOptions": options},
            }});
            pods.push((format!("windows {flag} {options}"), pod));
        }
    }
    pods
}
