//! Tasks of a service that run alongside its runs: retention, scrub, webhooks, checks of the host.

pub mod host_checks;
pub mod inputs;
pub mod retention;
pub mod scrub;
pub mod webhooks;
