//! The stream of a connection, which fails if its client reads nothing.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use super::{OpenConnection, request_lines::RequestLines};
use crate::http::traffic::Refusal;

/// A stream with a timeout for writes.
///
/// The next request of a connection is read when the response to the one before was written, so
/// unread responses bound the work that a client can cause.
#[derive(Debug)]
pub struct ClientStream<I> {
    inner: I,
    connection: OpenConnection,
    requests: RequestLines,
    stall: Stall,
}

/// Longest wait of a write while few connections are left.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which writes wait for the client.
#[derive(Debug)]
struct Stall {
    timeout: Duration,
    /// Created when a write waits for the first time.
    timer: Option<Pin<Box<Sleep>>>,
    /// Start of the wait.
    since: Option<Instant>,
}

impl<I> ClientStream<I> {
    pub(super) fn new(inner: I, connection: OpenConnection) -> Self {
        let timeout = connection.open.limits.write_timeout;
        let stall = Stall { timeout, timer: None, since: None };
        Self { inner, connection, requests: RequestLines::default(), stall }
    }

    /// Returns the result of a write; an error if writes have waited for the whole timeout.
    fn in_time<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall.since = None;
            return written;
        }
        ready!(self.stall.poll_elapsed(&self.connection, cx));
        self.connection.open.traffic.refuse(Refusal::UnreadResponse);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Stall {
    /// Ready when writes have waited for too long.
    fn poll_elapsed(&mut self, connection: &OpenConnection, cx: &mut Context<'_>) -> Poll<()> {
        let step = self.timeout.min(CROWDED_TIMEOUT);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(step)));
        let since = match self.since {
            Some(since) => since,
            None => {
                timer.as_mut().reset(Instant::now() + step);
                *self.since.insert(Instant::now())
            }
        };
        while timer.as_mut().poll(cx).is_ready() {
            if since.elapsed() >= self.timeout || connection.open.is_crowded() {
                return Poll::Ready(());
            }
            let left = self.timeout.saturating_sub(since.elapsed());
            timer.as_mut().reset(Instant::now() + left.min(CROWDED_TIMEOUT));
        }
        Poll::Pending
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for ClientStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(end) = self.requests.take_end() {
            buffer.put_slice(&end[..end.len().min(buffer.remaining())]);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        self.requests.inspect(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for ClientStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.in_time(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.in_time(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.in_time(flushed, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.in_time(shut, cx)
    }
}
