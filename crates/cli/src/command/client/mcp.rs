//! `llmprof mcp`: the tools of agents over standard input and output, about a service elsewhere.
//!
//! Nothing but messages of the protocol is written to standard output. A service that does not
//! answer is an error of a tool, so an agent reads the remedy and the next call tries again.

use std::{
    io::{self, IsTerminal as _, stdin},
    process::ExitCode,
};

use anyhow::Result;
use clap::Args;
use llmprof_service::mcp::{
    AgentServer, ApiCall, ApiMethod, ApiRefusal, MAX_MESSAGE, ServiceApi, refuse,
};
use rmcp::{
    service::{QuitReason, ServerInitializeError, ServiceExt as _},
    transport::{async_rw::AsyncRwTransport, stdio},
};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
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
    let (checked, messages) = tokio::io::duplex(MAX_MESSAGE);
    tokio::spawn(pass_on(input, checked, stdio().1));
    let transport =
        AsyncRwTransport::new_server(messages, output).with_max_line_length(MAX_MESSAGE + 2);
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

/// Passes an agent's messages on without blank lines, and answers a message that the server would
/// misread. An answer is one write, so it is not mixed with the answers of the server.
async fn pass_on(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut answers: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let (mut from, mut line) = (BufReader::new(from), Vec::new());
    loop {
        line.clear();
        let mut piece = (&mut from).take(MAX_MESSAGE as u64 + 2);
        if piece.read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            skip_line(&mut from).await?;
            line.push(b'\n');
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match refuse(&line) {
            Some(answer) => {
                answers.write_all(format!("{answer}\n").as_bytes()).await?;
                answers.flush().await?;
            }
            None => to.write_all(&line).await?,
        }
    }
}

/// Reads the rest of a line, which is too long.
async fn skip_line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
    loop {
        let piece = from.fill_buf().await?;
        let end = piece.iter().position(|it| *it == b'\n');
        let (length, is_end) = (end.map_or(piece.len(), |at| at + 1), end.is_some());
        let is_end = is_end || piece.is_empty();
        from.consume(length);
        if is_end {
            return Ok(());
        }
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
