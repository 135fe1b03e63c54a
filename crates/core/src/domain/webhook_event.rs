//! Events that webhooks are notified of, by the names in settings and messages.

use super::named_values::named_values;

named_values! {
    /// An event that webhooks are notified of.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    WebhookEvent {
        /// A run has ended.
        RunEnded = "run_ended",
        /// A gate found a regression that is not accepted.
        GateFailed = "gate_failed",
        /// A run has ended, and its series has a new change point to the worse.
        RegressionFound = "regression_found",
    }
}

/// The message of an event, the same for all subscribers.
#[derive(Debug, Clone, PartialEq)]
pub struct EventMessage {
    pub event: WebhookEvent,
    /// The run that it is about.
    pub run: super::ids::RunId,
    /// A JSON object, without the event.
    pub body: serde_json::Map<String, serde_json::Value>,
}
