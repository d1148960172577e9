//! Lifecycle hooks: a command in the container, a request to it, or a pause.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};

use crate::context::Context;
use crate::pod::spec;
use crate::probe::{self, Target};
use crate::runtime::{ContainerState, ExecRequest};

pub(crate) async fn run(
    ctx: &Arc<Context>,
    pod: &Pod,
    container: &Container,
    state: &ContainerState,
    handler: &LifecycleHandler,
    limit: Duration,
) -> Result<(), String> {
    let work = async {
        if let Some(exec) = &handler.exec {
            let command = exec.command.clone().unwrap_or_default();
            let request = ExecRequest { command, stdout: true, stderr: true, ..ExecRequest::default() };
            let (code, output) = probe::exec(ctx, spec::uid(pod), &state.id, &request).await?;
            return if code == 0 {
                Ok(())
            } else {
                Err(format!("command exited with {code}: {}", output.trim()))
            };
        }
        if let Some(get) = &handler.http_get {
            let address = probe::address(ctx, pod).await.ok_or("the pod has no address")?;
            let target = Target::http(get, container, &address)?;
            return target.check(limit).await;
        }
        if let Some(sleep) = &handler.sleep {
            tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        }
        Ok(())
    };
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| Err(format!("did not finish within {} s", limit.as_secs())))
}
