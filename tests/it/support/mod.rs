//! The harness of the other tests.

pub mod captures;
pub mod deep;
pub mod disk;
pub mod golden;
pub mod models;
pub mod report_input;
pub mod service;
pub mod session;

/// `all` if `LLMPROF_THOROUGH=1` (`just thorough`), else `few`, which the check has time for.
pub fn extent<T>(few: T, all: T) -> T {
    let is_thorough = std::env::var_os("LLMPROF_THOROUGH").is_some_and(|value| value == "1");
    if is_thorough { all } else { few }
}
