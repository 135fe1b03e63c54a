//! Health of the database: the file is the one that was opened and readable, and calls can write.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sqlx::{
    AssertSqlSafe, Connection, SqliteConnection, migrate::MigrateError,
    sqlite::SqliteConnectOptions,
};
use tokio::sync::Mutex;

use super::{Store, StoreError, WriterStall, during};
use crate::runtime;

/// Time for which a probe is valid: readiness is asked without a token.
const VALID_FOR: Duration = Duration::from_secs(1);
/// Longest wait for readers and writers when the service stops.
const PATIENCE: Duration = Duration::from_secs(3);
/// Primary result codes of SQLite for a damaged file: SQLITE_CORRUPT and SQLITE_NOTADB.
const DAMAGE: [i32; 2] = [11, 26];
/// Result codes of SQLite for a full disk: SQLITE_FULL, and SQLITE_IOERR_SHMSIZE for the index of
/// the write-ahead log.
const FULL: [i32; 2] = [13, 4874];

/// The database file that this process opened.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    path: PathBuf,
    inode: (u64, u64),
    /// Options of probes.
    options: SqliteConnectOptions,
    /// Time of the last probe that succeeded.
    probed: Mutex<Option<Instant>>,
}

impl DatabaseFile {
    /// The file at `path`, which exists.
    pub(super) fn at(path: &Path, options: SqliteConnectOptions) -> io::Result<Self> {
        let (path, inode) = (path.to_owned(), inode(path)?);
        Ok(Self { path, inode, options, probed: Mutex::default() })
    }

    /// Returns true if the path still leads to the file.
    fn is_in_place(&self) -> bool {
        inode(&self.path).is_ok_and(|inode| inode == self.inode)
    }

    /// Reads from every table over a connection of its own, because pooled connections may answer
    /// from their caches.
    async fn probe(&self) -> Result<(), sqlx::Error> {
        let mut connection = SqliteConnection::connect_with(&self.options).await?;
        let tables: Vec<String> =
            sqlx::query_scalar("select name from sqlite_schema where type = 'table'")
                .fetch_all(&mut connection)
                .await?;
        for table in tables {
            let name = table.replace('"', "\"\"");
            let first = AssertSqlSafe(format!("select * from \"{name}\" limit 1"));
            sqlx::query(first).fetch_optional(&mut connection).await?;
        }
        // What lists and pages read.
        for query in [
            "select * from runs order by id desc limit 20",
            "select state, count(*) from runs group by state",
        ] {
            sqlx::query(query).fetch_all(&mut connection).await?;
        }
        connection.close().await
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

impl Store {
    /// Checks that requests can be answered: the database is in place and readable, and no call
    /// waits too long to write.
    pub async fn ready(&self) -> Result<(), StoreError> {
        if let Some(stall) = self.writer_stall() {
            return Err(StoreError::Blocked(stall));
        }
        let file = &self.file;
        if !file.is_in_place() {
            return Err(StoreError::Replaced { path: file.path.display().to_string() });
        }
        let mut probed = file.probed.lock().await;
        if probed.is_some_and(|at| at.elapsed() < VALID_FOR) {
            return Ok(());
        }
        *probed = None;
        file.probe().await.map_err(during("read the database"))?;
        *probed = Some(Instant::now());
        Ok(())
    }

    /// The call that blocks others that want to write, if one has waited longer than 10 s.
    pub fn writer_stall(&self) -> Option<WriterStall> {
        self.writer.stall()
    }

    /// Number of calls that have the writer or wait for it.
    #[cfg(test)]
    pub fn writer_calls(&self) -> usize {
        self.writer.calls()
    }

    /// Closes the connections of readers and moves everything from the write-ahead log into the
    /// database file, at the end of a service.
    pub async fn close(&self) -> Result<(), StoreError> {
        // Limited: a log that stays is valid, and the next start reads it.
        let closed = async {
            if let Some(readers) = &self.readers {
                readers.close().await;
            }
            let mut writer = self.writer.lock().await;
            sqlx::query("pragma wal_checkpoint(truncate)").execute(&mut *writer).await
        };
        match tokio::time::timeout(PATIENCE, runtime::task(closed)).await {
            Ok(done) => done.map(|_| ()).map_err(during("write the log into the database")),
            Err(_) => Ok(()),
        }
    }
}

impl StoreError {
    /// Returns true if the database is damaged: only a backup helps.
    pub fn is_damage(&self) -> bool {
        let is_damage = |code: i32| DAMAGE.contains(&(code & 255));
        matches!(self, Self::Corrupt { .. }) || self.code().is_some_and(is_damage)
    }

    /// Returns true if the disk of the database is full.
    pub fn is_disk_full(&self) -> bool {
        self.code().is_some_and(|code| FULL.contains(&code))
    }

    /// The extended result code of SQLite, whose low byte is the primary one.
    fn code(&self) -> Option<i32> {
        let source = match self {
            Self::Open { source, .. } | Self::Query { source, .. } => source,
            Self::Migrate {
                source: MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _),
                ..
            } => source,
            _ => return None,
        };
        source.as_database_error()?.code()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_database_that_cannot_grow_is_a_full_disk_and_other_errors_are_not() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let mut fails = async |statement: &'static str| {
            let error = sqlx::query(statement).execute(&mut connection).await.unwrap_err();
            during("test")(error).is_disk_full()
        };
        assert!(!fails("insert into missing values (1)").await);
        assert!(
            fails("pragma max_page_count = 2; create table t as select zeroblob(1000000)").await
        );
    }
}
