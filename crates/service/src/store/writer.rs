//! The connection that writes. It is replaced after a failed write that left it unusable.
//!
//! Calls get it in the order in which they asked. A call waiting too long is logged with the
//! call that has the connection, and makes the service unready.

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Deref, DerefMut},
    panic::Location,
    sync::{Arc, Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError},
    time::Duration,
};

use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::{
    sync::{Mutex, MutexGuard},
    time::{Instant, sleep},
};

use crate::runtime::{self, DatabaseCall};

/// Longest wait for the connection that is not a fault.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The only connection that writes. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    connection: Arc<Mutex<SqliteConnection>>,
    options: Arc<SqliteConnectOptions>,
    queue: Arc<StdMutex<WriterQueue>>,
}

/// Calls that have the connection or wait for it, in the order in which they asked.
#[derive(Debug, Default)]
struct WriterQueue {
    next: u64,
    calls: BTreeMap<u64, WriterCall>,
    /// Time of the last report of a long wait.
    reported: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct WriterCall {
    from: &'static Location<'static>,
    /// Since when it waits, then since when it has the connection.
    since: Instant,
    has_connection: bool,
}

/// A call waits longer than [`MAX_WAIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterStall {
    waiting: usize,
    waited: Duration,
    /// Source line of the call that has the connection, or gets it next.
    first: &'static Location<'static>,
    held: Option<Duration>,
}

impl fmt::Display for WriterStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waiting, waited, first, held } = self;
        write!(f, "waiting calls: {waiting}, for up to {} s; {first} ", waited.as_secs())?;
        match held {
            Some(held) => write!(f, "has had the writer for {} s", held.as_secs()),
            None => f.write_str("is next and does not take the writer"),
        }
    }
}

impl WriterQueue {
    /// The first call, if another one, or it, waits too long.
    fn stall(&self) -> Option<WriterStall> {
        let waiting = || self.calls.values().filter(|call| !call.has_connection);
        let waited = waiting().map(|call| call.since.elapsed()).max()?;
        let first = self.calls.values().find(|call| call.has_connection).or(waiting().next())?;
        (waited >= MAX_WAIT).then(|| WriterStall {
            waiting: waiting().count(),
            waited,
            first: first.from,
            held: first.has_connection.then(|| first.since.elapsed()),
        })
    }
}

impl Writer {
    pub(super) fn new(connection: SqliteConnection, options: SqliteConnectOptions) -> Self {
        Self {
            connection: Arc::new(Mutex::new(connection)),
            options: Arc::new(options),
            queue: Arc::default(),
        }
    }

    /// Waits for the connection; no transaction is open in it.
    ///
    /// SQLite rolls back by itself when the disk is full or fails. sqlx still counts the
    /// transaction as open then, and would refuse every further one.
    #[track_caller]
    pub(super) fn lock(&self) -> impl Future<Output = WriterGuard<'_>> {
        let from = Location::caller();
        async move {
            runtime::delay().await;
            let mut turn = self.enter(from);
            let connection = tokio::select! {
                biased;
                connection = self.connection.lock() => connection,
                never = self.report_long_wait() => match never {},
            };
            turn.starts();
            // A call that writes may be slow, too.
            runtime::delay().await;
            let mut guard = WriterGuard { connection, _turn: turn, _call: DatabaseCall::start() };
            self.repair(&mut guard).await;
            guard
        }
    }

    /// Replaces the connection if it has an open transaction.
    async fn repair(&self, connection: &mut SqliteConnection) {
        // A rollback may be queued: the ping comes after it.
        if !connection.is_in_transaction()
            || (connection.ping().await.is_ok() && !connection.is_in_transaction())
        {
            return;
        }
        match SqliteConnection::connect_with(&self.options).await {
            Ok(new) => {
                *connection = new;
                tracing::warn!("reconnected to the database after a write that failed");
            }
            Err(error) => {
                let error = llmprof_core::chain(&error);
                tracing::error!(error, "cannot reconnect to the database");
            }
        }
    }

    /// The call that blocks the others, if one of them waits too long.
    pub(super) fn stall(&self) -> Option<WriterStall> {
        self.queue().stall()
    }

    /// Number of calls that have the connection or wait for it.
    #[cfg(test)]
    pub(super) fn calls(&self) -> usize {
        self.queue().calls.len()
    }

    fn queue(&self) -> StdMutexGuard<'_, WriterQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, from: &'static Location<'static>) -> WriterTurn<'_> {
        let mut queue = self.queue();
        let number = queue.next;
        queue.next += 1;
        let call = WriterCall { from, since: Instant::now(), has_connection: false };
        queue.calls.insert(number, call);
        WriterTurn { writer: self, number }
    }

    /// Logs the stall while a call waits too long, once per [`MAX_WAIT`] for all calls together.
    async fn report_long_wait(&self) -> std::convert::Infallible {
        loop {
            sleep(MAX_WAIT).await;
            let stall = {
                let mut queue = self.queue();
                let is_due = queue.reported.is_none_or(|at| at.elapsed() >= MAX_WAIT);
                let stall = queue.stall().filter(|_| is_due);
                if stall.is_some() {
                    queue.reported = Some(Instant::now());
                }
                stall
            };
            if let Some(stall) = stall {
                tracing::error!(%stall, "the writer of the database is blocked");
            }
        }
    }
}

