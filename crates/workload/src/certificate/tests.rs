use super::*;
use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::Value;

fn ca() -> Ca {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ca");
    Ca { cert_pem: params.self_signed(&key).unwrap().pem(), key_pem: key.serialize_pem() }
}

fn request(
    signer: &str,
    cn: &str,
    o: &str,
    sans: &[&str],
    usages: &[&str],
    user: &str,
    groups: &[&str],
) -> CertificateSigningRequest {
    let mut params =
        CertificateParams::new(sans.iter().map(|san| (*san).to_owned()).collect::<Vec<_>>()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, cn);
    params.distinguished_name.push(DnType::OrganizationName, o);
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    serde_json::from_value(json!({
        "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "signerName": signer, "usages": usages, "request": ByteString(pem.into_bytes()),
            "username": user, "groups": groups,
        },
    }))
    .unwrap()
}

fn look(request: &CertificateSigningRequest, node: Option<Node>) -> Vec<Action> {
    let ca = ca();
    plan(&Snapshot {
        request: Arc::new(request.clone()),
        node: node.map(Arc::new),
        ca: Some(&ca),
        approves_nodes: true,
        serial: [1; 16],
        now: "2026-01-01T00:00:10Z".parse().unwrap(),
    })
}

fn patched(plan: &[Action], wanted: &str) -> Option<Value> {
    plan.iter().find_map(|action| match action {
        Action::Patch { subresource, body, .. } if *subresource == wanted => Some(body.read().unwrap()),
        _ => None,
    })
}

const CLIENT: [&str; 2] = ["digital signature", "client auth"];
const SERVER: [&str; 2] = ["digital signature", "server auth"];
const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";

#[test]
fn a_joining_node_and_a_renewing_node_are_approved_and_nobody_else() {
    for (user, group, approved) in [
        ("system:bootstrap:abcdef", "system:bootstrappers", true),
        ("system:node:a", "system:nodes", true),
        ("system:bootstrap:abcdef", tombolo_api::names::JOIN_GROUP, false),
        ("system:node:b", "system:nodes", false),
        ("eve", "people", false),
    ] {
        let request = request(KUBELET, "system:node:a", "system:nodes", &[], &CLIENT, user, &[group]);
        assert_eq!(patched(&look(&request, None), "approval").is_some(), approved, "{user}");
    }
}

#[test]
fn a_token_makes_nobody_an_existing_node_and_an_expired_node_must_exist() {
    use tombolo_api::names::{EXPIRED_NODE_GROUP, NODE_JOIN_GROUP};
    let existing: Node = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    let token = ["system:bootstrappers", NODE_JOIN_GROUP];
    for (user, groups, exists, approved) in [
        ("system:bootstrap:abcdef", &token[..], false, true),
        ("system:bootstrap:abcdef", &token[..], true, false),
        ("system:node:a", &[EXPIRED_NODE_GROUP][..], true, true),
        ("system:node:a", &[EXPIRED_NODE_GROUP][..], false, false),
        ("system:node:b", &[EXPIRED_NODE_GROUP][..], true, false),
    ] {
        let request = request(KUBELET, "system:node:a", "system:nodes", &[], &CLIENT, user, groups);
        let node = exists.then(|| existing.clone());
        assert_eq!(patched(&look(&request, node), "approval").is_some(), approved, "{user} {exists}");
    }
}

#[test]
fn a_newcomer_with_the_name_of_a_node_that_exists_is_told_so_once_and_let_in_when_that_one_is_deleted() {
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let living: Node =
        serde_json::from_value(json!({"metadata": {"name": "a"}, "status": {"conditions": ready}})).unwrap();
    let (user, groups) = ("system:bootstrap:abcdef", ["system:bootstrappers"]);
    let mut request = request(KUBELET, "system:node:a", "system:nodes", &[], &CLIENT, user, &groups);
    let body = patched(&look(&request, Some(living.clone())), "status").unwrap();
    let told = &body["status"]["conditions"][0];
    assert_eq!(told["type"], names::NAME_TAKEN);
    let message = told["message"].as_str().unwrap();
    assert!(message.starts_with("node a exists already and is ready"), "{message}");
    assert!(message.contains("--name") && message.contains("kubectl delete node a"), "{message}");
    request.status = serde_json::from_value(body["status"].clone()).unwrap();
    let waiting = look(&request, Some(living));
    assert_eq!((patched(&waiting, "status"), patched(&waiting, "approval")), (None, None));
    assert!(waiting.iter().any(|action| matches!(action, Action::After(soon) if *soon <= LOOK_AGAIN)));
    let approval = patched(&look(&request, None), "approval").unwrap();
    assert_eq!(approval["status"]["conditions"][1]["type"], "Approved");
}

#[test]
fn a_serving_certificate_is_approved_only_for_the_nodes_own_addresses() {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "a"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.1.2.3"}]},
    }))
    .unwrap();
    for (sans, approved) in
        [(["a", "10.1.2.3"], true), (["a", "10.1.2.4"], false), (["bank.example", "10.1.2.3"], false)]
    {
        let request = request(
            SERVING,
            "system:node:a",
            "system:nodes",
            &sans,
            &SERVER,
            "system:node:a",
            &["system:nodes"],
        );
        assert_eq!(patched(&look(&request, Some(node.clone())), "approval").is_some(), approved, "{sans:?}");
    }
}

