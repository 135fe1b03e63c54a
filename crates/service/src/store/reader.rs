//! A connection that reads: one of the pool, or the writer's in a simulation.

use std::ops::{Deref, DerefMut};

use sqlx::{Sqlite, SqliteConnection, pool::PoolConnection};

use super::writer::WriterGuard;

/// A connection for one or several reads.
pub(super) enum Reader<'a> {
    OfPool(PoolConnection<Sqlite>),
    Writer(WriterGuard<'a>),
}

impl Deref for Reader<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        match self {
            Self::OfPool(connection) => connection,
            Self::Writer(connection) => connection,
        }
    }
}

impl DerefMut for Reader<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        match self {
            Self::OfPool(connection) => connection,
            Self::Writer(connection) => connection,
        }
    }
}
