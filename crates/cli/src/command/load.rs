//! `llmprof load`: a load of requests on a server of OpenAI's streaming API, timed per token.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use llmprof_analyze::requests::LatencyTally;
use llmprof_core::{
    domain::unique_keys::UniqueKeys,
    trace::requests::{LoadEnd, LoadHeader, LoadLine, LoadPass, RequestRecord},
};
use llmprof_service::load::{
    Api, Load, LoadPlan, Pace, Prompts,
    plan::{self, endpoint, parse_prompts},
};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{
    client::terminal::{print, print_notice},
    local_file,
};

/// Maximum size of a file of prompts, bytes.
const MAX_PROMPTS: u64 = 64 << 20;

/// Send a load of requests to a server of OpenAI's streaming API, and time each token
///
/// Works with vLLM, SGLang, TensorRT-LLM, transformers serve, llama.cpp and others that stream
/// /v1/chat/completions or /v1/completions. Prints time to first token, time between tokens, time
/// per output token and end-to-end latency as p50, p90 and p99.
///
/// With --concurrency, each of N clients sends its next request when its last one has ended (closed
/// loop). With --rate, requests arrive at random times of a Poisson process, however many are under
/// way (open loop): latencies count from the intended time, so a server that stalls cannot hide the
/// requests that waited for it.
///
/// The exit code is 0 if every request has a complete response, 1 if some failed, 2 for invalid
/// options.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  llmprof load http://127.0.0.1:8000 --model llama --concurrency 4 --requests 100
  llmprof load http://127.0.0.1:8000 --rate 20 --seconds 60 --body '{\"ignore_eos\": true}'
  llmprof load http://127.0.0.1:8000 --api completions --vocabulary 32000 --prompt-tokens 512 \
      --new-tokens 128 --out requests.jsonl")]
pub struct LoadCommand {
    /// The server: http://HOST:PORT, with or without /v1
    url: String,
    /// Name of the model in each request; servers of one model need none
    #[arg(long)]
    model: Option<String>,
    /// Operation of the API: chat or completions
    #[arg(long, default_value_t = Api::Chat)]
    api: Api,
    /// Length of each prompt: random words of about one token each
    #[arg(long, value_name = "N", default_value_t = 128)]
    prompt_tokens: u32,
    /// Size of the model's vocabulary: prompts are random token ids below it, of exactly
    /// --prompt-tokens (with --api completions)
    #[arg(long, value_name = "N")]
    vocabulary: Option<u32>,
    /// File of prompts, used in turn: a text per line, or {"prompt": TEXT, "new_tokens": N}
    #[arg(long, value_name = "FILE", conflicts_with = "vocabulary")]
    prompts: Option<PathBuf>,
    /// Output tokens to request (max_tokens)
    #[arg(long, value_name = "N", default_value_t = 64)]
    new_tokens: u32,
    /// Requests at the same time (closed loop) [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "rate")]
    concurrency: Option<u32>,
    /// Mean arrivals per second (open loop)
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Number of requests [default: 16 unless --seconds is given]
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Seconds in which requests are sent; those under way are completed
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Seed of prompts and arrivals
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Time limit of one request, seconds
    #[arg(long, value_name = "S", default_value_t = 300.0)]
    timeout: f64,
    /// JSON object whose fields are added to each request; null removes one of llmprof's, for
    /// example '{"ignore_eos": true, "stream_options": null}'
    #[arg(long, value_name = "JSON", default_value = "{}")]
    body: String,
    /// Key of the API, sent as a bearer token
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Write each request as a line of JSON, with the time of each token
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Exit with 0 if at least one request has a complete response
    #[arg(long)]
    partial: bool,
    /// Print nothing when the load has ended
    #[arg(long)]
    quiet: bool,
}

