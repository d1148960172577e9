use super::*;

fn service(extra: serde_json::Value) -> Service {
    let mut object = serde_json::json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {
        "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}]}});
    for (key, value) in extra.as_object().expect("object") {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).expect("service")
}

fn slice(endpoints: serde_json::Value) -> EndpointSlice {
    let object = serde_json::json!({"metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints});
    serde_json::from_value(object).expect("slice")
}

fn here(ip: &str, conditions: serde_json::Value, node: &str) -> serde_json::Value {
    serde_json::json!({"addresses": [ip], "conditions": conditions, "nodeName": node})
}

#[test]
fn only_ready_endpoints_are_used_and_ending_ones_when_there_is_no_other() {
    let ready = here("10.1.0.2", serde_json::json!({"ready": true}), "a");
    let ending =
        here("10.1.0.3", serde_json::json!({"ready": false, "serving": true, "terminating": true}), "a");
    let broken = here("10.1.0.4", serde_json::json!({"ready": false, "serving": false}), "a");
    let services = [service(serde_json::json!({}))];
    let both = service_ports(&services, &[slice(serde_json::json!([ready, ending, broken]))], "a");
    assert_eq!(both[0].endpoints, [(Ipv4Addr::new(10, 1, 0, 2), 8080)]);
    let last = service_ports(&services, &[slice(serde_json::json!([ending, broken]))], "a");
    assert_eq!(last[0].endpoints, [(Ipv4Addr::new(10, 1, 0, 3), 8080)]);
}

#[test]
fn local_traffic_policies_keep_to_this_node() {
    let a = here("10.1.0.2", serde_json::json!({"ready": true}), "a");
    let b = here("10.1.1.2", serde_json::json!({"ready": true}), "b");
    let slices = [slice(serde_json::json!([a, b]))];
    let ports =
        service_ports(&[service(serde_json::json!({"externalTrafficPolicy": "Local"}))], &slices, "b");
    assert_eq!(ports[0].endpoints.len(), 2);
    assert_eq!(ports[0].external_endpoints, [(Ipv4Addr::new(10, 1, 1, 2), 8080)]);
    let ports =
        service_ports(&[service(serde_json::json!({"internalTrafficPolicy": "Local"}))], &slices, "b");
    assert_eq!(ports[0].endpoints, [(Ipv4Addr::new(10, 1, 1, 2), 8080)]);
}

#[test]
fn headless_services_need_no_rules() {
    let headless = service(serde_json::json!({"clusterIP": "None", "clusterIPs": ["None"]}));
    assert!(service_ports(&[headless], &[], "a").is_empty());
}
