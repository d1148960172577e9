//! How a pod comes onto the network: by the node's own bridge, or by the plugins of the cluster the node joined.

use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;
use tombolo_net::{Addresses, CniError, Plugins, PodIdentity, PodNetwork};

use crate::runtime::{RuntimeError, SandboxSpec};

#[derive(Clone)]
pub enum PodLinks {
    Own { network: PodNetwork, addresses: Arc<Mutex<Addresses>> },
    Cluster(Plugins),
}

impl PodLinks {
    pub fn own(network: PodNetwork) -> PodLinks {
        let addresses = Arc::new(Mutex::new(Addresses::new(network.subnet())));
        PodLinks::Own { network, addresses }
    }

    /// Whether pods can be connected; a cluster's network may come after the node.
    pub fn ready(&self) -> Result<(), CniError> {
        match self {
            PodLinks::Own { .. } => Ok(()),
            PodLinks::Cluster(plugins) => plugins.ready(),
        }
    }

    /// Connects the network namespace of process `pid` and says the pod's address.
    pub async fn attach(&self, spec: &SandboxSpec, pid: u32) -> Result<Ipv4Addr, RuntimeError> {
        match self {
            PodLinks::Own { network, addresses } => {
                let address = addresses.lock().allocate(&spec.uid)?;
                let (network, name) = (network.clone(), spec.uid.clone());
                let attached = tokio::task::spawn_blocking(move || network.attach(&name, pid, address)).await;
                attached.map_err(|error| RuntimeError::Create(error.to_string()))??;
                Ok(address)
            }
            PodLinks::Cluster(plugins) => {
                let SandboxSpec { uid, namespace, name, .. } = spec.clone();
                tombolo_net::loopback_up(pid)?;
                Ok(plugins.attach(&PodIdentity { uid, namespace, name }, pid).await?)
            }
        }
    }

    /// Before the pod's processes end; `pid` is that of the sandbox while it lives. What plugins gave is given back
    /// while the namespace it was made for is still there.
    pub async fn leave(&self, uid: &str, pid: Option<u32>) -> Result<(), RuntimeError> {
        match self {
            PodLinks::Own { .. } => Ok(()),
            PodLinks::Cluster(plugins) => Ok(plugins.detach(uid, pid).await?),
        }
    }

    /// After the pod's processes ended: nothing of it is left, and its address is free.
    pub async fn release(&self, uid: &str) -> Result<(), RuntimeError> {
        match self {
            PodLinks::Own { network, addresses } => {
                let (network, name) = (network.clone(), uid.to_owned());
                let detached = tokio::task::spawn_blocking(move || network.detach(&name)).await;
                detached.map_err(|error| RuntimeError::Create(error.to_string()))??;
                addresses.lock().release(uid);
                Ok(())
            }
            PodLinks::Cluster(plugins) => Ok(plugins.detach(uid, None).await?),
        }
    }

    /// Notes the address of a pod that was there before this process. False if another pod has it.
    pub fn claim(&self, uid: &str, address: Ipv4Addr) -> bool {
        match self {
            PodLinks::Own { addresses, .. } => addresses.lock().claim(uid, address),
            PodLinks::Cluster(_) => true,
        }
    }
}
