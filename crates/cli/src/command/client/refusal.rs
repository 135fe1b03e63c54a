//! Failed requests as one line that states the remedy: no answer, a refusal, a service of another
//! version, or a server that is not llmprof.

use anyhow::{Error, anyhow};
use reqwest::{Response, StatusCode, header};
use serde::Deserialize;
use serde_json::Value;

use super::{ServiceClient, TOKEN, TokenSource};

/// Version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Bytes that are read of an error.
const MAX_BODY: usize = 1 << 16;

/// A refusal with its status, for callers that retry some.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refused {
    pub status: StatusCode,
    /// Code of the API's error.
    pub code: Option<String>,
    pub retry_after_s: Option<u64>,
    message: String,
}

/// A request without an answer.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct NoAnswer {
    /// No connection was made.
    pub is_connect: bool,
    message: String,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    code: String,
    message: String,
}

/// The media type of a response.
pub(super) fn media_type(response: &Response) -> String {
    let value = response.headers().get(header::CONTENT_TYPE);
    let text = value.and_then(|value| value.to_str().ok()).unwrap_or("no content type");
    text.split(';').next().unwrap_or_default().trim().to_owned()
}

/// The error of a request without an answer.
pub(super) fn no_answer(client: &ServiceClient, error: &reqwest::Error) -> Error {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let base = &client.base;
    let message = if let Some(remedy) = untrusted(&llmprof_core::chain(error)) {
        format!("the certificate of {base} is refused ({cause}); {remedy}")
    } else if error.is_connect() || error.is_timeout() {
        format!("no answer from {base}: {cause}; check --server, and that `llmprof serve` runs")
    } else {
        format!("the connection to {base} was cut: {cause}; retry")
    };
    NoAnswer { is_connect: error.is_connect(), message }.into()
}

/// The remedy if a connection failed by its certificate, by the causes as rustls words them.
fn untrusted(causes: &str) -> Option<&'static str> {
    let (_, reason) = causes.split_once("invalid peer certificate: ")?;
    let is = |name: &str| reason.contains(name);
    Some(if is("CaUsedAsEndEntity") {
        "it is the certificate of a CA: create one for the server, with basicConstraints=CA:FALSE, \
         and set SSL_CERT_FILE to its PEM file"
    } else if is("NotValidForName") || is("not valid for name") {
        "use a name that it contains as the host of --server"
    } else if is("Expired") || is("expired") || is("NotValidYet") || is("not valid yet") {
        "renew it, and check the clock of this host"
    } else {
        "set SSL_CERT_FILE to a PEM file with the certificate of its CA, or its own if it is \
         self-signed"
    })
}

/// The error of a server that does not answer like llmprof.
pub(super) fn foreign(client: &ServiceClient, path: &str, answer: &str) -> Error {
    anyhow!(
        "{} is not an llmprof service: {path} was answered {answer}; check --server",
        client.base
    )
}

/// The error of an unsuccessful response.
pub(super) async fn of_response(client: &ServiceClient, path: &str, response: Response) -> Error {
    let status = response.status();
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let retry_after_s = header(header::RETRY_AFTER).and_then(|text| text.parse().ok());
    if status.is_redirection() {
        let to = header(header::LOCATION).unwrap_or("an unknown address").to_owned();
        let to = to.strip_suffix(path).unwrap_or(&to);
        return anyhow!("{} redirects to {to}; use that URL as --server", client.base);
    }
    let kind = media_type(&response);
    let answer = read_error(response).await;
    let code = answer.as_ref().map(|error| error.code.clone());
    let message = match answer {
        None if is_gateway(status) => format!(
            "a proxy in front of {} answered {status}; check that the service runs, and retry",
            client.base
        ),
        None => return foreign(client, path, &format!("{status} with {kind}")),
        Some(error) if status == StatusCode::UNAUTHORIZED => unauthenticated(client, &error),
        Some(error) => {
            let versions = match error.code.as_str() {
                "route_not_found" | "method_not_allowed" | "invalid_request" | "malformed_body" => {
                    other_version(client).await
                }
                _ => None,
            };
            let wait = retry_after_s.filter(|_| status == StatusCode::TOO_MANY_REQUESTS);
            let wait = wait.map(|seconds| format!(" (retry after {seconds} s)"));
            let versions = versions.map(|versions| format!("; {versions}"));
            format!(
                "the service answered {status}: {}{}{}",
                with_command(&error.message),
                wait.unwrap_or_default(),
                versions.unwrap_or_default()
            )
        }
    };
    Refused { status, code, retry_after_s, message }.into()
}

