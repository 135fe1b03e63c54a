//! Timing of a command as a whole: its wall time and the tracing overhead.

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        units::Nanos,
    },
    trace::{
        Trace,
        command::{CommandTimes, CommandTrace, Timed},
    },
};
use serde::{Deserialize, Serialize};

use super::{
    overhead::OverheadRecord,
    repeat_medians::{RepeatMedian, statistic},
};
use crate::{
    Analysis,
    findings::{excluded, find_short_recording, with_engine},
    stats::{Spread, percent},
};

/// Wall times of a command, measured from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CommandTiming {
    pub of: Timed,
    /// Milliseconds of the unprofiled pass; `null` for a server without a client.
    pub plain_ms: Option<Spread>,
    /// Median of the same times, of two their mean; `null` also in reports of earlier versions.
    #[serde(default)]
    pub plain_p50_ms: Option<f64>,
    /// True if the two in the middle of an even number of these times differ by more than 5 %:
    /// `plain_p50_ms` is called the lower median. Absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_two_halves: bool,
    /// Milliseconds under nsys; `null` if unknown.
    pub traced_ms: Option<Spread>,
    /// Time from a server's start until it was ready in the unprofiled pass, milliseconds.
    pub ready_ms: Option<f64>,
}

/// Summarises the wall times of both passes.
pub fn timing(trace: &CommandTrace) -> CommandTiming {
    let walls = |times: &CommandTimes| -> Vec<f64> {
        times.wall_ns.iter().map(|ns| Nanos(*ns).as_ms()).collect()
    };
    let spread = |times: &Option<CommandTimes>| Spread::of(walls(times.as_ref()?));
    let plain = trace.plain.as_ref();
    let over = plain.and_then(|it| RepeatMedian::of(walls(it)));
    CommandTiming {
        of: plain.or(trace.traced.as_ref()).map_or(Timed::Process, |times| times.of),
        plain_ms: spread(&trace.plain),
        plain_p50_ms: over.map(|it| it.p50),
        has_two_halves: over.is_some_and(|it| it.has_two_halves),
        traced_ms: spread(&trace.traced),
        ready_ms: plain.and_then(|times| Some(Nanos(times.ready_ns?).as_ms())),
    }
}

impl CommandTiming {
    /// True if an unprofiled pass was timed.
    pub fn is_unprofiled(&self) -> bool {
        self.plain_ms.is_some()
    }

    /// The wall time that stands for the command, milliseconds, and the name of the figure. Reports
    /// of earlier versions have only the mean.
    pub fn wall_ms(&self) -> Option<(f64, &'static str)> {
        let Spread { mean, n, .. } = self.plain_ms?;
        let word = statistic(n, self.has_two_halves);
        Some(self.plain_p50_ms.map_or((mean, "mean"), |ms| (ms, word)))
    }

    /// Tracing overhead of the whole command.
    pub fn overhead(&self) -> Option<OverheadRecord> {
        let (plain_ms, traced_ms) = (self.plain_ms?.mean, self.traced_ms?.mean);
        let overhead_pct = percent(traced_ms - plain_ms, plain_ms);
        Some(OverheadRecord {
            stage: self.of.as_str().into(),
            plain_ms,
            traced_ms,
            overhead_pct,
            steps: None,
        })
    }
}

/// Findings on data that a command does not report and the model runner would.
pub fn findings(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(command) = &analysis.command else { return Vec::new() };
    let mut found = Vec::new();
    let has_stages = !analysis.stages.rows.is_empty();
    if trace.timeline.is_some() && !has_stages && excluded(analysis, trace).is_empty() {
        let (message, advice) = analysis.why_no_stages();
        let finding = Finding::new(catalogue::COMMAND_WITHOUT_STAGES, message)
            .with("ranges captured", trace.timeline.as_ref().map_or(0, |nsys| nsys.ranges.len()))
            .advise(advice);
        // Ranges of the program may lie before the recording.
        found.push(match find_short_recording(trace) {
            Some(_) => finding.advise(
                "Ranges of the program may lie before the recording: see finding recording_short.",
            ),
            None => with_engine(finding, trace),
        });
    }
    if analysis.only_traced && has_stages {
        let message = "The command reports no stages in its unprofiled pass: stage times are of \
                       the traced pass and include tracing overhead.";
        let mut finding = Finding::new(catalogue::STAGES_ONLY_TRACED, message);
        if let Some(overhead) = command.overhead().and_then(|it| it.overhead_pct) {
            finding = finding.with("tracing overhead of the command", format!("{overhead:.1} %"));
        }
        found.push(
            finding.advise("Have it write its stages to standard output as events, one per line."),
        );
    }
    if trace.timeline.is_some() && analysis.outputs.traced_tokens_equal.is_none() {
        let message = "Unknown whether the traced pass computed the same tokens as the unprofiled \
                       pass: the command reports no tokens.";
        let finding = Finding::new(catalogue::OUTPUTS_UNKNOWN, message);
        found.push(finding.advise(
            "Have it write the tokens of each repeat to standard output as an event, and fix \
             its seed.",
        ));
    }
    // The loads before and after a window show its cost.
    let has_window = trace.command.as_ref().is_some_and(|it| it.window.is_some());
    let is_timed = command.traced_ms.is_some() || has_window;
    if trace.timeline.is_some() && command.plain_ms.is_some() && !is_timed {
        let message = "The tracing overhead is unknown: the traced command exited too quickly to \
                       be timed from outside.";
        found.push(Finding::new(catalogue::OVERHEAD_UNKNOWN, message));
    }
    found
}
