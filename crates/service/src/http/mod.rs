//! HTTP: API, pages, authentication, the contract.
//!
//! Handlers read and write the store; they execute no run. Modules import in one direction, which a
//! test checks: `traffic`, `error`, `extract`, `auth`, `connection`, `state`, `api`, `ui`,
//! `mcp`, `router`.

mod api;
mod auth;
mod compression;
mod connection;
mod contract;
mod error;
mod extract;
mod listen;
mod mcp;
mod request_id;
mod router;
mod state;
mod traffic;
mod ui;

pub use auth::access::AccessControl;
pub use connection::ConnectionLimits;
pub use listen::{Certificate, TlsError, serve};
pub use router::{contract, contract_yaml, router};
pub use state::{App, Intake};