/// A message that names the list of tables by the command instead of the path of the API.
fn with_command(message: &str) -> String {
    let listed = message.split_once("see /runs/").and_then(|(before, path)| {
        let id = path.strip_suffix("/tables")?;
        Some(format!("{before}`llmprof show {id} --table list` lists all"))
    });
    listed.unwrap_or_else(|| message.to_owned())
}

/// The error of an answer that this version cannot read.
pub(super) async fn not_understood(client: &ServiceClient, path: &str, reason: &str) -> Error {
    match other_version(client).await {
        Some(versions) => anyhow!("cannot read the answer to {path} ({reason}); {versions}"),
        None => foreign(client, path, &format!("with unexpected JSON ({reason})")),
    }
}

/// Returns true for statuses of a proxy whose service is away.
pub(super) fn is_gateway(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

fn unauthenticated(client: &ServiceClient, error: &ErrorDetail) -> String {
    let create = "create one by `llmprof token create` on the service's host";
    match &client.token {
        TokenSource::None => {
            format!("{} requires a token; set {TOKEN} or --token-file ({create})", client.base)
        }
        token => format!("{} refused {token}: {}; {create}", client.base, error.message),
    }
}

/// Reads the error of the API; `None` for another server's.
async fn read_error(mut response: Response) -> Option<ErrorDetail> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_BODY {
            return None;
        }
    }
    serde_json::from_slice::<ErrorAnswer>(&body).ok().map(|answer| answer.error)
}

/// The versions of service and client, if they differ.
async fn other_version(client: &ServiceClient) -> Option<String> {
    let response = client.http.get(client.url("/version")).send().await.ok()?;
    let answer: Value = response.error_for_status().ok()?.json().await.ok()?;
    let version = answer["version"].as_str().filter(|version| *version != VERSION)?;
    Some(format!(
        "the service is llmprof {version}, this is {VERSION}: use the same version of both"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_certificate_has_the_remedy_of_its_fault() {
        for (reason, part) in [
            ("Other(OtherError(CaUsedAsEndEntity))", "basicConstraints=CA:FALSE"),
            ("UnknownIssuer", "set SSL_CERT_FILE"),
            ("certificate not valid for name \"a\"; certificate is only valid for b", "--server"),
            ("certificate not valid for name \"expired.a\"", "--server"),
            ("certificate expired: verification time 2 (UNIX), but 1", "renew it"),
            ("certificate not valid yet: verification time 1 (UNIX), but 2", "check the clock"),
            ("BadSignature", "set SSL_CERT_FILE"),
        ] {
            let causes = format!("error sending request: invalid peer certificate: {reason}");
            let remedy = untrusted(&causes).unwrap();
            assert!(remedy.contains(part) && !remedy.contains('\n'), "{reason}: {remedy}");
        }
        assert_eq!(untrusted("connection refused"), None);
    }

    #[test]
    fn a_refusal_names_the_command_that_lists_the_tables() {
        for (message, shown) in [
            ("no a; see /runs/7/tables", "no a; `llmprof show 7 --table list` lists all"),
            ("no a; see /runs/7/artifacts", "no a; see /runs/7/artifacts"),
            ("no run 7", "no run 7"),
        ] {
            assert_eq!(with_command(message), shown);
        }
    }
}
