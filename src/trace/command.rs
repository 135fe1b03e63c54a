//! What was timed of a command that is no runner of ours: whole processes, or the client of a server.
//!
//! Wall times from outside: a command tells its stages only where it writes them to its output.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::run::{UnknownWord, words};

words! {
    /// What a wall time is of.
    #[schema(as = TimedPart)]
    Timed {
        /// A whole process, from its start to its end.
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
    /// From the server's start until it was ready, nanoseconds.
    #[serde(default)]
    pub ready_ns: Option<i64>,
}

/// Both passes of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandTrace {
    /// Without any profiler.
    pub plain: Option<CommandTimes>,
    /// Under nsys.
    pub traced: Option<CommandTimes>,
}
