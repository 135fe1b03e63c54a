//! A server as the target of a pass: started, waited for, used by its client, and ended with everything that it started.
//!
//! Under a profiler only the server is told to end: the profiler has to write what it recorded, and ends by itself.

use std::{io, time::Duration};

use nix::sys::signal::{Signal, kill};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    CollectError, Leash, Pass,
    argv::Argv,
    child::{Alone, Ended, Running, run_beside},
    lines::ChildLine,
    output::Logs,
    pass::{Folder, LAST_WORDS},
    ready,
    sweep::{scratch, targets},
};
use crate::{
    run::{Finding, Severity, command::Ready},
    runner::Progress,
    trace::command::{CommandTimes, Timed},
};

/// Time between looks whether a server that was told to end has done so.
const LOOK: Duration = Duration::from_millis(50);
/// How much later than its delay a profiler may begin to record.
const LATE: Duration = Duration::from_secs(30);

/// What is done with a server, and what it came to.
pub struct Served<'a> {
    pub ready: &'a Ready,
    /// The address that is asked, with its port in place.
    pub url: Option<String>,
    pub client: Option<Argv>,
    pub warmup: u32,
    pub repeats: u32,
    /// Recording begins so long after the start, and lasts so long; none: as long as the server. A client waits for its begin, and a server
    /// without one is left alone for the duration.
    pub delay: Duration,
    pub duration: Duration,
    /// What was timed.
    pub times: CommandTimes,
}

/// Who is told to end when the client is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whom {
    Everything,
    Target,
}

