//! Values that the packages of llmprof share, and the names of a run's files.

pub mod domain;
pub mod layout;
pub mod trace;

/// An error with its causes, in one line: the only place where a chain is joined.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
