//! Webhook deliveries, for admins: `GET /deliveries`, `POST /deliveries/{delivery_id}/replay`.

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
};
use llmprof_core::domain::{ids::RunId, json_numbers::Within};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::runs::example;
use crate::{
    http::{
        error::{
            ApiError, ErrorCode,
            responses::{DeliveryNotFound, GuardedErrors, InsufficientStorage, InvalidParameter},
        },
        extract::params::{Params, bad_path},
        state::App,
    },
    store::{DeliveryState, StoredDelivery},
};

/// The newest webhook deliveries, newest first. They outlive their runs by up to 30 days.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryList {
    pub deliveries: Vec<DeliveryView>,
}

/// One message to one configured address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryView {
    #[schema(example = 12, minimum = 1)]
    pub id: i64,
    /// The header `webhook-id`: globally unique, and the same in every attempt.
    #[schema(example = "run_ended_019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")]
    pub message_id: String,
    pub run_id: RunId,
    /// SHA-256 of the address, which no response contains.
    pub target: String,
    pub state: DeliveryState,
    /// Failed attempts.
    #[schema(example = 1)]
    pub attempts: u32,
    /// RFC 3339, UTC, as the other times.
    pub created_at: String,
    /// Time of the next attempt; `null` unless pending.
    pub next_at: Option<String>,
    pub delivered_at: Option<String>,
    /// Error of the last failed attempt.
    #[schema(example = "the response has status 500")]
    pub error: Option<String>,
}

impl From<StoredDelivery> for DeliveryView {
    fn from(it: StoredDelivery) -> Self {
        Self {
            id: it.delivery.id,
            message_id: it.delivery.message_id,
            run_id: it.delivery.run,
            target: it.delivery.target,
            state: it.state,
            attempts: it.delivery.attempts,
            created_at: it.created_at,
            next_at: it.next_at,
            delivered_at: it.delivered_at,
            error: it.error,
        }
    }
}

impl DeliveryView {
    fn example() -> Self {
        Self {
            id: 12,
            message_id: format!("run_ended_{}", example::id()),
            run_id: example::id(),
            target: "5f16f4c7f149ac4f9510d9cf8cf384038ad348b3bcdc01915f95de12df9d1b02".into(),
            state: DeliveryState::Pending,
            attempts: 1,
            created_at: "2026-11-20T09:02:11.402Z".into(),
            next_at: Some("2026-11-20T09:02:51.633Z".into()),
            delivered_at: None,
            error: Some("the response has status 500".into()),
        }
    }
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DeliveryQuery {
    /// Deliveries of this state only.
    state: Option<DeliveryState>,
    /// Number of deliveries.
    #[serde(default, deserialize_with = "Within::<1, 1000>::optional_parameter")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// List webhook deliveries with state, attempts and last error, newest first; for admins
#[utoipa::path(get, path = "/deliveries", tag = "service", operation_id = "list_deliveries",
    params(DeliveryQuery),
    responses(
        (status = 200, description = "The newest deliveries", body = DeliveryList,
            example = json!(DeliveryList { deliveries: vec![DeliveryView::example()] })),
        GuardedErrors, InvalidParameter))]
pub async fn list(
    State(app): State<App>,
    Params(query): Params<DeliveryQuery>,
) -> Result<Json<DeliveryList>, ApiError> {
    let limit = query.limit.unwrap_or(100);
    let found = app.store.deliveries(query.state, limit).await?;
    Ok(Json(DeliveryList { deliveries: found.into_iter().map(Into::into).collect() }))
}

/// Send a webhook message again, with the same id and text; for admins
///
/// The message becomes pending with all its attempts, whatever its state was.
#[utoipa::path(post, path = "/deliveries/{delivery_id}/replay", tag = "service",
    operation_id = "replay_delivery",
    params(("delivery_id" = i64, Path, minimum = 1, description = "Id of the delivery")),
    responses(
        (status = 200, description = "The pending delivery", body = DeliveryView,
            example = json!(DeliveryView::example())),
        GuardedErrors, InvalidParameter, DeliveryNotFound, InsufficientStorage))]
pub async fn replay(
    State(app): State<App>,
    id: Result<Path<i64>, PathRejection>,
) -> Result<Json<DeliveryView>, ApiError> {
    let Path(id) = id.map_err(bad_path)?;
    if id < 1 {
        let message = format!("invalid delivery {id}; expected a positive number");
        return Err(ApiError::new(ErrorCode::InvalidParameter, message));
    }
    let replayed = app.store.replay(id).await?;
    let missing = || ApiError::new(ErrorCode::DeliveryNotFound, format!("no delivery {id}"));
    replayed.map(|it| Json(it.into())).ok_or_else(missing)
}
