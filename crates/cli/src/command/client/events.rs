//! Following a run: its stream of events, resumed after a cut by `Last-Event-ID`, and requests for
//! its state if no stream gets through.
//!
//! Ends with the run, or with a refusal; a service that restarts is waited for.

use std::time::Duration;

use anyhow::{Context as _, Result};
use llmprof_service::load::sse::EventParser;
use reqwest::{Response, StatusCode};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::{
    ServiceClient,
    answers::RunAnswer,
    refusal::{self, NoAnswer, Refused},
    run_path,
};

/// Pause before a stream that was cut is opened again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Time without a byte after which a stream counts as cut: the service sends one every 15 s.
const SILENCE: Duration = Duration::from_secs(40);
/// Streams without a new event, one after the other, after which the state is requested instead.
const MAX_CUTS: u32 = 3;
/// Pause between requests for the state.
const POLL_DELAY: Duration = Duration::from_secs(2);
/// Time for which a service that does not answer is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A change of a followed run.
#[derive(Debug)]
pub enum RunUpdate<'a> {
    /// An event of the stream.
    Event(&'a Value),
    /// The run, at the start and after each change of its steps.
    Run(&'a RunAnswer),
    /// A change of the connection, for people.
    Connection(&'a str),
}

/// The end of a stream.
enum StreamEnd {
    /// With the run.
    Ended,
    /// Before the run; true if it had a new event.
    Cut(bool),
}

/// Follows a run until it has ended, and passes each change to `show`.
pub async fn follow(
    client: &ServiceClient,
    id: &str,
    mut show: impl FnMut(RunUpdate),
) -> Result<RunAnswer> {
    let mut outage = Outage::default();
    show(RunUpdate::Run(&client.run(id).await?));
    let (mut after, mut cuts) = (0, 0);
    while cuts < MAX_CUTS {
        match stream(client, id, &mut after, &mut show).await {
            Ok(StreamEnd::Ended) => return client.run(id).await,
            Ok(StreamEnd::Cut(progressed)) => {
                outage = Outage::default();
                cuts = if progressed { 0 } else { cuts + 1 };
                sleep(RECONNECT_DELAY).await;
            }
            Err(error) => {
                cuts += u32::from(is_cut(&error));
                outage.tolerate(error, id, &mut show).await?;
            }
        }
    }
    show(RunUpdate::Connection("the stream of events is cut (by a proxy?): polling the run"));
    loop {
        if let Some(run) = state(client, id, &mut outage, &mut show).await? {
            show(RunUpdate::Run(&run));
            if run.has_ended() {
                return Ok(run);
            }
        }
        sleep(POLL_DELAY).await;
    }
}

/// Requests the state of a run; `None` while the service is away.
async fn state(
    client: &ServiceClient,
    id: &str,
    outage: &mut Outage,
    show: &mut impl FnMut(RunUpdate),
) -> Result<Option<RunAnswer>> {
    match client.run(id).await {
        Ok(run) => {
            *outage = Outage::default();
            Ok(Some(run))
        }
        Err(error) => outage.tolerate(error, id, show).await.map(|()| None),
    }
}

/// Returns true if something between here and a service that runs may have cut the stream.
fn is_cut(error: &anyhow::Error) -> bool {
    match (error.downcast_ref::<Refused>(), error.downcast_ref::<NoAnswer>()) {
        (Some(refused), _) => refusal::is_gateway(refused.status),
        (None, no_answer) => no_answer.is_some_and(|it| !it.is_connect),
    }
}

/// Time since a service answered last.
#[derive(Debug, Default)]
struct Outage {
    since: Option<Instant>,
}

impl Outage {
    /// Waits after an error that can pass; returns any other, and one that lasts.
    async fn tolerate(
        &mut self,
        error: anyhow::Error,
        id: &str,
        show: &mut impl FnMut(RunUpdate),
    ) -> Result<()> {
        let mut delay = RECONNECT_DELAY;
        let is_refusal = match error.downcast_ref::<Refused>() {
            Some(refused) if refused.status == StatusCode::TOO_MANY_REQUESTS => {
                delay = Duration::from_secs(refused.retry_after_s.unwrap_or(1).clamp(1, 60));
                false
            }
            Some(refused) => !refusal::is_gateway(refused.status),
            None => !error.is::<NoAnswer>(),
        };
        if is_refusal {
            return Err(error);
        }
        let since = *self.since.get_or_insert_with(|| {
            show(RunUpdate::Connection(&format!("{error} (retrying for a minute)")));
            Instant::now()
        });
        if since.elapsed() > PATIENCE {
            let again = format!("the run continues without this; `llmprof watch {id}` resumes");
            return Err(error).context(again);
        }
        sleep(delay).await;
        Ok(())
    }
}

/// Reads the stream of a run after the event `after`.
async fn stream(
    client: &ServiceClient,
    id: &str,
    after: &mut u64,
    show: &mut impl FnMut(RunUpdate),
) -> Result<StreamEnd> {
    let path = format!("{}/events", run_path(id)?);
    let mut request = client.http.get(client.url(&path)).header("accept", "text/event-stream");
    if *after > 0 {
        request = request.header("last-event-id", after.to_string());
    }
    let opened = timeout(SILENCE, client.send(request, &path)).await;
    // A proxy that holds the response back.
    let Ok(opened) = opened else { return Ok(StreamEnd::Cut(false)) };
    let mut response: Response = opened?;
    if refusal::media_type(&response) != "text/event-stream" {
        let kind = refusal::media_type(&response);
        return Err(refusal::foreign(client, &path, &format!("with {kind}")));
    }
    let (mut parser, mut progressed) = (EventParser::default(), false);
    while let Ok(Ok(Some(bytes))) = timeout(SILENCE, response.chunk()).await {
        let mut events = Vec::new();
        let read = parser.read(&bytes, |event| {
            if let Ok(value) = serde_json::from_slice::<Value>(event.data) {
                events.push((event.id, value));
            }
        });
        for (number, event) in events {
            if let Some(number) = number {
                (*after, progressed) = (number.max(*after), true);
            }
            show(RunUpdate::Event(&event));
            match event["event"].as_str() {
                Some("end") => return Ok(StreamEnd::Ended),
                // Pending steps and estimate follow the steps.
                Some("state" | "step") => {
                    if let Ok(run) = client.run(id).await {
                        show(RunUpdate::Run(&run));
                    }
                }
                _ => {}
            }
        }
        if read.is_err() {
            break;
        }
    }
    Ok(StreamEnd::Cut(progressed))
}
