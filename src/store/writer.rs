//! The connection that writes. It is replaced after a failed write that left it unusable.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use sqlx::{Connection, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::sync::{Mutex, MutexGuard};

use crate::runtime::{self, DatabaseCall};

/// The only connection that writes. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    connection: Arc<Mutex<SqliteConnection>>,
    options: Arc<SqliteConnectOptions>,
}

impl Writer {
    pub(super) fn new(connection: SqliteConnection, options: SqliteConnectOptions) -> Self {
        Self { connection: Arc::new(Mutex::new(connection)), options: Arc::new(options) }
    }

    /// Waits for the connection; no transaction is open in it.
    ///
    /// SQLite rolls back by itself when the disk is full or fails. sqlx still counts the
    /// transaction as open then, and would refuse every further one.
    pub(super) async fn lock(&self) -> WriterGuard<'_> {
        runtime::delay().await;
        let mut connection = self.connection.lock().await;
        let call = DatabaseCall::start();
        // A rollback may be queued: the ping comes after it.
        if connection.is_in_transaction()
            && (connection.ping().await.is_err() || connection.is_in_transaction())
        {
            match SqliteConnection::connect_with(&self.options).await {
                Ok(new) => {
                    *connection = new;
                    tracing::warn!("reconnected to the database after a write that failed");
                }
                Err(error) => {
                    let error = crate::chain(&error);
                    tracing::error!(error, "cannot reconnect to the database");
                }
            }
        }
        WriterGuard { connection, _call: call }
    }
}

/// The connection, until it is dropped.
pub(super) struct WriterGuard<'a> {
    connection: MutexGuard<'a, SqliteConnection>,
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
