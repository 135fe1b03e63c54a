//! `llmprof`: the service and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    llmprof_cli::main(option_env!("LLMPROF_GIT_COMMIT"))
}