impl Served<'_> {
    /// Serves plainly.
    pub async fn plainly(&mut self, folder: &Folder<'_>, name: &str, argv: &Argv, leash: &Leash) -> Result<Pass, CollectError> {
        self.serve(folder, name, argv, leash, Whom::Everything).await
    }

    /// Serves under a profiler, which `argv` starts.
    pub async fn under(&mut self, folder: &Folder<'_>, name: &str, argv: &Argv, leash: &Leash) -> Result<Pass, CollectError> {
        self.serve(folder, name, argv, leash, Whom::Target).await
    }

    async fn serve(
        &mut self,
        folder: &Folder<'_>,
        name: &str,
        argv: &Argv,
        leash: &Leash,
        whom: Whom,
    ) -> Result<Pass, CollectError> {
        self.times = CommandTimes { of: Timed::Client, warmup: self.warmup, wall_ns: vec![], ready_ns: None };
        folder.note(argv)?;
        let logs = folder.logs(name);
        let failed = |source: io::Error| CollectError::Run { program: argv.program.clone(), source };
        let began = Instant::now();
        let mut running = Running::begin(argv, &logs, leash, Alone::Yes).await.map_err(failed)?;
        let used = tokio::select! {
            ended = running.wait(leash) => Err(match ended {
                Ok(ended) => CollectError::Ended { what: "the server", ended, last_words: vec![] },
                Err(source) => failed(source),
            }),
            used = self.is_used(folder, name, &logs, began, whom, leash) => used,
        };
        let ended = match &used {
            Ok(_) if whom == Whom::Target => {
                end_targets(leash).await;
                running.wait(leash).await.map_err(failed)?
            }
            Err(CollectError::Ended { ended, what: "the server", .. }) => *ended,
            _ => Ended::Stopped,
        };
        let ended = running.end(ended, leash).await.map_err(failed)?;
        match used {
            // It was told to end, and how it does so is its own business.
            Ok(findings)
                if matches!(ended, Ended::Exited(_) | Ended::Signalled(_))
                    || whom == Whom::Everything && ended == Ended::Stopped =>
            {
                Ok(Pass { wall: began.elapsed(), findings })
            }
            Ok(_) => Err(folder.failed("the server", ended, &logs, leash)),
            Err(CollectError::Ended { what: "the server", .. }) => Err(folder.failed("the server", ended, &logs, leash)),
            Err(CollectError::NotReady { how, within_s, .. }) => {
                Err(CollectError::NotReady { how, within_s, last_words: logs.last_words(LAST_WORDS) })
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until it is ready and recorded, and has the client use it; what a person should know of that.
    async fn is_used(
        &mut self,
        folder: &Folder<'_>,
        name: &str,
        logs: &Logs,
        began: Instant,
        whom: Whom,
        leash: &Leash,
    ) -> Result<Vec<Finding>, CollectError> {
        let within = Duration::from_secs(self.ready.within_s.into());
        let is_ready = async {
            match (&self.url, &self.ready.log) {
                (Some(url), _) => ready::answers(url).await,
                (None, text) => ready::says(logs, text.as_deref().unwrap_or_default()).await,
            }
        };
        if timeout(within, is_ready).await.is_err() {
            let how = match (&self.url, &self.ready.log) {
                (Some(url), _) => format!("no answer of 2xx at {url}"),
                (None, text) => format!("no line that holds {:?}", text.as_deref().unwrap_or_default()),
            };
            return Err(CollectError::NotReady { how, within_s: self.ready.within_s, last_words: vec![] });
        }
        self.times.ready_ns = i64::try_from(began.elapsed().as_nanos()).ok();
        let mut findings = Vec::new();
        let mut recorded_since = None;
        if whom == Whom::Target {
            recorded_since = timeout_at(began + self.delay + LATE, ready::records(&scratch(leash.run))).await.ok();
            if recorded_since.is_none() {
                findings.push(self.outside("was not seen to begin before the client did"));
            }
        }
        let Some(client) = self.client.clone() else {
            sleep(self.duration).await;
            return Ok(findings);
        };
        for turn in 0..self.warmup + self.repeats {
            let measured = turn.checked_sub(self.warmup);
            let log = measured
                .map_or_else(|| format!("{name}-client-warmup-{}", turn + 1), |turn| format!("{name}-client-{}", turn + 1));
            progress(
                leash,
                measured.is_some(),
                measured.unwrap_or(turn),
                if measured.is_some() { self.repeats } else { self.warmup },
            );
            let wall = folder.beside("the client", &log, &client, leash).await?;
            if measured.is_some() {
                self.times.wall_ns.push(i64::try_from(wall.as_nanos()).unwrap_or(i64::MAX));
            }
        }
        progress(leash, true, self.repeats, self.repeats);
        let lasted = recorded_since.and_then(|since| since.elapsed().ok()).unwrap_or_default();
        if !self.duration.is_zero() && lasted > self.duration {
            findings.push(self.outside("ended before the client did"));
        }
        Ok(findings)
    }

    /// A recording that may lack what it is about.
    fn outside(&self, how: &str) -> Finding {
        Finding::new(
            "client_outside_recording",
            Severity::Warning,
            format!("The recording {how}: it may lack what the client had done."),
        )
        .with("delay_s", self.delay.as_secs())
        .with("duration_s", self.duration.as_secs())
        .advise("choose the command's delay_s close to when it is ready, and its duration_s longer than its clients take")
    }
}

/// Tells how far the repetitions are.
pub fn progress(leash: &Leash, measured: bool, done: u32, total: u32) {
    let phase = if measured { "measure" } else { "warmup" };
    if let Some(lines) = &leash.lines {
        // Nobody may listen any more.
        let _ = lines.send(ChildLine::Progress(Progress { phase: phase.into(), done: done.into(), total: total.into() }));
    }
}

/// Tells the server and all that it started to end, and after a grace ends them.
async fn end_targets(leash: &Leash) {
    for (signal, grace) in [(Signal::SIGTERM, leash.grace), (Signal::SIGKILL, Duration::from_secs(1))] {
        let until = Instant::now() + grace;
        loop {
            let run = leash.run;
            let left = tokio::task::spawn_blocking(move || targets(run)).await.unwrap_or_default();
            if left.is_empty() {
                return;
            }
            // Those that were just started hear it, too.
            for pid in left {
                let _ = kill(pid, signal); // it may have ended by itself
            }
            if Instant::now() >= until {
                break;
            }
            sleep(LOOK).await;
        }
    }
}

impl Folder<'_> {
    /// Runs one command of the pass to a good end, beside a child that goes on, and says how long it ran.
    async fn beside(&self, what: &'static str, name: &str, argv: &Argv, leash: &Leash) -> Result<Duration, CollectError> {
        self.note(argv)?;
        let (logs, began) = (self.logs(name), Instant::now());
        match run_beside(argv, &logs, leash).await {
            Ok(Ended::Exited(0)) => Ok(began.elapsed()),
            Ok(ended) => Err(self.failed(what, ended, &logs, leash)),
            Err(source) => Err(CollectError::Run { program: argv.program.clone(), source }),
        }
    }
}
