//! Progress of commands that read and copy files, on standard error.

use llmprof_service::runtime::work::SlicedWork;

use super::client::terminal::print_notice;

/// Work of a command, which the end of its process stops. Prints its progress every few seconds.
pub(super) fn work(name: &'static str) -> SlicedWork {
    SlicedWork::default()
        .reporting(move |done, _| print_notice(format_args!("{name}: {:.1} GB", done as f64 / 1e9)))
}
