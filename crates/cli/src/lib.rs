//! The command line of llmprof: one arm per subcommand, one call per arm.

// They panic if the reader has left: `terminal::print`, `print_line`.
#![warn(clippy::print_stdout)]

mod allocator;
mod command;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use llmprof_core::trace::stage::{SharedRange, UnknownRange};
use llmprof_service::config::environment;

use command::{
    align, analyze, backup, check,
    client::{
        self, cancel, fetch, list, mcp, show, submit, sweep, terminal::print_notice, upload, watch,
    },
    cost, diff, doctor, engines, execute, gate, inspect, load, openapi, quickstart, serve, token,
};

/// GPU profiling for LLM inference as a service.
///
/// Start the service with `llmprof serve`, submit a run with `llmprof submit --model
/// deepseek-ocr-tiny --wait`, and read its report with `llmprof show ID --report`. `llmprof
/// quickstart` does all of that once, with a bundled page and a small model.
#[derive(Debug, Parser)]
#[command(
    name = "llmprof",
    version,
    propagate_version = true,
    after_help = "conf/default.toml documents every setting; `llmprof serve --help` how to set one."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeOptions),
    Quickstart(quickstart::QuickstartOptions),
    Submit(Box<submit::SubmitOptions>),
    Sweep(sweep::SweepOptions),
    Watch(watch::WatchOptions),
    List(list::ListOptions),
    Show(show::ShowOptions),
    Fetch(fetch::FetchOptions),
    Upload(Box<upload::UploadOptions>),
    Cancel(cancel::CancelOptions),
    Mcp(mcp::McpOptions),
    Analyze(analyze::AnalyzeOptions),
    Align(align::AlignOptions),
    Cost(cost::CostOptions),
    Diff(diff::DiffOptions),
    Gate(gate::GateOptions),
    Doctor(doctor::DoctorOptions),
    Engines(engines::EnginesOptions),
    Load(load::LoadCommand),
    Execute(execute::ExecuteOptions),
    #[command(hide = true)]
    Inspect(inspect::InspectOptions),
    #[command(hide = true)]
    ComputeAlignment(inspect::ComputeOptions),
    Token(token::TokenOptions),
    Check(check::CheckOptions),
    Backup(backup::BackupOptions),
    Restore(backup::RestoreOptions),
    Openapi(openapi::OpenapiOptions),
    /// Print a completion script for a shell: `llmprof completions bash >
    /// /etc/bash_completion.d/llmprof`
    Completions {
        shell: clap_complete::Shell,
    },
}

/// Parses the arguments, or ends the program with the exit code of its subcommand.
fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        // Exit code 2 of these is an inconclusive verdict; invalid arguments have another code.
        let code = match std::env::args_os().nth(1).as_deref().and_then(|it| it.to_str()) {
            Some("align") => Some(align::BAD_INPUT),
            Some(
                "gate" | "submit" | "sweep" | "watch" | "list" | "show" | "fetch" | "upload"
                | "cancel" | "mcp",
            ) => Some(client::BAD_INPUT),
            Some("diff") if diff::has_limit() => Some(client::BAD_INPUT),
            _ => None,
        };
        if let Some(code) = code.filter(|_| error.use_stderr()) {
            _ = error.print();
            std::process::exit(i32::from(code));
        }
        error.exit()
    })
}

/// True if a command starts the programs of runs.
fn serves(command: &Command) -> bool {
    match command {
        Command::Serve(_) | Command::Quickstart(_) | Command::Execute(_) => true,
        Command::Sweep(options) => options.is_local(),
        _ => false,
    }
}

/// Runs the program. `commit` is the one that it was built from, if that is known.
pub fn main(commit: Option<&'static str>) -> ExitCode {
    allocator::return_large_blocks();
    llmprof_service::build::set_commit(commit);
    // The service executes itself by another name.
    let _ = nix::sys::prctl::set_name(c"llmprof");
    let cli = parse();
    if serves(&cli.command)
        && let Err(error) = environment::hide_variables()
    {
        print_notice(format_args!("llmprof: cannot hide its environment's variables: {error}"));
    }
    let result = match cli.command {
        Command::Align(options) => return align::run(&options),
        Command::Gate(options) => return gate::run(&options),
        Command::Submit(options) => return submit::run(&options),
        Command::Sweep(options) => return sweep::run(&options),
        Command::Watch(options) => return watch::run(&options),
        Command::List(options) => return list::run(&options),
        Command::Show(options) => return show::run(&options),
        Command::Fetch(options) => return fetch::run(&options),
        Command::Upload(options) => return upload::run(&options),
        Command::Cancel(options) => return cancel::run(&options),
        Command::Mcp(options) => return mcp::run(&options),
        Command::Serve(options) => serve::run(options),
        Command::Quickstart(options) => quickstart::run(options),
        Command::Analyze(options) => analyze::run(&options),
        Command::Diff(options) => match diff::run(&options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Cost(options) => cost::run(&options),
        Command::Doctor(options) => match doctor::run(&options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Check(options) => match check::run(&options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Engines(options) => engines::run(&options),
        Command::Load(options) => match load::run(&options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Backup(options) => backup::backup(&options),
        Command::Restore(options) => backup::restore(&options),
        Command::Execute(options) => match execute::run(&options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Inspect(options) => inspect::run(&options),
        Command::ComputeAlignment(options) => inspect::compute_alignment(&options),
        Command::Token(options) => token::run(&options),
        Command::Openapi(options) => openapi::run(&options),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "llmprof", &mut std::io::stdout());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_notice(format_args!("llmprof: {error:#}"));
            // A rule without a range in the capture, or with one of another stage, is an invalid
            // argument.
            if error.chain().any(|it| it.is::<UnknownRange>() || it.is::<SharedRange>()) {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}
