//! What a cluster gives to everyone: endpoints, certificates, custom resources that are collected, nodes that fail.

use crate::fixture::{Site, add_node, eventually};
use anyhow::Result;
use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::Deployment,
        certificates::v1::CertificateSigningRequest,
        core::v1::{ConfigMap, Endpoints, Node, Pod, Service},
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use serde_json::json;

#[tokio::test]
async fn every_namespace_has_the_root_certificate_again_after_an_edit() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("root-ca").await?;
    let maps: Api<ConfigMap> = Api::namespaced(site.client.clone(), &ns);
    let right = async || {
        let map = maps.get_opt("kube-root-ca.crt").await?;
        Ok(map.and_then(|map| map.data?.remove("ca.crt")).as_deref() == Some("the root"))
    };
    eventually("the certificate is there", right).await?;
    maps.patch("kube-root-ca.crt", &PatchParams::default(), &Patch::Merge(&json!({"data": {"ca.crt": "x"}})))
        .await?;
    eventually("it is back", right).await?;
    maps.delete("kube-root-ca.crt", &DeleteParams::default()).await?;
    eventually("it is back again", right).await
}

#[tokio::test]
async fn a_service_has_slices_and_endpoints_of_its_ready_pods() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("service").await?;
    let services: Api<Service> = Api::namespaced(site.client.clone(), &ns);
    let deployments: Api<Deployment> = Api::namespaced(site.client.clone(), &ns);
    let slices: Api<EndpointSlice> = Api::namespaced(site.client.clone(), &ns);
    let endpoints: Api<Endpoints> = Api::namespaced(site.client.clone(), &ns);
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }))?;
    services.create(&PostParams::default(), &service).await?;
    let of = ListParams::default().labels("kubernetes.io/service-name=web");
    eventually("an empty slice", async || Ok(slices.list(&of).await?.items.len() == 1)).await?;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "a", "ports": [{"name": "http", "containerPort": 8080}]}]},
            },
        },
    }))?;
    deployments.create(&PostParams::default(), &deployment).await?;
    let ready = async |count: usize| {
        let list = slices.list(&of).await?.items;
        let all: Vec<_> = list.iter().flat_map(|slice| slice.endpoints.iter().flatten()).collect();
        let serving =
            all.iter().filter(|e| e.conditions.as_ref().and_then(|c| c.ready) == Some(true)).count();
        let ports = list.iter().flat_map(|slice| slice.ports.iter().flatten()).filter_map(|port| port.port);
        let right_port = count == 0 || ports.into_iter().all(|port| port == 8080);
        let old = endpoints.get("web").await?.subsets.unwrap_or_default();
        let addresses: usize = old.iter().map(|subset| subset.addresses.as_ref().map_or(0, Vec::len)).sum();
        anyhow::Ok(serving == count && all.len() == count && right_port && addresses == count)
    };
    eventually("three ready endpoints", async || ready(3).await).await?;
    deployments
        .patch("web", &PatchParams::default(), &Patch::Merge(&json!({"spec": {"replicas": 1}})))
        .await?;
    eventually("one ready endpoint", async || ready(1).await).await
}

#[tokio::test]
async fn a_custom_resource_goes_with_its_owner() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("custom").await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(site.client.clone());
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "parcels.test.dev"},
        "spec": {
            "group": "test.dev", "scope": "Namespaced",
            "names": {"kind": "Parcel", "plural": "parcels", "singular": "parcel"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    }))?;
    definitions.create(&PostParams::default(), &definition).await?;
    let maps: Api<ConfigMap> = Api::namespaced(site.client.clone(), &ns);
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("test.dev", "v1", "Parcel"), "parcels");
    let parcels: Api<DynamicObject> = Api::namespaced_with(site.client.clone(), &ns, &resource);
    eventually("the kind is served", async || Ok(parcels.list(&ListParams::default()).await.is_ok())).await?;
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "owner"}}))?;
    let owner = maps.create(&PostParams::default(), &map).await?;
    let owned =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}]);
    let mut parcel = DynamicObject::new("a", &resource);
    parcel.metadata.owner_references = Some(serde_json::from_value(owned)?);
    parcels.create(&PostParams::default(), &parcel).await?;
    maps.delete("owner", &DeleteParams::default()).await?;
    eventually("the parcel is gone", async || Ok(parcels.get_opt("a").await?.is_none())).await?;
    definitions.delete("parcels.test.dev", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn an_approved_certificate_request_is_signed_and_a_wrong_one_fails() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let requests: Api<CertificateSigningRequest> = Api::all(site.client.clone());
    for (name, usage, signed) in [("request-a", "client auth", true), ("request-b", "server auth", false)] {
        let key = rcgen::KeyPair::generate()?;
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "alice");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "team");
        let pem = params.serialize_request(&key)?.pem()?;
        let request: CertificateSigningRequest = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "signerName": "kubernetes.io/kube-apiserver-client",
                "usages": ["digital signature", usage],
                "request": ByteString(pem.into_bytes()),
            },
        }))?;
        requests.create(&PostParams::default(), &request).await?;
        site.kubectl("default", &["certificate", "approve", name])?;
        eventually("the signer answers", async || {
            let status = requests.get(name).await?.status.unwrap_or_default();
            let failed = status.conditions.iter().flatten().any(|c| c.type_ == "Failed");
            Ok(if signed { status.certificate.is_some() } else { failed })
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn pods_leave_a_node_that_is_not_ready() -> Result<()> {
    let Some(site) = Site::get().await? else { return Ok(()) };
    let ns = site.namespace("not-ready").await?;
    add_node(&site.client, "node-z").await?;
    let pods: Api<Pod> = Api::namespaced(site.client.clone(), &ns);
    let nodes: Api<Node> = Api::all(site.client.clone());
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "c", "image": "a"}], "nodeSelector": {"kubernetes.io/hostname": "node-z"},
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1},
            ],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    eventually("the pod runs", async || {
        Ok(pods.get("p").await?.status.unwrap_or_default().phase.as_deref() == Some("Running"))
    })
    .await?;
    let broken =
        json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Broken"}]}});
    nodes.patch_status("node-z", &PatchParams::default(), &Patch::Merge(&broken)).await?;
    eventually("the node is tainted", async || {
        let taints = nodes.get("node-z").await?.spec.unwrap_or_default().taints.unwrap_or_default();
        Ok(taints
            .iter()
            .any(|taint| taint.key == "node.kubernetes.io/not-ready" && taint.effect == "NoExecute"))
    })
    .await?;
    eventually("the pod leaves", async || Ok(pods.get_opt("p").await?.is_none())).await?;
    nodes.delete("node-z", &DeleteParams::default()).await?;
    Ok(())
}
