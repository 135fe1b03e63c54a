//! The features of this build, printed without opening a device.

use std::process::ExitCode;

use llmprof_core::domain::runner::Features;

use crate::print_notice;

/// Prints one line of JSON.
pub fn print() -> ExitCode {
    let features =
        Features { cuda: cfg!(feature = "cuda"), version: env!("CARGO_PKG_VERSION").to_owned() };
    match serde_json::to_string(&features) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_notice(format_args!("model-runner: {error}"));
            ExitCode::FAILURE
        }
    }
}
