//! Decisions of gates: those with an accepted regression, and the newest of each baseline.
//!
//! The report of a gate is JSON that the store does not read.

use llmprof_core::domain::webhook_event::EventMessage;
use sqlx::{Connection, sqlite::SqliteRow};

use super::{Store, StoreError, WRITE, column, deliveries::queue_message, during, now_ms, rfc3339};

/// Kept decisions of a baseline, without those with an accepted regression.
const KEPT: u32 = 200;

/// A decision to store.
#[derive(Debug, Clone, Copy)]
pub struct NewGate<'a> {
    pub baseline: &'a str,
    /// Reason for which a regression was accepted.
    pub accepted: Option<&'a str>,
    /// JSON.
    pub report: &'a str,
    pub by: Option<&'a str>,
}

/// A stored decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredGate {
    /// JSON.
    pub report: String,
    /// RFC 3339, UTC.
    pub at: String,
    pub by: Option<String>,
}

/// The decisions of a list.
#[derive(Debug, Clone, Copy, Default)]
pub struct GateFilter<'a> {
    pub baseline: Option<&'a str>,
    /// Only accepted regressions, or only the others.
    pub accepted: Option<bool>,
}

impl Store {
    /// Stores a decision together with the message about it.
    pub async fn add_gate(
        &self,
        gate: NewGate<'_>,
        message: Option<&EventMessage>,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("store a gate"))?;
        sqlx::query(
            "insert into gates (baseline, accepted, report, at, by) values (?, ?, ?, ?, ?)",
        )
        .bind(gate.baseline)
        .bind(gate.accepted)
        .bind(gate.report)
        .bind(now_ms())
        .bind(gate.by)
        .execute(&mut *tx)
        .await
        .map_err(during("store a gate"))?;
        sqlx::query(
            "delete from gates where baseline = ?1 and accepted is null and id <= (
                 select id from gates where baseline = ?1 and accepted is null
                 order by id desc limit 1 offset ?2)",
        )
        .bind(gate.baseline)
        .bind(KEPT)
        .execute(&mut *tx)
        .await
        .map_err(during("remove old gates"))?;
        if let Some(message) = message {
            queue_message(&mut tx, message).await?;
        }
        tx.commit().await.map_err(during("store a gate"))
    }

    /// Decisions, newest first.
    pub async fn gates(
        &self,
        filter: GateFilter<'_>,
        limit: u32,
    ) -> Result<Vec<StoredGate>, StoreError> {
        let rows = sqlx::query(
            "select report, at, by from gates
             where (?1 is null or baseline = ?1) and (?2 is null or (accepted is not null) = ?2)
             order by id desc limit ?3",
        )
        .bind(filter.baseline)
        .bind(filter.accepted)
        .bind(limit)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list gates"))?;
        let gate = |row: &SqliteRow| {
            let (report, at) = (column(row, "report")?, rfc3339(column(row, "at")?));
            Ok(StoredGate { report, at, by: column(row, "by")? })
        };
        rows.iter().map(gate).collect()
    }
}
