use serde_json::json;

use super::*;

#[test]
fn an_event_is_the_same_in_both_groups() {
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "d"},
        "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "R", "message": "m", "type": "Normal", "count": 2,
        "source": {"component": "c"}, "firstTimestamp": "2024-01-01T00:00:00Z", "lastTimestamp": "2024-01-01T00:00:01Z",
        "eventTime": null, "reportingComponent": "rc", "reportingInstance": ""});
    let new = convert(event.clone(), "events.k8s.io", "v1");
    assert_eq!(new["apiVersion"], "events.k8s.io/v1");
    assert_eq!(new["note"], "m");
    assert_eq!(new["regarding"]["name"], "p");
    assert_eq!(new["deprecatedCount"], 2);
    assert!(new.get("message").is_none());
    assert_eq!(convert(new, "", "v1"), event);
}

// The version 1 object was read from kube-apiserver 1.36 after the version 2 object had been created there.
#[test]
fn an_autoscaler_survives_version_1() {
    let v2 = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
        "spec": {"maxReplicas": 3, "minReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
            "behavior": {
                "scaleUp": {"policies": [{"periodSeconds": 15, "type": "Pods", "value": 4}], "selectPolicy": "Max", "stabilizationWindowSeconds": 5},
                "scaleDown": {"policies": [{"periodSeconds": 15, "type": "Percent", "value": 100}], "selectPolicy": "Max"}},
            "metrics": [
                {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
                {"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "5"}}},
                {"type": "External", "external": {"metric": {"name": "e"}, "target": {"type": "Value", "value": "3"}}},
                {"type": "Object", "object": {"describedObject": {"kind": "K", "name": "n"}, "metric": {"name": "o"}, "target": {"type": "AverageValue", "averageValue": "7"}}},
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
            ]},
        "status": {"currentMetrics": null, "desiredReplicas": 0}});
    let v1 = convert(v2.clone(), "autoscaling", "v1");
    assert_eq!(v1["spec"]["targetCPUUtilizationPercentage"], 50);
    assert!(v1["spec"].get("metrics").is_none());
    let metrics = v1["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/metrics"].as_str().unwrap();
    let metrics: Value = serde_json::from_str(metrics).unwrap();
    assert_eq!(
        metrics,
        json!([
            {"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}},
            {"type": "Pods", "pods": {"metricName": "m", "targetAverageValue": "5"}},
            {"type": "External", "external": {"metricName": "e", "targetValue": "3"}},
            {"type": "Object", "object": {"target": {"kind": "K", "name": "n"}, "metricName": "o", "targetValue": "0", "averageValue": "7"}},
        ])
    );
    let behaviour =
        v1["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/behavior"].as_str().unwrap();
    let behaviour: Value = serde_json::from_str(behaviour).unwrap();
    assert_eq!(behaviour["ScaleUp"]["Policies"][0]["PeriodSeconds"], 15);
    assert_eq!(convert(v1, "autoscaling", "v2"), v2);
}

#[test]
fn other_kinds_are_left_alone() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod"});
    assert_eq!(convert(pod.clone(), "", "v1"), pod);
    assert_eq!(storage_version("", "Pod"), None);
    assert_eq!(storage_version("events.k8s.io", "Event"), Some(("", "v1")));
}
