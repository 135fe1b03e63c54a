//! `llmprof mcp`: the tools of agents over standard input and output, about a service elsewhere.
//!
//! Nothing but messages of the protocol is written to standard output. A service that does not
//! answer is an error of a tool, so an agent reads the remedy and the next call tries again.

use std::{
    io::{IsTerminal as _, stdin},
    process::ExitCode,
};

use anyhow::Result;
use clap::Args;
use llmprof_service::mcp::{AgentServer, ApiCall, ApiMethod, ApiRefusal, MAX_MESSAGE, ServiceApi};
use rmcp::{
    service::{QuitReason, ServerInitializeError, ServiceExt as _},
    transport::{async_rw::AsyncRwTransport, stdio},
};

use super::{ServerOptions, ServiceClient, refusal::Refused, terminal::print_notice};

/// Serve the tools of agents (MCP) over standard input and output
///
/// An agent starts this command with the URL and the token of a service; it needs nothing else of
/// this host. Agents that speak HTTP use URL/mcp instead. Ends when its input does. Exit code 0; 3:
/// bad input.
#[derive(Debug, Args)]
pub struct McpOptions {
    #[command(flatten)]
    service: ServerOptions,
}

/// A service elsewhere.
#[derive(Debug)]
struct RemoteApi(ServiceClient);

pub fn run(options: &McpOptions) -> ExitCode {
    super::run(&options.service, serve)
}

async fn serve(client: ServiceClient) -> Result<ExitCode> {
    if stdin().is_terminal() {
        print_notice(format_args!(
            "llmprof: reading messages of an agent from standard input; add this command to an \
             agent's MCP servers, or press Ctrl-D"
        ));
    }
    let (input, output) = stdio();
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(MAX_MESSAGE);
    let served = match AgentServer::new(RemoteApi(client)).serve(transport).await {
        Ok(served) => served,
        // The agent left before its first request.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(ExitCode::SUCCESS),
        Err(error) => anyhow::bail!("the agent does not speak MCP: {error}"),
    };
    match served.waiting().await? {
        QuitReason::JoinError(error) => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

impl ServiceApi for RemoteApi {
    async fn call(&self, call: ApiCall) -> Result<Vec<u8>, ApiRefusal> {
        let body = call.body.clone().unwrap_or_default();
        let answer = match call.method {
            ApiMethod::Get => self.0.get(&call.target()).await,
            ApiMethod::Post => self.0.submit(&call.target(), &body).await,
        };
        let text = answer.and_then(|answer| Ok(serde_json::to_vec(&answer)?));
        text.map_err(|error| {
            let code = error.downcast_ref::<Refused>().and_then(|refused| refused.code.clone());
            ApiRefusal { code, message: format!("{error:#}") }
        })
    }
}
