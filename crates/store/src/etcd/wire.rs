//! The part of etcd's gRPC interface that the engine uses: messages as etcd numbers their fields, and the calls.
//!
//! Written by hand because generating it would need `protoc` on every machine that builds this program.

use bytes::Bytes;
use futures::channel::mpsc;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// A page of records can be large; etcd itself sets no limit on answers.
const MAX_ANSWER: usize = 512 << 20;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(bool, tag = "9")]
    pub(crate) count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, required, tag = "1")]
    pub(crate) header: Header,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutResponse {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bool, tag = "3")]
    pub(crate) prev_kv: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteResponse {
    #[prost(message, repeated, tag = "3")]
    pub(crate) prev_kvs: Vec<KeyValue>,
}

/// Compares the revision of a key's last write; 0 when the key does not exist.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    /// 0 is "equal".
    #[prost(int32, tag = "1")]
    pub(crate) result: i32,
    /// 2 is the revision of the last write.
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) key: Bytes,
    #[prost(oneof = "CompareTo", tags = "6")]
    pub(crate) to: Option<CompareTo>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum CompareTo {
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Op", tags = "1, 2, 3")]
    pub(crate) op: Option<Op>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Op {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    #[prost(oneof = "Answer", tags = "1, 2, 3")]
    pub(crate) answer: Option<Answer>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Answer {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteResponse),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, required, tag = "1")]
    pub(crate) header: Header,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CompactionRequest {
    #[prost(int64, tag = "1")]
    pub(crate) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CompactionResponse {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "WatchCall", tags = "1, 3")]
    pub(crate) call: Option<WatchCall>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum WatchCall {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "3")]
    Progress(WatchProgress),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreate {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(crate) progress_notify: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchProgress {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, required, tag = "1")]
    pub(crate) header: Header,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<WatchEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchEvent {
    /// 0 is a put, 1 a delete.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, required, tag = "2")]
    pub(crate) kv: KeyValue,
}

/// The calls, over a channel that finds a living endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    channel: Channel,
}

impl Client {
    pub(crate) fn new(channel: Channel) -> Self {
        Client { channel }
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.call("/etcdserverpb.KV/Range", request).await
    }

    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.call("/etcdserverpb.KV/Txn", request).await
    }

    pub(crate) async fn compact(&self, revision: i64) -> Result<(), Status> {
        let request = CompactionRequest { revision };
        self.call::<_, CompactionResponse>("/etcdserverpb.KV/Compact", request).await.map(|_| ())
    }

    /// Opens a watch; further requests go through the sender of `requests`.
    pub(crate) async fn watch(
        &self,
        requests: mpsc::Receiver<WatchRequest>,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let mut request = Request::new(requests);
        // A member that has lost its cluster ends the watch instead of keeping silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut grpc = self.grpc().await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        grpc.streaming(request, path, codec).await.map(tonic::Response::into_inner)
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.grpc().await?;
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(Request::new(request), path, ProstCodec::<Q, A>::default()).await?;
        Ok(answer.into_inner())
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER);
        grpc.ready().await.map_err(|error| Status::unavailable(format!("cannot connect: {error}")))?;
        Ok(grpc)
    }
}

/// The end of the range of all keys with this prefix.
pub(crate) fn end_of(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_right_after_its_prefix() {
        assert_eq!(end_of(b"/pods/"), Bytes::from_static(b"/pods0"));
        assert_eq!(end_of(b"a\xff\xff"), Bytes::from_static(b"b"));
        assert_eq!(end_of(b""), Bytes::from_static(b"\0"), "which etcd reads as: to the very end");
    }
}
