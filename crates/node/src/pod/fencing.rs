//! Keeps the deadline of one pod that may run at most once.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use super::spec;
use crate::context::Context;
use crate::fence::{self, Deadline, Terms};
use crate::leases::{self, Renewals};
use crate::machine;
use crate::runtime::PodState;

/// Nothing at all for a pod that may run as long as it likes.
pub(super) struct Fencing(Option<Fenced>);

struct Fenced {
    terms: Terms,
    renewals: watch::Receiver<Renewals>,
    /// Process of the sandbox whose deadline was set, and the deadline.
    set: Option<(u32, Deadline)>,
    /// Moves the deadline with every renewal, also while the worker is busy (pulling an image, say).
    keeper: tokio::task::JoinHandle<()>,
}

impl Fencing {
    pub fn start(ctx: &Arc<Context>, pod: &Pod) -> Fencing {
        let Some(terms) = fence::terms(pod) else { return Fencing(None) };
        ctx.fenced.notify_one();
        let keeper = tokio::spawn(keep(ctx.clone(), spec::uid(pod).to_owned(), terms.clone()));
        Fencing(Some(Fenced { terms, renewals: ctx.renewals.subscribe(), set: None, keeper }))
    }

    /// Sees to it that the pod's deadline is enforced. The error says why nothing may start.
    pub async fn hold(&mut self, ctx: &Context, pod: &Pod, state: &PodState) -> Result<(), String> {
        let Some(fenced) = &mut self.0 else { return Ok(()) };
        if pod.spec.as_ref().is_some_and(|s| s.host_pid == Some(true)) {
            return Err("a pod in the machine's process namespace cannot be stopped by a deadline".into());
        }
        let sent = leases::renewal(&fenced.renewals.borrow_and_update(), &fenced.terms);
        let Some(deadline) = sent.map(|sent| fenced.terms.deadline(sent)) else {
            return Err("the pod may run at most once: it waits for a fresh lease of its hub".into());
        };
        if machine::boot_millis() >= deadline.stop {
            return Err("the pod may run at most once, and the lease of its hub ran out".into());
        }
        let Some(sandbox) = &state.sandbox else { return Ok(()) };
        if fenced.set != Some((sandbox.pid, deadline)) {
            let asked = ctx.runtime.fence(spec::uid(pod), deadline.stop, deadline.kill).await;
            asked.map_err(|error| format!("the pod may run at most once: {error}"))?;
            fenced.set = Some((sandbox.pid, deadline));
        }
        Ok(())
    }

    /// Returns when a lease was renewed; never for a pod without a deadline.
    pub async fn renewed(&mut self) {
        if let Some(fenced) = &mut self.0
            && fenced.renewals.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

impl Drop for Fencing {
    fn drop(&mut self) {
        if let Some(fenced) = &self.0 {
            fenced.keeper.abort();
        }
    }
}

async fn keep(ctx: Arc<Context>, uid: String, terms: Terms) {
    let mut renewals = ctx.renewals.subscribe();
    while renewals.changed().await.is_ok() {
        let sent = leases::renewal(&renewals.borrow_and_update(), &terms);
        let Some(deadline) = sent.map(|sent| terms.deadline(sent)) else { continue };
        if machine::boot_millis() < deadline.stop {
            // Without a sandbox there is nothing to move; the worker sets it before anything starts.
            let _ = ctx.runtime.fence(&uid, deadline.stop, deadline.kill).await;
        }
    }
}
