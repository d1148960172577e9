use super::*;

#[test]
fn a_service_keeps_what_its_user_said_and_loses_what_the_hub_handed_out() {
    let seen = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "1", "creationTimestamp": "t", "managedFields": [],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}, "labels": {"app": "web"}},
        "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "type": "NodePort", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster", "selector": {"app": "web"},
            "ports": [{"port": 80, "targetPort": 80, "protocol": "TCP", "nodePort": 30000}]},
        "status": {"loadBalancer": {}}});
    let meant = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP"}]}});
    assert_eq!(intent(&seen), meant);
}

#[test]
fn a_headless_service_stays_headless() {
    let seen = json!({"kind": "Service", "metadata": {"name": "db"}, "spec": {"clusterIP": "None", "clusterIPs": ["None"]}});
    assert_eq!(intent(&seen)["spec"], json!({"clusterIP": "None"}));
}

#[test]
fn a_deployment_loses_defaults_but_not_the_same_fields_with_other_values() {
    let with = |grace: i64, pull: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w", "namespace": "n", "generation": 3},
            "spec": {"replicas": 2, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, "selector": {"matchLabels": {"a": "b"}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                "template": {"metadata": {"creationTimestamp": null, "labels": {"a": "b"}}, "spec": {
                    "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
                    "terminationGracePeriodSeconds": grace, "securityContext": {}, "serviceAccount": "x", "serviceAccountName": "x",
                    "containers": [{"name": "c", "image": "nginx:1.29", "imagePullPolicy": pull, "resources": {},
                        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                        "readinessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 5}}]}}},
            "status": {"replicas": 2}})
    };
    let meant = intent(&with(30, "IfNotPresent"));
    assert_eq!(
        meant["spec"],
        json!({"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {
        "metadata": {"labels": {"a": "b"}}, "spec": {"serviceAccountName": "x",
            "containers": [{"name": "c", "image": "nginx:1.29", "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "timeoutSeconds": 5}}]}}})
    );
    let other = intent(&with(5, "Always"));
    assert_eq!(other.pointer("/spec/template/spec/terminationGracePeriodSeconds"), Some(&json!(5)));
    assert_eq!(other.pointer("/spec/template/spec/containers/0/imagePullPolicy"), Some(&json!("Always")));
}

#[test]
fn a_job_loses_the_selector_that_was_generated_for_it() {
    let seen = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "labels": {"controller-uid": "x"}},
        "spec": {"completions": 1, "parallelism": 1, "backoffLimit": 6, "selector": {"matchLabels": {"controller-uid": "x"}},
            "template": {"metadata": {"labels": {"controller-uid": "x", "job-name": "j", "mine": "y"}}, "spec": {"restartPolicy": "Never", "containers": []}}}});
    let meant = intent(&seen);
    assert_eq!(meant["metadata"], json!({"name": "j"}));
    assert_eq!(
        meant["spec"],
        json!({"completions": 1, "parallelism": 1,
        "template": {"metadata": {"labels": {"mine": "y"}}, "spec": {"restartPolicy": "Never", "containers": []}}})
    );
}

#[test]
fn what_is_meant_is_meant_again() {
    let seen = json!({"kind": "StatefulSet", "metadata": {"name": "s", "uid": "u"}, "spec": {"podManagementPolicy": "OrderedReady",
        "volumeClaimTemplates": [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "d", "creationTimestamp": null},
            "spec": {"volumeMode": "Filesystem", "accessModes": ["ReadWriteOnce"]}, "status": {"phase": "Pending"}}]}});
    let once = intent(&seen);
    assert_eq!(
        once["spec"],
        json!({"volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]})
    );
    assert_eq!(intent(&once), once);
}

#[test]
fn a_node_port_that_the_user_chose_is_kept_and_one_that_the_hub_gave_is_not() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "managedFields": [
            {"manager": "kubectl", "fieldsV1": {"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {"f:nodePort": {}}}}}}]},
        "spec": {"type": "NodePort", "ports": [
            {"port": 80, "protocol": "TCP", "nodePort": 30080}, {"port": 81, "protocol": "TCP", "nodePort": 31234}]}});
    let meant = intent(&service);
    assert_eq!(meant.pointer("/spec/ports/0/nodePort"), Some(&json!(30080)));
    assert_eq!(meant.pointer("/spec/ports/1/nodePort"), None);
}
