//! Deliveries of messages: about ended runs, created by the database in the commit that ends a run,
//! and about regressions. Each has its text, so it outlives the run.

use llmprof_core::domain::{
    hex::hex,
    ids::RunId,
    named_values::named_values,
    webhook_event::{EventMessage, WebhookEvent},
};
use sha2::{Digest, Sha256};
use sqlx::{Connection, QueryBuilder, SqliteConnection, sqlite::SqliteRow};

use super::{Store, StoreError, WRITE, column, during, id_of, key, now_ms, rfc3339, word};

/// Time for which deliveries are kept after their run has ended.
const KEPT_MS: i64 = 30 * 86_400_000;

named_values! {
    /// State of a delivery.
    #[derive(utoipa::ToSchema)]
    DeliveryState {
        /// It is sent at its next attempt.
        Pending = "pending",
        /// It was answered with a 2xx.
        Delivered = "delivered",
        /// Its last attempt failed.
        Failed = "failed",
    }
}

/// A message that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: i64,
    /// Globally unique, and the same in every attempt.
    pub message_id: String,
    pub run: RunId,
    /// Hash of the address.
    pub target: String,
    /// JSON.
    pub body: String,
    /// Failed attempts.
    pub attempts: u32,
}

/// A stored delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDelivery {
    pub delivery: Delivery,
    pub state: DeliveryState,
    /// RFC 3339, UTC, as the next two.
    pub created_at: String,
    /// Time of the next attempt of a pending delivery.
    pub next_at: Option<String>,
    pub delivered_at: Option<String>,
    /// Error of the last failed attempt.
    pub error: Option<String>,
}

const COLUMNS: &str = "select id, message_id, run_id, target, body, attempts, state, created_at,
    next_at, delivered_at, error from deliveries";

/// Queues a message for the subscribers of its event. A message of the same text is queued once.
pub(super) async fn queue_message(
    tx: &mut SqliteConnection,
    message: &EventMessage,
) -> Result<(), StoreError> {
    let EventMessage { event, run, body } = message;
    let mut body = body.clone();
    body.insert("event".into(), event.as_str().into());
    let body = serde_json::Value::from(body).to_string();
    let hash = hex(&Sha256::digest(body.as_bytes())[..16]);
    sqlx::query(
        "insert or ignore into deliveries (message_id, run_id, target, body, created_at, next_at)
         select ?1, ?2, target, ?3, ?4, ?4 from subscriptions where event = ?5",
    )
    .bind(format!("{event}_{hash}"))
    .bind(key(run))
    .bind(body)
    .bind(now_ms())
    .bind(event.as_str())
    .execute(tx)
    .await
    .map_err(during("queue a message"))?;
    Ok(())
}

