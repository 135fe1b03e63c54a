//! A form's body in small chunks, which bound the memory of its parser.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use axum::body::{Body, BodyDataStream, Bytes};
use tokio_stream::Stream;

/// Bytes that may arrive between two chunks of parts: the headers of a part.
const MAX_UNPARSED: u64 = 1 << 20;
const MAX_CHUNK: usize = 1 << 16;

/// Body in chunks, with a pause after each: the parser buffers every chunk that is ready, and
/// everything up to the end of a part's headers.
pub(super) struct FormChunks {
    inner: BodyDataStream,
    rest: Bytes,
    pause: bool,
    /// Bytes since the parser last returned a chunk of a part.
    unparsed: Arc<AtomicU64>,
}

impl FormChunks {
    pub(super) fn new(body: Body, unparsed: Arc<AtomicU64>) -> Self {
        Self { inner: body.into_data_stream(), rest: Bytes::new(), pause: false, unparsed }
    }
}

impl Stream for FormChunks {
    type Item = Result<Bytes, axum::BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.pause) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.rest.is_empty() {
            self.rest = match ready!(Pin::new(&mut self.inner).poll_next(cx)) {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            };
        }
        self.pause = true;
        let length = self.rest.len().min(MAX_CHUNK);
        let chunk = self.rest.split_to(length);
        let unparsed = self.unparsed.fetch_add(length as u64, Ordering::Relaxed) + length as u64;
        Poll::Ready(Some(if unparsed > MAX_UNPARSED {
            Err("the headers of a part are too long".into())
        } else {
            Ok(chunk)
        }))
    }
}
