//! The body type of requests and responses: whole bytes without a box, or any stream.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Frame, Incoming, SizeHint};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Bytes that come as they come.
pub type Events = Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>;

pub struct Body(Kind);

enum Kind {
    Whole(Option<Bytes>),
    Incoming(Incoming),
    Stream(Events),
    /// The same, and it may last for hours.
    Watch(Events),
    Boxed(UnsyncBoxBody<Bytes, BoxError>),
}

/// Why a body could not be read whole.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body broke off")]
    Broken(#[source] BoxError),
}

impl Body {
    pub fn empty() -> Self {
        Self(Kind::Whole(None))
    }

    pub fn stream(stream: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static) -> Self {
        Self(Kind::Stream(Box::pin(stream)))
    }

    pub fn watch(events: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static) -> Self {
        Self(Kind::Watch(Box::pin(events)))
    }

    /// The events of a watch, for who writes them to the wire by itself.
    pub fn take_events(&mut self) -> Option<Events> {
        match std::mem::replace(&mut self.0, Kind::Whole(None)) {
            Kind::Watch(events) => Some(events),
            other => {
                self.0 = other;
                None
            }
        }
    }

    /// Wraps the body type of another library (a client's request, for example).
    pub fn wrap<B>(body: B) -> Self
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Kind::Boxed(body.map_err(Into::into).boxed_unsync()))
    }

    /// The whole body, refused past `limit` bytes before more than that is held.
    pub async fn read(self, limit: usize) -> Result<Bytes, ReadError> {
        if let Kind::Whole(bytes) = self.0 {
            let bytes = bytes.unwrap_or_default();
            return if bytes.len() > limit { Err(ReadError::TooLarge(limit)) } else { Ok(bytes) };
        }
        if hyper::body::Body::size_hint(&self).lower() > limit as u64 {
            return Err(ReadError::TooLarge(limit));
        }
        let mut body = self;
        let mut first = Bytes::new();
        let mut rest: Vec<u8> = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(ReadError::Broken)?;
            let Ok(data) = frame.into_data() else { continue };
            if first.is_empty() && rest.is_empty() {
                first = data;
            } else {
                if rest.is_empty() {
                    rest.extend_from_slice(&first);
                }
                rest.extend_from_slice(&data);
            }
            if first.len().max(rest.len()) > limit {
                return Err(ReadError::TooLarge(limit));
            }
        }
        Ok(if rest.is_empty() { first } else { rest.into() })
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Kind::Whole(Some(bytes)))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<Incoming> for Body {
    fn from(body: Incoming) -> Self {
        Self(Kind::Incoming(body))
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Whole(bytes) => {
                Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b))))
            }
            Kind::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Stream(stream) | Kind::Watch(stream) => stream.as_mut().poll_next(cx).map_ok(Frame::data),
            Kind::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Kind::Incoming(body) => body.is_end_stream(),
            Kind::Stream(_) | Kind::Watch(_) => false,
            Kind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Kind::Incoming(body) => body.size_hint(),
            Kind::Stream(_) | Kind::Watch(_) => SizeHint::default(),
            Kind::Boxed(body) => body.size_hint(),
        }
    }
}
