//! Subcommands that talk to a service by its URL, and the client of its API that they share.
//!
//! A token is read from the environment or a file, never from an option, which other users of the
//! host can read. An error is one line with the remedy.

pub mod answers;
pub mod cancel;
pub mod download;
pub mod events;
pub mod fetch;
pub mod list;
mod local_inputs;
pub mod mcp;
mod progress;
mod refusal;
pub mod settings;
pub mod show;
pub mod submit;
pub mod sweep;
pub mod terminal;
pub mod upload;
pub mod watch;

use std::{future::Future, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use reqwest::{
    RequestBuilder, Response, Url,
    header::{self, HeaderMap, HeaderValue},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::answers::RunAnswer;
use super::{local_file, serve};

/// Variable with the URL of the service.
const SERVER: &str = "LLMPROF_SERVER";
/// Variable with the caller's token.
pub const TOKEN: &str = "LLMPROF_TOKEN";
/// URL of a service on this host.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";

/// Exit code of invalid arguments, and of a service that refuses or does not answer.
pub const BAD_INPUT: u8 = 3;
/// Exit code after Ctrl-C, as of a shell.
pub const INTERRUPTED: u8 = 130;

/// Maximum size of a file with a token, bytes.
const MAX_TOKEN: u64 = 64 << 10;
/// Characters of a run's id.
const WHOLE_ID: usize = 36;
/// Time in which a connection must be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// An idle connection is kept no longer than this: a service closes it later, so that no request
/// meets its end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which a short answer must arrive.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The service and the caller's token.
#[derive(Debug, Clone, Args)]
pub struct ServerOptions {
    /// URL of the service; for a private CA, set SSL_CERT_FILE to its PEM file
    #[arg(long, env = SERVER, default_value = DEFAULT_SERVER, value_name = "URL")]
    server: String,
    /// File with the caller's token; the variable LLMPROF_TOKEN when absent
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Source of the caller's token, for errors.
#[derive(Debug, Clone)]
enum TokenSource {
    None,
    Variable,
    File(PathBuf),
}

/// A service with the caller's token.
#[derive(Debug, Clone)]
pub struct ServiceClient {
    base: String,
    token: TokenSource,
    http: reqwest::Client,
}

/// Runs a subcommand; an error is one line on standard error, with exit code 3.
pub fn run<F>(options: &ServerOptions, command: impl FnOnce(ServiceClient) -> F) -> ExitCode
where
    F: Future<Output = Result<ExitCode>>,
{
    let connected = ServiceClient::new(options).and_then(|client| Ok((client, serve::runtime()?)));
    let result = connected.and_then(|(client, runtime)| runtime.block_on(command(client)));
    result.unwrap_or_else(|error| failed(&error))
}

/// Prints an error in one line; returns its exit code.
fn failed(error: &anyhow::Error) -> ExitCode {
    let line = format!("{error:#}").replace('\n', " ");
    terminal::print_notice(format_args!("llmprof: {}", terminal::escaped(&line)));
    ExitCode::from(BAD_INPUT)
}

impl ServerOptions {
    /// The same caller at another service.
    fn with_server(&self, server: String) -> Self {
        Self { server, ..self.clone() }
    }
}

impl ServiceClient {
    /// A client of the service of `options`.
    pub fn new(options: &ServerOptions) -> Result<Self> {
        let base = base_url(&options.server)?;
        let (token, secret) = read_token(options.token_file.as_ref())?;
        let mut headers = HeaderMap::new();
        if let Some(secret) = secret {
            let mut value = HeaderValue::try_from(format!("Bearer {secret}"))
                .with_context(|| format!("{token} is not a token"))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
            if base.scheme() == "http" && !is_loopback(&base) {
                terminal::print_notice(format_args!(
                    "llmprof: warning: the token is sent to {base} without encryption"
                ));
            }
        }
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("llmprof/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self { base: base.as_str().trim_end_matches('/').to_owned(), token, http })
    }

    /// The URL of a path of the service.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        self.json(self.http.get(self.url(path)).timeout(ANSWER_TIMEOUT), path).await
    }

    /// Reads an answer as `T`.
    pub async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let value = self.get(path).await?;
        self.understood(value, path).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.json(self.http.post(self.url(path)).json(body), path).await
    }

    /// Interprets an answer as `T`.
    pub async fn understood<T: DeserializeOwned>(&self, value: Value, path: &str) -> Result<T> {
        match serde_json::from_value(value) {
            Ok(read) => Ok(read),
            Err(error) => Err(refusal::not_understood(self, path, &error.to_string()).await),
        }
    }

    pub async fn run(&self, id: &str) -> Result<RunAnswer> {
        self.read(&run_path(id)?).await
    }

    /// Sends a request; returns its response unless it is an error.
    pub async fn send(&self, request: RequestBuilder, path: &str) -> Result<Response> {
        let response = request.send().await.map_err(|error| refusal::no_answer(self, &error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal::of_response(self, path, response).await)
    }

    /// Sends a request that is answered with JSON.
    pub async fn json(&self, request: RequestBuilder, path: &str) -> Result<Value> {
        let response = self.send(request, path).await?;
        let kind = refusal::media_type(&response);
        let text = response.bytes().await.map_err(|error| refusal::no_answer(self, &error))?;
        match serde_json::from_slice(&text) {
            Ok(value) => Ok(value),
            Err(_) => Err(refusal::foreign(self, path, &format!("200 with {kind}"))),
        }
    }

    /// Follows a run until it has ended; returns the run as the service shows it.
    pub async fn wait_for_end(&self, run: &str) -> Result<Value> {
        events::follow(self, run, |_| ()).await?;
        self.get(&run_path(run)?).await
    }

    /// Submits a body under a new idempotency key, again if the answer is lost.
    pub async fn submit(&self, path: &str, body: &Value) -> Result<Value> {
        let key = uuid::Uuid::now_v7().to_string();
        let request = || self.http.post(self.url(path)).header("idempotency-key", &key).json(body);
        match request().send().await {
            Err(error) if !error.is_connect() && !error.is_builder() => {
                self.json(request(), path).await
            }
            Err(error) => Err(refusal::no_answer(self, &error)),
            Ok(response) if response.status().is_success() => {
                let kind = refusal::media_type(&response);
                let value = response.json().await;
                value.map_err(|_| refusal::foreign(self, path, &format!("200 with {kind}")))
            }
            Ok(response) => Err(refusal::of_response(self, path, response).await),
        }
    }
}

/// The path of a run, of an id that a user entered.
pub fn run_path(id: &str) -> Result<String> {
    match id.parse::<uuid::Uuid>() {
        Ok(parsed) => Ok(format!("/runs/{parsed}")),
        Err(_) if is_part(id) => {
            bail!("run id {id} is incomplete; expected the whole id, as `llmprof list` prints it")
        }
        Err(_) => bail!("invalid run {id:?}; expected an id as `llmprof list` prints it"),
    }
}

/// True for a part of a run's id, such as the last digits that pages show.
fn is_part(id: &str) -> bool {
    let is_digit = |it: char| it.is_ascii_hexdigit() || it == '-';
    (1..WHOLE_ID).contains(&id.len()) && id.chars().all(is_digit)
}

/// Parses the URL of a service; a path is kept for services behind a proxy.
fn base_url(text: &str) -> Result<Url> {
    let expected = "expected a URL such as http://127.0.0.1:8080 or https://gpu-host:8443";
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.with_context(|| format!("invalid --server {text:?}; {expected}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        bail!("--server has a user name or password; put the token into --token-file or {TOKEN}");
    }
    if url.query().is_some() || url.fragment().is_some() {
        bail!("invalid --server {text:?}: it has a query; {expected}");
    }
    Ok(url)
}

fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host.starts_with("127."),
        None => false,
    }
}

fn read_token(file: Option<&PathBuf>) -> Result<(TokenSource, Option<String>)> {
    if let Some(path) = file {
        let text = local_file::read_text(path, MAX_TOKEN).context("--token-file")?;
        let secret = text.trim();
        if secret.is_empty() || secret.contains(char::is_whitespace) {
            bail!("--token-file {} does not contain one token", path.display());
        }
        return Ok((TokenSource::File(path.clone()), Some(secret.to_owned())));
    }
    match std::env::var(TOKEN) {
        Ok(secret) if !secret.trim().is_empty() => {
            Ok((TokenSource::Variable, Some(secret.trim().to_owned())))
        }
        _ => Ok((TokenSource::None, None)),
    }
}

impl std::fmt::Display for TokenSource {
    fn fmt(&self, to: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::None => write!(to, "no token"),
            Self::Variable => write!(to, "the token of {TOKEN}"),
            Self::File(path) => write!(to, "the token of {}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_url_without_credentials() {
        for valid in ["http://127.0.0.1:8080", "https://gpu-host:8443/llmprof/"] {
            assert!(base_url(valid).is_ok(), "{valid}");
        }
        for invalid in
            ["gpu-host:8080", "127.0.0.1:8080", "", "ftp://a", "http://u:p@a", "http://a?x"]
        {
            assert!(base_url(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_run_is_named_by_its_id() {
        let id = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";
        assert_eq!(run_path(id).unwrap(), format!("/runs/{id}"));
        for invalid in ["", "latest", "../models", "019a9f3e/../x"] {
            let error = run_path(invalid).unwrap_err().to_string();
            assert!(error.starts_with("invalid run "), "{error}");
        }
    }

    #[test]
    fn a_part_of_an_id_is_refused_as_incomplete() {
        let id = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";
        for part in [&id[24..], &id[..8], &id[..35]] {
            let error = run_path(part).unwrap_err().to_string();
            assert!(error.starts_with(&format!("run id {part} is incomplete; ")), "{error}");
        }
    }
}
