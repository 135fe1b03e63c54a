//! A session: a server that is started once under `nsys launch` and stays, so that several runs
//! record windows of it.
//!
//! Plain values; the store keeps them and a worker acts on them.

use serde::{Deserialize, Serialize};

use super::{command::CommandCall, named_values::named_values, profiling::NsysSettings};

named_values! {
    /// State of a session.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    SessionState {
        /// It waits for its devices, or its server is not ready.
        Starting = "starting",
        Ready = "ready",
        /// A run uses the server.
        Busy = "busy",
        /// No further run starts.
        Ending = "ending",
        /// On request, by its lifetime or with its service.
        Ended = "ended",
        /// For the reason in its message.
        Failed = "failed",
        /// Its service was killed.
        Lost = "lost",
    }
}

impl SessionState {
    /// True once it has ended: the state does not change again.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Ended | Self::Failed | Self::Lost)
    }

    /// True if a run may be queued for it.
    pub const fn accepts_runs(self) -> bool {
        matches!(self, Self::Starting | Self::Ready | Self::Busy)
    }
}

/// A session as it was requested, with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSpec {
    /// The server's command and its parameters.
    pub call: CommandCall,
    /// `auto`, `cpu`, `cuda:INDEX`, a UUID or a GPU model.
    pub device: String,
    /// Maximum time from the start of the server, seconds.
    pub lifetime_s: u32,
    pub label: Option<String>,
    /// Settings of nsys; the APIs and the granularity of graphs are fixed at the start.
    pub nsys: NsysSettings,
}

impl SessionSpec {
    /// Number of devices that it holds.
    pub fn gpus(&self) -> u32 {
        self.call.gpus.unwrap_or(1).max(1)
    }
}
