//! The harness of the other tests.

pub mod captures;
pub mod deep;
pub mod disk;
pub mod golden;
pub mod models;
pub mod report_input;
pub mod service;
pub mod session;

use proptest::test_runner::Config as ProptestConfig;

/// `all` if `LLMPROF_THOROUGH=1` (`just thorough`), else `few`, which the check has time for.
pub fn extent<T>(few: T, all: T) -> T {
    let is_thorough = std::env::var_os("LLMPROF_THOROUGH").is_some_and(|value| value == "1");
    if is_thorough { all } else { few }
}

/// Settings of a property whose cases are slow: `PROPTEST_CASES` of them (`just explore`), or
/// [`extent`].
pub fn slow_cases(few: u32, all: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig::with_cases(asked.unwrap_or_else(|| extent(few, all)))
}
