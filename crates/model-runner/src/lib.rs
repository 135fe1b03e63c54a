//! `model-runner`: runs one model on one input, repeatedly, and records timed events.
//!
//! Started by `llmprof` as a child process, or by hand. The only binary that links candle; its only
//! profiler interface is NVTX. Every failure ends in an exit code and one last line on standard
//! error.

// They panic if the reader has left: `llmprof_core::print_line`.
#![cfg_attr(not(test), warn(clippy::print_stdout))]

mod args;
mod bench;
mod ceilings;
mod features;
mod generate;
#[cfg(feature = "cuda")]
mod gpu;
mod limits;
mod models;
mod module_bench;
mod module_scope;
mod nvtx;
mod ops;
mod prepare;
mod preprocess;
mod prompt;
mod record;
mod run;
mod text;
mod weights;

use std::{
    io,
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
};

use llmprof_core::{domain::runner::EXIT_BAD_INPUT, print_notice};

use prepare::RunError;

/// Merges freed memory at once, and keeps it. By default the C library merges the many small parts
/// of a repeat's events when a later call needs more, within a stage that is timed: 2.5 ms of a
/// prefill.
fn merge_freed_memory_at_once() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets numbers, before other threads start.
    unsafe {
        nix::libc::mallopt(nix::libc::M_MXFAST, 0);
        nix::libc::mallopt(nix::libc::M_TRIM_THRESHOLD, i32::MAX);
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    let started_ns = record::now_ns();
    merge_freed_memory_at_once();
    let args = args::parse();
    let filter =
        tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    // A panic is one line as well: the parent shows the last one.
    panic::set_hook(Box::new(|info| {
        print_notice(format_args!("model-runner: internal error: {}", one_line(&info.to_string())))
    }));

    if matches!(args.command, args::Command::Features) {
        return features::print();
    }
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        let bad_input = |error: args::ArgsError| RunError::BadInput(error.to_string());
        match &args.command {
            args::Command::Run(command) => {
                run::run(&command.request().map_err(bad_input)?, &command.out, started_ns)
            }
            args::Command::Bench(command) => {
                bench::bench(&command.request().map_err(bad_input)?, started_ns)
            }
            args::Command::Features => Ok(()),
        }
    }));
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            print_notice(format_args!("model-runner: {}", one_line(&error.to_string())));
            match error {
                RunError::BadInput(_) => ExitCode::from(EXIT_BAD_INPUT as u8),
                RunError::Model(_) | RunError::Write { .. } => ExitCode::FAILURE,
            }
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// The message without line breaks, and without the backtrace that candle may append.
fn one_line(message: &str) -> String {
    let message = message.split("\n   0: ").next().unwrap_or_default();
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
