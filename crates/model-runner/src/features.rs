//! The features of this build, printed without opening a device.

use std::{io, process::ExitCode};

use llmprof_core::{domain::runner::Features, print_line, print_notice};

/// Prints one line of JSON.
pub fn print() -> ExitCode {
    let features =
        Features { cuda: cfg!(feature = "cuda"), version: env!("CARGO_PKG_VERSION").to_owned() };
    match serde_json::to_string(&features).map_err(io::Error::from).and_then(print_line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_notice(format_args!("model-runner: {error}"));
            ExitCode::FAILURE
        }
    }
}