#[test]
fn an_approved_request_is_signed_with_what_it_asked_for_and_no_more() {
    let mut request = request("kubernetes.io/kube-apiserver-client", "alice", "team", &[], &CLIENT, "x", &[]);
    request.spec.expiration_seconds = Some(3600);
    let approved = json!([{"type": "Approved", "status": "True"}]);
    request.status = serde_json::from_value(json!({ "conditions": approved })).unwrap();
    let body = patched(&look(&request, None), "status").unwrap();
    let bytes: ByteString = serde_json::from_value(body["status"]["certificate"].clone()).unwrap();
    let block = pem::parse(bytes.0).unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(block.contents()).unwrap();
    assert_eq!(certificate.subject().iter_common_name().next().unwrap().as_str().unwrap(), "alice");
    assert!(!certificate.is_ca());
    let usage = certificate.extended_key_usage().unwrap().unwrap().value.clone();
    assert!(usage.client_auth && !usage.server_auth);
    let left = certificate.validity().not_after.timestamp() - certificate.validity().not_before.timestamp();
    assert_eq!(left, 3600 + 300);
}

#[test]
fn what_a_signer_must_not_sign_fails_even_if_approved() {
    for (signer, cn, o, sans, usages) in [
        ("kubernetes.io/kube-apiserver-client", "x", "system:masters", vec![], CLIENT.to_vec()),
        (KUBELET, "admin", "system:nodes", vec![], CLIENT.to_vec()),
    ] {
        let mut request = request(signer, cn, o, &sans, &usages, "x", &[]);
        request.status =
            serde_json::from_value(json!({"conditions": [{"type": "Approved", "status": "True"}]})).unwrap();
        let body = patched(&look(&request, None), "status").unwrap();
        assert_eq!(body["status"]["conditions"][1]["type"], "Failed", "{signer} {cn}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_signed_that_was_not_asked_for_and_approved(
        signer in 0..5usize,
        cn in 0..3usize,
        o in 0..3usize,
        sans in prop::sample::subsequence(vec!["a", "10.1.2.3", "bank.example"], 0..3),
        usages in prop::sample::subsequence(vec!["digital signature", "key encipherment", "client auth", "server auth", "cert sign"], 1..5),
        seconds in prop::option::of(600..100_000_000i32),
        approved in any::<bool>(),
    ) {
        let signer = ["kubernetes.io/kube-apiserver-client", KUBELET, SERVING, "kubernetes.io/legacy-unknown", "example.com/other"][signer];
        let (cn, o) = (["system:node:a", "alice", "system:node:b"][cn], ["system:nodes", "system:masters", "team"][o]);
        let mut request = request(signer, cn, o, &sans, &usages, "eve", &["people"]);
        request.spec.expiration_seconds = seconds;
        if approved {
            request.status = serde_json::from_value(json!({"conditions": [{"type": "Approved", "status": "True"}]})).unwrap();
        }
        let plan = look(&request, None);
        prop_assert!(patched(&plan, "approval").is_none(), "nobody approves for a stranger");
        let issued = patched(&plan, "status").and_then(|body| {
            serde_json::from_value::<ByteString>(body["status"]["certificate"].clone()).ok().filter(|pem| !pem.0.is_empty())
        });
        let Some(issued) = issued else { return Ok(()) };
        prop_assert!(approved && signer != "example.com/other");
        let block = pem::parse(issued.0).unwrap();
        let (_, certificate) = x509_parser::parse_x509_certificate(block.contents()).unwrap();
        prop_assert!(!certificate.is_ca());
        let subject = certificate.subject();
        prop_assert_eq!(subject.iter_common_name().map(|n| n.as_str().unwrap()).collect::<Vec<_>>(), vec![cn]);
        prop_assert_eq!(subject.iter_organization().map(|n| n.as_str().unwrap()).collect::<Vec<_>>(), vec![o]);
        let named = certificate.subject_alternative_name().unwrap().map_or(0, |names| names.value.general_names.len());
        prop_assert_eq!(named, sans.len());
        let asked = |usage: &str| usages.contains(&usage);
        if let Some(extended) = certificate.extended_key_usage().unwrap() {
            let extended = extended.value;
            prop_assert!(!extended.any && !extended.code_signing);
            prop_assert!(!extended.client_auth || asked("client auth"));
            prop_assert!(!extended.server_auth || asked("server auth"));
        }
        if let Some(usage) = certificate.key_usage().unwrap() {
            prop_assert!(!usage.value.key_cert_sign() && !usage.value.crl_sign());
            prop_assert!(!usage.value.key_encipherment() || asked("key encipherment"));
        }
        let life = certificate.validity().not_after.timestamp() - certificate.validity().not_before.timestamp();
        prop_assert!(life <= i64::from(seconds.unwrap_or(i32::MAX)).min(365 * 24 * 3600) + 300);
        match signer {
            "kubernetes.io/kube-apiserver-client" => prop_assert!(o != "system:masters" && !asked("server auth")),
            KUBELET => prop_assert!(o == "system:nodes" && cn.starts_with("system:node:") && sans.is_empty()),
            SERVING => prop_assert!(o == "system:nodes" && !asked("client auth") && !sans.is_empty()),
            _ => {}
        }
    }
}
