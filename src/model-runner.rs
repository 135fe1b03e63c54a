//! `model-runner`: runs one model and records timed events. `llmprof` starts it.

use std::process::ExitCode;

fn main() -> ExitCode {
    llmprof_runner::main()
}