/// The place of a call in the queue, until it is dropped.
struct WriterTurn<'a> {
    writer: &'a Writer,
    number: u64,
}

impl WriterTurn<'_> {
    fn starts(&mut self) {
        if let Some(call) = self.writer.queue().calls.get_mut(&self.number) {
            (call.since, call.has_connection) = (Instant::now(), true);
        }
    }
}

impl Drop for WriterTurn<'_> {
    fn drop(&mut self) {
        self.writer.queue().calls.remove(&self.number);
    }
}

/// The connection, until it is dropped.
pub(super) struct WriterGuard<'a> {
    connection: MutexGuard<'a, SqliteConnection>,
    _turn: WriterTurn<'a>,
    _call: DatabaseCall,
}

impl Deref for WriterGuard<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for WriterGuard<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;
    use crate::store::{Store, StoreError};

    #[tokio::test]
    async fn a_call_that_keeps_the_writer_is_named_and_makes_the_store_unready() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
        let age = |time| {
            for call in store.writer.queue().calls.values_mut() {
                call.since -= time;
            }
        };
        let held = store.writer.lock().await;
        age(MAX_WAIT * 2);
        assert_eq!(store.writer_stall(), None, "no other call waits");
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.tokens().await.map(drop).and(store.close().await) }
        });
        while store.writer_calls() < 2 {
            yield_now().await;
        }
        store.ready().await.unwrap();
        age(MAX_WAIT);
        let blocked = store.ready().await.unwrap_err();
        assert!(matches!(blocked, StoreError::Blocked(_)), "{blocked}");
        let text = blocked.to_string();
        assert!(text.contains("waiting calls: 1, for up to 10 s"), "{text}");
        assert!(text.contains("src/store/writer.rs:"), "{text}");
        assert!(text.ends_with("has had the writer for 30 s"), "{text}");
        drop(held);
        waiting.await.unwrap().unwrap();
        store.ready().await.unwrap();
    }

    #[test]
    fn a_call_that_is_next_and_does_not_take_the_writer_is_named() {
        let (at, mut queue) = (Instant::now(), WriterQueue::default());
        let mut enter = |number, waited_s| {
            let since = at - Duration::from_secs(waited_s);
            let call = WriterCall { from: Location::caller(), since, has_connection: false };
            queue.calls.insert(number, call);
        };
        enter(7, 12);
        enter(8, 11);
        let text = queue.stall().unwrap().to_string();
        assert!(text.starts_with("waiting calls: 2, for up to 12 s"), "{text}");
        assert!(text.ends_with("is next and does not take the writer"), "{text}");
    }
}
