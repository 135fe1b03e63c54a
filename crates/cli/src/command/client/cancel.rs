//! `llmprof cancel`: ends a queued or running run of a service.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use super::{
    ServerOptions, ServiceClient, run_path,
    terminal::{escaped, print},
};

/// Cancel a queued or running run of a service
///
/// Exit code 0: cancelled, or the run is stopping; 3: bad input, or the service refuses or does not
/// answer.
#[derive(Debug, Args)]
pub struct CancelOptions {
    /// Id of the run
    #[arg(value_name = "ID")]
    run: String,
    #[command(flatten)]
    service: ServerOptions,
}

pub fn run(options: &CancelOptions) -> ExitCode {
    super::run(&options.service, async |client| cancel(&client, &options.run).await)
}

async fn cancel(client: &ServiceClient, id: &str) -> Result<ExitCode> {
    let run: Value = client.post(&format!("{}/cancel", run_path(id)?), &json!({})).await?;
    let state = escaped(run["state"].as_str().unwrap_or("unknown"));
    let stopping = if state == "cancelled" { "" } else { "; it is stopping" };
    print(&format!("run {id} is {state}{stopping}\n"))?;
    Ok(ExitCode::SUCCESS)
}
