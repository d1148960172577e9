//! Who may do what on the kubelet port: the API server is asked, as Kubernetes' kubelet asks it.
//!
//! A certificate of the cluster's CA says who somebody is, not that they may run commands in pods: nodes and users have such
//! certificates too. Answers are kept for a while; without an answer nothing is allowed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Method;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;

use crate::context::Context;

const KEEP_YES: Duration = Duration::from_secs(300);
const KEEP_NO: Duration = Duration::from_secs(30);
/// Answers that are kept; with more, all are forgotten.
const MOST: usize = 1024;

/// Somebody with a certificate that the TLS layer has checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    user: String,
    groups: Vec<String>,
}

impl Caller {
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Caller> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let user = parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = parsed.subject().iter_organization().filter_map(|o| o.as_str().ok());
        Some(Caller { user, groups: groups.map(str::to_owned).collect() })
    }
}

/// Verb and subresource of `nodes` that stand for a request.
fn meaning(method: &Method, path: &str) -> (&'static str, &'static str) {
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let subresource = match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "stats" => "stats",
        "metrics" => "metrics",
        "healthz" => "healthz",
        "pods" => "pods",
        _ => "proxy",
    };
    (verb, subresource)
}

type Question = (Caller, &'static str, &'static str);

#[derive(Default)]
pub(super) struct Answers {
    kept: Mutex<HashMap<Question, (bool, Instant)>>,
}

impl Answers {
    pub async fn allows(
        self: &Arc<Self>,
        ctx: &Context,
        caller: &Caller,
        method: &Method,
        path: &str,
    ) -> bool {
        let (verb, subresource) = meaning(method, path);
        let question = (caller.clone(), verb, subresource);
        if let Some((answer, until)) = self.kept.lock().get(&question)
            && *until > Instant::now()
        {
            return *answer;
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(caller.user.clone()),
                groups: Some(caller.groups.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.into()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(subresource.into()),
                    name: Some(ctx.node_name.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(ctx.client.clone());
        match api.create(&PostParams::default(), &review).await {
            Ok(review) => {
                let allowed = review.status.is_some_and(|status| status.allowed);
                let mut kept = self.kept.lock();
                if kept.len() >= MOST {
                    kept.clear();
                }
                kept.insert(question, (allowed, Instant::now() + if allowed { KEEP_YES } else { KEEP_NO }));
                allowed
            }
            Err(error) => {
                tracing::warn!(user = caller.user, %error, "the API server did not say whether this is allowed");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_asked_about_as_kubernetes_does() {
        assert_eq!(meaning(&Method::GET, "/containerLogs/ns/pod/c"), ("get", "proxy"));
        assert_eq!(meaning(&Method::POST, "/exec/ns/pod/c"), ("create", "proxy"));
        assert_eq!(meaning(&Method::GET, "/stats/summary"), ("get", "stats"));
        assert_eq!(meaning(&Method::GET, "/metrics/resource"), ("get", "metrics"));
    }

    #[test]
    fn a_caller_is_who_the_certificate_names() {
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:b");
        let made = params.self_signed(&rcgen::KeyPair::generate().expect("key")).expect("signed");
        let caller = Caller::of(made.der()).expect("a name");
        assert_eq!(
            (caller.user.as_str(), &*caller.groups),
            ("system:node:b", &["system:nodes".to_owned()][..])
        );
    }
}
