//! Tools of the Model Context Protocol: ten bounded questions that agents ask a service.
//!
//! Each tool is written once, over calls of the API, and never reads the database or a run's files:
//! an agent sees what its token may see. Transports are elsewhere: `http` serves the tools at
//! `/mcp`, `llmprof mcp` over standard input and output.

mod answer;
mod arguments;
mod refused;
mod server;
mod service_api;
mod tools;

pub use refused::refuse;
pub use server::AgentServer;
pub use service_api::{ApiCall, ApiMethod, ApiRefusal, ServiceApi};

/// Bytes of a message of a client.
pub const MAX_MESSAGE: usize = 1 << 18;
