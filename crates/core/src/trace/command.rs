//! Wall times of a command other than the model runner: whole processes, or the client of a server.
//!
//! Measured from outside. Stage times exist only if the command writes events to its output.

use serde::{Deserialize, Serialize};

use super::{requests::RequestLoad, windows::Window};
use crate::domain::named_values::named_values;

named_values! {
    /// The subject of a wall time.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[cfg_attr(feature = "schema", schema(as = TimedPart))]
    Timed {
        /// A whole process, from its start to its exit.
        Process = "process",
        /// The client of a server that was ready.
        Client = "client",
    }
}

/// Wall times of one pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandTimes {
    pub of: Timed,
    /// Unmeasured repetitions before the measured ones.
    pub warmup: u32,
    /// One per measured repetition, nanoseconds.
    pub wall_ns: Vec<i64>,
    /// Time from the server's start until it was ready, nanoseconds.
    #[serde(default)]
    pub ready_ns: Option<i64>,
}

/// Wall times of both passes of a command, and the requests of its loads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CommandTrace {
    /// The unprofiled pass.
    pub plain: Option<CommandTimes>,
    /// The pass under nsys.
    pub traced: Option<CommandTimes>,
    /// Loads of a server by llmprof's own client, in the order of passes and repeats.
    pub loads: Vec<RequestLoad>,
    /// The recorded window of a server's load.
    pub window: Option<Window>,
}
