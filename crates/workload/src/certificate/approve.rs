//! What is approved without a person: nodes joining with a token, and nodes renewing for themselves.

use super::{
    SignerName, check,
    sign::{Subject, subject},
};
use k8s_openapi::api::{certificates::v1::CertificateSigningRequest, core::v1::Node};
use tombolo_api::names;

#[derive(Debug, PartialEq)]
pub enum Approval {
    Yes(&'static str),
    /// Not yet: the node has not said which addresses are its own.
    Later,
    /// A newcomer asks for the name of a node that exists. Somebody else decides, and the newcomer is told why it waits.
    Taken(String),
    /// Somebody else decides.
    NotOurs,
}

/// `node`: the node that the request's subject names, if it exists.
pub fn review(request: &CertificateSigningRequest, signer: SignerName, node: Option<&Node>) -> Approval {
    let user = request.spec.username.as_deref().unwrap_or_default();
    let member = |group: &str| request.spec.groups.iter().flatten().any(|g| g == group);
    let Ok(subject) = subject(request) else { return Approval::NotOurs };
    if check(request, signer).is_err() {
        return Approval::NotOurs;
    }
    let own = user == subject.common_name && member("system:nodes");
    match signer {
        SignerName::KubeletClient if own => Approval::Yes("The node renews its own client certificate."),
        // The server has seen that the asker holds the key of this node's last certificate. Deleting the node ends that.
        SignerName::KubeletClient if user == subject.common_name && member(names::EXPIRED_NODE_GROUP) => {
            match node {
                Some(_) => Approval::Yes("The node comes back with a certificate that is outside its time."),
                None => Approval::NotOurs,
            }
        }
        // A token for joining as a site says nothing about nodes.
        SignerName::KubeletClient if member("system:bootstrappers") && !member(names::JOIN_GROUP) => {
            match node {
                // A token lets newcomers in; it does not make anybody an existing node.
                Some(node) => Approval::Taken(taken(node)),
                None => Approval::Yes("A node joins with a bootstrap token."),
            }
        }
        SignerName::KubeletServing if own => match node {
            Some(node) if owns(node, &subject) => {
                Approval::Yes("The node asks for a certificate for its own addresses.")
            }
            _ => Approval::Later,
        },
        _ => Approval::NotOurs,
    }
}

/// What the newcomer is told: two machines of one name, or one that comes back without its data folder.
fn taken(node: &Node) -> String {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    let state = if ready { " and is ready" } else { "" };
    format!(
        "node {name} exists already{state}: give this machine another name with --name, or if it takes the place of that one, `kubectl delete node {name}` at the site"
    )
}

/// Every name in the request is the node's name or one of its addresses.
fn owns(node: &Node, subject: &Subject) -> bool {
    let addresses: Vec<&str> = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten())
        .map(|address| address.address.as_str())
        .collect();
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let dns = subject.dns_names.iter().all(|dns| dns == name || addresses.contains(&dns.as_str()));
    dns && subject.addresses.iter().all(|ip| addresses.iter().any(|known| known.parse() == Ok(*ip)))
}