impl Store {
    /// Sets the targets of messages, and the events that they are notified of; pending messages for
    /// other targets are dropped.
    pub async fn set_webhooks(
        &self,
        targets: &[String],
        events: &[WebhookEvent],
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("set webhooks"))?;
        sqlx::query("delete from subscriptions")
            .execute(&mut *tx)
            .await
            .map_err(during("clear webhooks"))?;
        for (target, event) in
            targets.iter().flat_map(|target| events.iter().map(move |event| (target, event)))
        {
            sqlx::query("insert or ignore into subscriptions (target, event) values (?, ?)")
                .bind(target)
                .bind(event.as_str())
                .execute(&mut *tx)
                .await
                .map_err(during("set webhooks"))?;
        }
        sqlx::query(
            "delete from deliveries where state = 'pending'
             and target not in (select value from json_each(?))",
        )
        .bind(serde_json::Value::from(targets).to_string())
        .execute(&mut *tx)
        .await
        .map_err(during("drop messages"))?;
        tx.commit().await.map_err(during("set webhooks"))
    }

    /// Due messages, the longest due first. A message due more than `farthest_ms` ahead, because
    /// the clock was set back, is due now.
    pub async fn due_deliveries(
        &self,
        limit: u32,
        farthest_ms: i64,
    ) -> Result<Vec<Delivery>, StoreError> {
        let now = now_ms();
        let rows = QueryBuilder::new(COLUMNS)
            .push(" where state = 'pending' and (next_at <= ")
            .push_bind(now)
            .push(" or next_at > ")
            .push_bind(now.saturating_add(farthest_ms))
            .push(") order by next_at limit ")
            .push_bind(limit)
            .build()
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list messages"))?;
        rows.iter().map(delivery).collect()
    }

    /// The newest deliveries, newest first.
    pub async fn deliveries(
        &self,
        state: Option<DeliveryState>,
        limit: u32,
    ) -> Result<Vec<StoredDelivery>, StoreError> {
        let mut query = QueryBuilder::new(COLUMNS);
        if let Some(state) = state {
            query.push(" where state = ").push_bind(state.as_str());
        }
        let rows = query
            .push(" order by id desc limit ")
            .push_bind(limit)
            .build()
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list deliveries"))?;
        rows.iter().map(stored).collect()
    }

    /// Schedules a delivery again, whatever its state, with all its attempts; `None`: there is no
    /// such delivery.
    pub async fn replay(&self, id: i64) -> Result<Option<StoredDelivery>, StoreError> {
        let mut writer = self.writer.lock().await;
        let rows = sqlx::query(
            "update deliveries set state = 'pending', attempts = 0, next_at = ?1
             where id = ?2 returning id, message_id, run_id, target, body, attempts, state,
             created_at, next_at, delivered_at, error",
        )
        .bind(now_ms())
        .bind(id)
        .fetch_all(&mut *writer)
        .await
        .map_err(during("replay a message"))?;
        rows.first().map(stored).transpose()
    }

    /// Records that a message has arrived, and drops deliveries that were kept long enough.
    pub async fn delivered(&self, id: i64) -> Result<(), StoreError> {
        let (mut writer, now) = (self.writer.lock().await, now_ms());
        let mut tx = writer.begin_with(WRITE).await.map_err(during("record a message"))?;
        sqlx::query("update deliveries set state = 'delivered', delivered_at = ? where id = ?")
            .bind(now)
            .bind(id)
            .execute(&mut *tx)
            .await
            .map_err(during("record a message"))?;
        sqlx::query("delete from deliveries where state <> 'pending' and created_at < ?")
            .bind(now.saturating_sub(KEPT_MS))
            .execute(&mut *tx)
            .await
            .map_err(during("drop old messages"))?;
        tx.commit().await.map_err(during("record a message"))
    }

    /// Records a failed attempt and the delay of the next one; `None`: there is none.
    pub async fn not_delivered(
        &self,
        id: i64,
        error: &str,
        retry_in_ms: Option<i64>,
    ) -> Result<(), StoreError> {
        let state = if retry_in_ms.is_some() { "pending" } else { "failed" };
        let mut writer = self.writer.lock().await;
        sqlx::query(
            "update deliveries set attempts = attempts + 1, error = ?, state = ?, next_at = ?
             where id = ?",
        )
        .bind(error)
        .bind(state)
        .bind(now_ms().saturating_add(retry_in_ms.unwrap_or(0)))
        .bind(id)
        .execute(&mut *writer)
        .await
        .map_err(during("record a failed message"))?;
        Ok(())
    }
}

fn delivery(row: &SqliteRow) -> Result<Delivery, StoreError> {
    Ok(Delivery {
        id: column(row, "id")?,
        message_id: column(row, "message_id")?,
        run: id_of(column(row, "run_id")?)?,
        target: column(row, "target")?,
        body: column(row, "body")?,
        attempts: column(row, "attempts")?,
    })
}

fn stored(row: &SqliteRow) -> Result<StoredDelivery, StoreError> {
    let delivery = delivery(row)?;
    let state = word(delivery.run, "a delivery's state", column(row, "state")?)?;
    let next_at = (state == DeliveryState::Pending).then(|| column(row, "next_at")).transpose()?;
    Ok(StoredDelivery {
        state,
        created_at: rfc3339(column(row, "created_at")?),
        next_at: next_at.map(rfc3339),
        delivered_at: column::<Option<i64>>(row, "delivered_at")?.map(rfc3339),
        error: column(row, "error")?,
        delivery,
    })
}
