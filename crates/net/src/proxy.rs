//! Keeps the kernel's rules in step with the services of the site.

use std::io;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::address::Subnet;
use crate::nft::Transaction;
use crate::service::{HostPort, ServicePort, Surroundings, service_ports, transaction};

/// Translates service addresses on this node. Rules stay when the process ends.
pub struct ServiceProxy {
    around: Surroundings,
    node: String,
    applied: Option<(Vec<ServicePort>, Vec<HostPort>)>,
}

impl ServiceProxy {
    /// `id` names the rules' table, so that several nodes can share a machine.
    pub fn new(id: &str, node: &str, pods: Subnet, cluster: Subnet) -> ServiceProxy {
        let around = Surroundings { table: table(id), pods, cluster };
        ServiceProxy { around, node: node.to_owned(), applied: None }
    }

    /// Replaces all rules at once if anything changed. True if it did.
    pub fn apply(
        &mut self,
        services: &[Service],
        slices: &[EndpointSlice],
        host_ports: &[HostPort],
    ) -> io::Result<bool> {
        let mut host_ports = host_ports.to_vec();
        host_ports.sort();
        let wanted = (service_ports(services, slices, &self.node), host_ports);
        if self.applied.as_ref() == Some(&wanted) {
            return Ok(false);
        }
        transaction(&self.around, &wanted.0, &wanted.1).commit()?;
        self.applied = Some(wanted);
        Ok(true)
    }

    /// Removes the rules of a node.
    pub fn destroy(id: &str) -> io::Result<()> {
        Transaction::remove(&table(id)).commit()
    }
}

fn table(id: &str) -> String {
    format!("tombolo-{id}")
}
