//! Pods from the API to real containers and back.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::machine::{Site, phase};

crate::tests![a_pod_runs_with_its_environment_volumes_and_network_and_goes_away];

async fn a_pod_runs_with_its_environment_volumes_and_network_and_goes_away() {
    let Some(site) = Site::start("basics").await else { return };
    let maps: Api<ConfigMap> = Api::namespaced(site.client.clone(), &site.namespace);
    let map = json!({"metadata": {"name": "settings"}, "data": {"color": "blue", "app.conf": "a=1\n"}});
    maps.create(&PostParams::default(), &serde_json::from_value(map).expect("map")).await.expect("map");
    let secrets: Api<Secret> = Api::namespaced(site.client.clone(), &site.namespace);
    let secret = json!({"metadata": {"name": "keys"}, "stringData": {"password": "hunter2"}});
    secrets
        .create(&PostParams::default(), &serde_json::from_value(secret).expect("secret"))
        .await
        .expect("secret");

    let script = "echo color=$COLOR password=$PASSWORD pod=$POD; cat /etc/settings/app.conf; cat /etc/keys/password; echo; \
        cat /etc/info/labels; echo; cat /var/run/secrets/kubernetes.io/serviceaccount/token | head -c 3; echo; \
        touch /scratch/x && echo wrote; sleep 1000";
    site.create(
        "web",
        json!({
            "containers": [{
                "name": "main",
                "command": ["sh", "-c", script],
                "env": [
                    {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "color"}}},
                    {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
                ],
                "volumeMounts": [
                    {"name": "settings", "mountPath": "/etc/settings"},
                    {"name": "keys", "mountPath": "/etc/keys", "readOnly": true},
                    {"name": "info", "mountPath": "/etc/info"},
                    {"name": "scratch", "mountPath": "/scratch"}
                ]
            }],
            "volumes": [
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "keys", "secret": {"secretName": "keys"}},
                {"name": "info", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                {"name": "scratch", "emptyDir": {"medium": "Memory"}}
            ]
        }),
    )
    .await;
    let pod = site.ready("web").await;
    assert_eq!(phase(&pod), "Running");
    let status = pod.status.expect("status");
    assert!(status.pod_ip.as_deref().is_some_and(|ip| ip.starts_with("10.213.77.")), "{:?}", status.pod_ip);
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));

    let logs = site.run(&["logs", "web"]).await.expect("logs");
    let expected = "color=blue password=hunter2 pod=web\na=1\nhunter2\napp=\"web\"\neyJ\nwrote\n";
    assert_eq!(logs, expected);
    assert_eq!(site.run(&["logs", "web", "--tail=1"]).await.expect("tail"), "wrote\n");

    assert_eq!(site.run(&["exec", "web", "--", "hostname"]).await.expect("exec"), "web\n");
    let failed = site
        .run(&["exec", "web", "--", "sh", "-c", "echo no >&2; exit 7"])
        .await
        .expect_err("exit code")
        .to_string();
    assert!(failed.contains("exit code 7") && failed.contains("no"), "{failed}");

    site.delete("web").await;
    site.tear_down().await;
}