/// Runs the load; the exit code states whether every request succeeded.
pub fn run(command: &LoadCommand) -> Result<ExitCode> {
    let plan = match command.plan() {
        Ok(plan) => plan,
        Err(error) => {
            print_notice(format_args!("llmprof: {error:#}"));
            return Ok(ExitCode::from(2));
        }
    };
    let out = match &command.out {
        Some(path) => {
            let file = File::create(path);
            Some(file.with_context(|| format!("cannot create {}", path.display()))?)
        }
        None => None,
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(4);
    // A busy worker looks for new requests and for bytes from the server after a few tasks: after
    // 61, as by default, both would be late, and so would be their times.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .global_queue_interval(4)
        .event_interval(4)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let (tally, end) = runtime.block_on(send(plan, out))?;
    let (complete, failed) = tally.load().counts();
    if let Some((failure, message)) = tally.first_failure() {
        print_notice(format_args!(
            "llmprof: {failed} requests failed; the first: {failure}: {message}"
        ));
    }
    if !command.quiet {
        print(&summary(tally, end))?;
    }
    let is_success = complete > 0 && (failed == 0 || command.partial);
    Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl LoadCommand {
    fn plan(&self) -> Result<LoadPlan> {
        let prompts = match (&self.prompts, self.vocabulary) {
            (Some(path), _) => {
                Prompts::Given(parse_prompts(&local_file::read_text(path, MAX_PROMPTS)?)?)
            }
            (None, Some(vocabulary)) => Prompts::Ids { tokens: self.prompt_tokens, vocabulary },
            (None, None) => Prompts::Words(self.prompt_tokens),
        };
        let UniqueKeys(body) = serde_json::from_str(&self.body).context("--body")?;
        let Value::Object(body) = body else { bail!("--body is not a JSON object") };
        let seconds = |field: &'static str, value: f64| {
            Duration::try_from_secs_f64(value).map_err(|_| plan::PlanError::Bounds {
                field,
                value: value.to_string(),
                min: "0.001".into(),
                max: "86400".into(),
            })
        };
        let duration = self.seconds.map(|it| seconds("seconds", it)).transpose()?;
        let plan = LoadPlan {
            endpoint: endpoint(&self.url, self.api)?,
            api: self.api,
            model: self.model.clone(),
            prompts,
            new_tokens: self.new_tokens,
            pace: match self.rate {
                Some(rate) => Pace::Rate(rate),
                None => Pace::Concurrency(self.concurrency.unwrap_or(1)),
            },
            requests: self.requests.or_else(|| duration.is_none().then_some(16)),
            duration,
            seed: self.seed,
            timeout: seconds("timeout", self.timeout)?,
            body,
            api_key: self.api_key.clone(),
        };
        plan.check()?;
        Ok(plan)
    }
}

/// Sends the load; TERM and INT end it, and what was measured is kept.
async fn send(plan: LoadPlan, out: Option<File>) -> Result<(LatencyTally, LoadEnd)> {
    let stop = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let on_signal = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        on_signal.cancel();
    });
    let load = Load::prepare(plan)?;
    let header = load.header().clone();
    let (records, received) = mpsc::channel();
    // A thread of its own: a slow disk does not delay the clients.
    let writer = thread::spawn(move || write(header, &received, out));
    let end = load.run(&stop, &records).await?;
    drop(records);
    let (tally, mut file) = writer.join().map_err(|_| anyhow::anyhow!("the writer failed"))??;
    if let Some(file) = &mut file {
        write_line(file, &LoadLine::End(end))?;
        file.flush().context("cannot write the requests")?;
    }
    Ok((tally, end))
}

type Written = (LatencyTally, Option<BufWriter<File>>);

fn write(
    header: LoadHeader,
    records: &mpsc::Receiver<RequestRecord>,
    out: Option<File>,
) -> Result<Written> {
    let (mut tally, mut file) = (LatencyTally::default(), out.map(BufWriter::new));
    if let Some(file) = &mut file {
        write_line(file, &LoadLine::Load(header))?;
    }
    for record in records {
        tally.add(&record);
        if let Some(file) = &mut file {
            write_line(file, &LoadLine::Request(record))?;
        }
    }
    Ok((tally, file))
}

fn write_line(file: &mut BufWriter<File>, line: &LoadLine) -> Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    file.write_all(&text).context("cannot write the requests")
}

/// The table of latencies in the terminal.
fn summary(tally: LatencyTally, end: LoadEnd) -> String {
    let (complete, failed) = tally.load().counts();
    let load = tally.load().record(LoadPass::Unprofiled, 0, None);
    let rates = load.and_then(|it| it.requests_per_s.zip(it.tokens_per_s));
    let mut text = format!("{complete} requests complete, {failed} failed");
    if end.is_stopped {
        text.push_str(" (stopped by a signal)");
    }
    if let Some((requests, tokens)) = rates {
        text.push_str(&format!("; {requests:.2} requests/s, {tokens:.1} output tokens/s"));
    }
    let head = ["LATENCY, ms", "N", "MEAN", "P50", "P90", "P99", "MAX"];
    let [name, figures @ ..] = head;
    text.push_str(&format!("\n{name:24}"));
    text.extend(figures.map(|figure| format!("{figure:>11}")));
    for record in tally.records(LoadPass::Unprofiled) {
        text.push_str(&format!("\n{:24}{:>11}", record.metric.as_str(), record.n));
        let figures = [record.mean_ms, record.p50_ms, record.p90_ms, record.p99_ms, record.max_ms];
        text.extend(figures.map(|ms| format!("{ms:>11.3}")));
    }
    text + "\n"
}
