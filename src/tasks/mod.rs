//! Tasks of a service that run alongside its runs: retention, webhooks, checks of the host.

pub mod host_checks;
pub mod retention;
pub mod webhooks;
