//! Calls to a runtime over its socket.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::messages::{ExecSyncRequest, ExecSyncResponse};
use crate::runtime::RuntimeError;

/// Whether a runtime is there at all is known after the first; what it knows it says within the second; what makes or ends
/// something may take longer.
const AT_ONCE: Duration = Duration::from_secs(3);
const QUICK: Duration = Duration::from_secs(10);
const SLOW: Duration = Duration::from_secs(120);
const LONG: Duration = Duration::from_secs(1800);
/// A machine with many images and containers lists them in one message.
const LARGEST_ANSWER: usize = 16 << 20;

/// The connection; made when it is first used, and again when the runtime was restarted.
#[derive(Clone)]
pub(super) struct Client {
    channel: Channel,
}

fn patience(method: &str) -> Duration {
    match method {
        "Version" => AT_ONCE,
        "PullImage" | "ExecSync" => LONG,
        "RunPodSandbox" | "StopPodSandbox" | "RemovePodSandbox" | "CreateContainer" | "StartContainer"
        | "StopContainer" | "RemoveContainer" => SLOW,
        _ => QUICK,
    }
}

impl Client {
    pub fn new(socket: &Path) -> Result<Client, RuntimeError> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(|error| {
            RuntimeError::Refused(format!("runtime socket {}: {error}", socket.display()))
        })?;
        Ok(Client { channel: endpoint.connect_lazy() })
    }

    /// A method of the runtime's containers and sandboxes.
    pub async fn runtime<Q, A>(&self, method: &str, request: Q) -> Result<A, RuntimeError>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        self.call("RuntimeService", method, request).await.map_err(|status| refused(method, &status))
    }

    /// The same; a thing that is not there (any more) is no error.
    pub async fn if_there<Q, A>(&self, method: &str, request: Q) -> Result<Option<A>, RuntimeError>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        match self.call("RuntimeService", method, request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(refused(method, &status)),
        }
    }

    /// Runs a command to its end, however long that takes.
    pub async fn exec_sync(&self, request: ExecSyncRequest) -> Result<ExecSyncResponse, RuntimeError> {
        self.runtime("ExecSync", request).await
    }

    /// A method of its images.
    pub async fn images<Q, A>(&self, method: &str, request: Q) -> Result<A, RuntimeError>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        self.call("ImageService", method, request).await.map_err(|status| refused(method, &status))
    }

    async fn call<Q, A>(&self, service: &str, method: &str, message: Q) -> Result<A, Status>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
        let path = PathAndQuery::try_from(format!("/runtime.v1.{service}/{method}"))
            .map_err(|error| Status::internal(error.to_string()))?;
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let call = async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            grpc.unary(Request::new(message), path, codec).await
        };
        match tokio::time::timeout(patience(method), call).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("the runtime does not answer")),
        }
    }
}

fn refused(method: &str, status: &Status) -> RuntimeError {
    match status.code() {
        Code::Unavailable => RuntimeError::Create(format!(
            "the container runtime cannot be reached ({}): is it running?",
            status.message()
        )),
        _ => RuntimeError::Create(format!("{method}: {}", status.message())),
    }
}
