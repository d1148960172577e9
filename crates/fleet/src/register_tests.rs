use super::*;

fn request(cn: &str, user: &str, group: &str, conditions: &[&str]) -> Request {
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("params");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, cn);
    let key = rcgen::KeyPair::generate().expect("key");
    let pem = params.serialize_request(&key).expect("request").pem().expect("pem");
    let conditions: Vec<_> = conditions.iter().map(|c| json!({"type": c, "status": "True"})).collect();
    let mut request: Request = serde_json::from_value(json!({"metadata": {"name": "r"},
        "spec": {"request": "", "signerName": names::SIGNER, "username": user, "groups": [group]}, "status": {"conditions": conditions}}))
    .expect("a request");
    request.spec.request = ByteString(pem.into_bytes());
    request
}

#[test]
fn a_token_joins_a_site_renews_and_an_approved_request_is_signed() {
    let join = request("system:site:a", "system:bootstrap:abcdef", names::JOIN_GROUP, &[]);
    assert_eq!(policy(&join), Policy::Join { site: "a".into(), token: "abcdef".into() });
    let renew = request("system:site:a", "system:site:a", names::SITES_GROUP, &[]);
    assert_eq!(policy(&renew), Policy::Renew { site: "a".into() });
    let approved = request("system:site:a", "anybody", "", &["Approved"]);
    assert_eq!(policy(&approved), Policy::Sign { site: "a".into() });
}

#[test]
fn nobody_gets_a_name_that_is_not_theirs() {
    let other_site = request("system:site:b", "system:site:a", names::SITES_GROUP, &[]);
    assert!(matches!(policy(&other_site), Policy::Deny(_)));
    let plain_token = request("system:site:a", "system:bootstrap:abcdef", "system:bootstrappers", &[]);
    assert!(matches!(policy(&plain_token), Policy::Deny(_)));
    for name in ["system:admin", "system:site:", "system:site:a/../b", "system:site:A"] {
        let bad = request(name, "system:bootstrap:abcdef", names::JOIN_GROUP, &[]);
        assert!(matches!(policy(&bad), Policy::Deny(_)), "{name}");
    }
}

#[test]
fn what_is_denied_or_for_another_signer_is_left_alone() {
    assert_eq!(policy(&request("system:site:a", "x", "", &["Denied"])), Policy::Ignore);
    let mut other = request("system:site:a", "x", "", &[]);
    other.spec.signer_name = "kubernetes.io/kubelet-serving".into();
    assert_eq!(policy(&other), Policy::Ignore);
}

#[test]
fn a_certificate_outside_its_time_is_renewed_while_its_identity_is_the_site_s() {
    let mut site = Site::new("a", SiteSpec::default());
    site.metadata.annotations = Some([(names::IDENTITY_ANNOTATION.to_owned(), "i2".to_owned())].into());
    let of = |group: String| request("system:site:a", "system:site:a", &group, &[]);
    assert!(is_present(&site, &of(names::identity_group("i2"))));
    assert!(is_present(&site, &of(names::expired_identity_group("i2"))));
    for revoked in [names::identity_group("i1"), names::expired_identity_group("i1")] {
        assert!(!is_present(&site, &of(revoked)));
    }
    assert!(!is_present(&site, &of(names::EXPIRED_SITE_GROUP.to_owned())));
}

#[test]
fn a_site_that_joins_while_its_removal_is_under_way_is_told_to_wait() {
    let mut site: Site = serde_json::from_value(json!({"apiVersion": "tombolo.dev/v1alpha1", "kind": "Site",
        "metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}))
    .expect("a Site");
    let told_to_wait = |site: &Site| {
        let why = taken(site).expect("a reason");
        why.contains("a is being removed") && why.contains("join again when") && !why.contains("sites remove")
    };
    assert!(told_to_wait(&site), "to remove it once more would change nothing");
    site.metadata.annotations = Some([(names::REVOKED_ANNOTATION.to_owned(), String::new())].into());
    assert!(told_to_wait(&site), "what was revoked before it was removed");
    site.metadata.deletion_timestamp = None;
    assert_eq!(taken(&site), None, "its certificates were revoked: it comes back with a token");
    site.metadata.annotations = None;
    assert!(taken(&site).is_some_and(|why| why.contains("`tombolo sites remove a`")));
}
