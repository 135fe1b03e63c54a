//! `llmprof watch`: follows a run of a service until it ends.

use std::{cell::RefCell, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args;

use super::{
    INTERRUPTED, ServerOptions, ServiceClient,
    answers::RunAnswer,
    events::{self, RunUpdate},
    progress::RunProgress,
    terminal::{between, duration, escaped, print, print_json, print_notice},
};

/// Exit code of a failed or cancelled run.
const FAILED: u8 = 1;
/// Exit code of a partial run.
const PARTIAL: u8 = 2;
/// Interval of the elapsed time on the bar.
const TICK: Duration = Duration::from_secs(1);

/// Follow a run of a service until it ends
///
/// Prints each step when it ends; on a terminal also the running step, elapsed time, estimate and
/// pending steps. A stream that is cut resumes after its last event; if none gets through, the
/// state is requested instead. Ctrl-C ends this command, not the run.
///
/// Exit code 0: the run succeeded; 1: it failed or was cancelled; 2: it is partial, because
/// something could not be collected; 3: bad input, or the service refuses or does not answer; 130:
/// Ctrl-C.
#[derive(Debug, Args)]
pub struct WatchOptions {
    /// Id of the run
    #[arg(value_name = "ID")]
    run: String,
    /// Print the events as JSON, one a line, and at the end the run
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServerOptions,
}

/// Follows the run; returns the exit code of its state.
pub fn run(options: &WatchOptions) -> ExitCode {
    super::run(&options.service, async |client| watch(&client, &options.run, options.json).await)
}

/// Follows a run until it ends or Ctrl-C is pressed.
pub async fn watch(client: &ServiceClient, id: &str, json: bool) -> Result<ExitCode> {
    let interrupted = tokio::signal::ctrl_c();
    if json {
        return tokio::select! {
            ended = print_events(client, id) => ended,
            _ = interrupted => Ok(leave(client, id)),
        };
    }
    let progress = RefCell::new(RunProgress::new()?);
    let followed =
        events::follow(client, id, |update: RunUpdate| progress.borrow_mut().show(update));
    let ended = tokio::select! {
        ended = followed => Some(ended),
        () = tick(&progress) => None,
        _ = interrupted => None,
    };
    progress.borrow().finish();
    let Some(ended) = ended else { return Ok(leave(client, id)) };
    let run = ended?;
    print(&summary(client, &run))?;
    Ok(exit_code(&run))
}

/// Updates the elapsed time; does not end.
async fn tick(progress: &RefCell<RunProgress>) {
    loop {
        tokio::time::sleep(TICK).await;
        progress.borrow().refresh();
    }
}

async fn print_events(client: &ServiceClient, id: &str) -> Result<ExitCode> {
    let mut failed = None;
    let run = events::follow(client, id, |update| match update {
        RunUpdate::Event(event) => {
            if let Err(error) = print_json(event) {
                failed = Some(error);
            }
        }
        RunUpdate::Run(_) => {}
        RunUpdate::Connection(message) => {
            print_notice(format_args!("llmprof: {}", escaped(message)))
        }
    })
    .await?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    print_json(&client.get(&super::run_path(id)?).await?)?;
    Ok(exit_code(&run))
}

/// Ends this command and leaves the run.
fn leave(client: &ServiceClient, id: &str) -> ExitCode {
    print_notice(format_args!(
        "llmprof: the run continues on {}; follow it by `llmprof watch {id}`, end it by \
         `llmprof cancel {id}`",
        client.base
    ));
    ExitCode::from(INTERRUPTED)
}

fn summary(client: &ServiceClient, run: &RunAnswer) -> String {
    let id = &run.run_id;
    let took = run.started_at.as_deref().zip(run.ended_at.as_deref());
    let took = took.and_then(|(start, end)| between(start, end));
    let took = took.map(|took| format!(" after {}", duration(took))).unwrap_or_default();
    let mut text = format!("run {id} {}{took}\n", escaped(&run.state));
    if let Some(message) = &run.message {
        text += &format!("{}\n", escaped(message));
    }
    text += &format!("page    {}\n", client.url(&format!("/ui/runs/{id}")));
    text += &format!("report  llmprof show {id} --report\nfiles   llmprof fetch {id}\n");
    text
}

fn exit_code(run: &RunAnswer) -> ExitCode {
    match run.state.as_str() {
        "succeeded" => ExitCode::SUCCESS,
        "partial" => ExitCode::from(PARTIAL),
        _ => ExitCode::from(FAILED),
    }
}
