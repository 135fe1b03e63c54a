//! Responses that take long: their caller is checked again while they are sent.
//!
//! The rule holds for every response whose body is produced while it is sent (events, files,
//! bundles). A response of a known size is complete before its first byte.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    BoxError,
    body::{Body, BodyDataStream, Bytes, HttpBody},
    http::header,
    response::Response,
};
use tokio::time::{Instant, Sleep, sleep};
use tokio_stream::Stream;

use super::{access::Credential, guard::Guard};
use crate::http::error::{ApiError, ErrorCode};

type Check = Pin<Box<dyn Future<Output = Result<(), ApiError>> + Send>>;

/// A body whose caller is checked again each `period`. When the caller is refused, the body ends
/// with its last event, or with an error: the client must not take it for complete.
struct CheckedBody<F> {
    inner: BodyDataStream,
    /// The next block, or the end, which waits for a check.
    #[expect(clippy::option_option, reason = "an end waits, too")]
    next: Option<Option<Result<Bytes, axum::Error>>>,
    period: Duration,
    due: Pin<Box<Sleep>>,
    start_check: F,
    check: Option<Check>,
    /// `None`: the body has no events.
    last_event: Option<fn(&ApiError) -> Bytes>,
    has_ended: bool,
}

/// The response, whose body ends when `credential` is no longer valid. A response to an agent
/// (`is_of_calls`) has messages of another protocol, and no last event.
pub fn guarded(
    response: Response,
    guard: Guard,
    credential: Credential,
    is_of_calls: bool,
) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    let has_events = kind.is_some_and(|it| it.as_bytes().starts_with(b"text/event-stream"));
    let last_event = (has_events && !is_of_calls).then_some(guard.last_event);
    let (period, caller) = (guard.access.recheck, Arc::new((guard, credential)));
    let start_check = move || -> Check {
        let caller = Arc::clone(&caller);
        Box::pin(async move {
            let (guard, credential) = &*caller;
            guard.access.check_again(&guard.store, credential).await
        })
    };
    response.map(|body| Body::from_stream(CheckedBody::new(body, period, start_check, last_event)))
}

impl<F: FnMut() -> Check + Unpin> CheckedBody<F> {
    fn new(
        body: Body,
        period: Duration,
        start_check: F,
        last_event: Option<fn(&ApiError) -> Bytes>,
    ) -> Self {
        Self {
            inner: body.into_data_stream(),
            next: None,
            period,
            due: Box::pin(sleep(period)),
            start_check,
            check: None,
            last_event,
            has_ended: false,
        }
    }

    /// Ends the body, and drops what produces it.
    fn end(&mut self, refused: &ApiError) -> Result<Bytes, BoxError> {
        self.has_ended = true;
        self.inner = Body::empty().into_data_stream();
        self.next = None;
        match self.last_event {
            Some(event) => Ok(event(refused)),
            None => Err(io::Error::other(refused.message().to_owned()).into()),
        }
    }
}

impl<F: FnMut() -> Check + Unpin> Stream for CheckedBody<F> {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.has_ended {
            return Poll::Ready(None);
        }
        // A period of zero: before each block.
        let is_due = this.due.as_mut().poll(cx).is_ready() || this.period.is_zero();
        if this.check.is_none() && is_due {
            this.check = Some((this.start_check)());
        }
        // The body is polled meanwhile: what it awaits may hold what the check waits for.
        if this.next.is_none()
            && let Poll::Ready(next) = Pin::new(&mut this.inner).poll_next(cx)
        {
            this.next = Some(next);
        }
        if let Some(check) = &mut this.check {
            let checked = ready!(check.as_mut().poll(cx));
            this.check = None;
            // After another error, as of an unreadable database, the next check decides.
            if let Err(refused) = checked
                && refused.code() == ErrorCode::Unauthenticated
            {
                return Poll::Ready(Some(this.end(&refused)));
            }
            this.due.as_mut().reset(Instant::now() + this.period);
            // Wakes this task for the next check.
            if this.due.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        match this.next.take() {
            Some(next) => Poll::Ready(next.map(|block| block.map_err(Into::into))),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::{sync::mpsc, time::advance};
    use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};

    use super::*;

    const PERIOD: Duration = Duration::from_secs(5);

    type Sender = mpsc::Sender<io::Result<Bytes>>;

    /// A body that is fed by the sender, its caller, and the number of checks.
    fn fed(
        last_event: Option<fn(&ApiError) -> Bytes>,
    ) -> (Sender, BodyDataStream, Arc<AtomicBool>, Arc<AtomicUsize>) {
        let (sender, receiver) = mpsc::channel(4);
        let (is_valid, checks) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let (valid, counted) = (Arc::clone(&is_valid), Arc::clone(&checks));
        let check = move || -> Check {
            counted.fetch_add(1, Ordering::Relaxed);
            let is_valid = valid.load(Ordering::Relaxed);
            Box::pin(async move {
                if is_valid { Ok(()) } else { Err(ApiError::of(ErrorCode::Unauthenticated)) }
            })
        };
        let body = Body::from_stream(ReceiverStream::new(receiver));
        let body = Body::from_stream(CheckedBody::new(body, PERIOD, check, last_event));
        (sender, body.into_data_stream(), is_valid, checks)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_of_a_refused_caller_ends_with_its_last_event_or_an_error() {
        let event: fn(&ApiError) -> Bytes = |_| Bytes::from_static(b"last");
        for last_event in [Some(event), None] {
            let (sender, mut body, is_valid, _) = fed(last_event);
            sender.send(Ok("first".into())).await.unwrap();
            assert_eq!(body.next().await.unwrap().unwrap(), "first");
            is_valid.store(false, Ordering::Relaxed);
            // Nothing arrives: the clock alone ends the body.
            let last = body.next().await.unwrap();
            assert_eq!(last.ok().as_deref(), last_event.map(|_| &b"last"[..]));
            assert!(body.next().await.is_none());
            assert!(sender.is_closed(), "what produces the body has ended too");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_later_than_a_period_after_the_last_check() {
        let (sender, mut body, is_valid, checks) = fed(None);
        for block in 1..=4 {
            advance(PERIOD).await;
            sender.send(Ok("block".into())).await.unwrap();
            assert_eq!(body.next().await.unwrap().unwrap(), "block");
            assert_eq!(checks.load(Ordering::Relaxed), block);
        }
        sender.send(Ok("kept".into())).await.unwrap();
        is_valid.store(false, Ordering::Relaxed);
        advance(PERIOD).await;
        assert!(body.next().await.unwrap().is_err(), "no block although one is ready");
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_fails_ends_nothing_and_is_repeated() {
        let checks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&checks);
        let check = move || -> Check {
            let code = match counted.fetch_add(1, Ordering::Relaxed) {
                0 => ErrorCode::Internal,
                _ => ErrorCode::Unauthenticated,
            };
            Box::pin(async move { Err(ApiError::of(code)) })
        };
        let (sender, receiver): (Sender, _) = mpsc::channel(4);
        let body = Body::from_stream(ReceiverStream::new(receiver));
        let mut body = CheckedBody::new(body, PERIOD, check, None);
        advance(PERIOD).await;
        sender.send(Ok("block".into())).await.unwrap();
        assert_eq!(body.next().await.unwrap().unwrap(), "block");
        assert!(body.next().await.unwrap().is_err());
        assert_eq!(checks.load(Ordering::Relaxed), 2);
    }
}
