//! What is known of a command as a whole: how long it took, and what tracing cost. Its stages are told elsewhere, where it has any.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Analysis,
    overhead::OverheadRecord,
    stats::{Spread, percent},
};
use crate::{
    run::{Finding, Severity},
    trace::{
        Trace,
        command::{CommandTimes, CommandTrace, Timed},
        units::Nanos,
    },
};

/// Wall times of a command from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommandTiming {
    pub of: Timed,
    /// Milliseconds, without any profiler; `null` of a server without a client.
    pub plain_ms: Option<Spread>,
    /// Milliseconds under nsys; `null` where that is not known.
    pub traced_ms: Option<Spread>,
    /// From a server's start until it was ready, milliseconds, without any profiler.
    pub ready_ms: Option<f64>,
}

/// Sums up what was timed.
pub fn timing(trace: &CommandTrace) -> CommandTiming {
    let spread =
        |times: &Option<CommandTimes>| times.as_ref().and_then(|it| Spread::of(it.wall_ns.iter().map(|ns| Nanos(*ns).as_ms())));
    let plain = trace.plain.as_ref();
    CommandTiming {
        of: plain.or(trace.traced.as_ref()).map_or(Timed::Process, |times| times.of),
        plain_ms: spread(&trace.plain),
        traced_ms: spread(&trace.traced),
        ready_ms: plain.and_then(|times| Some(Nanos(times.ready_ns?).as_ms())),
    }
}

impl CommandTiming {
    /// What tracing cost the whole of it.
    pub fn overhead(&self) -> Option<OverheadRecord> {
        let (plain_ms, traced_ms) = (self.plain_ms?.mean, self.traced_ms?.mean);
        let overhead_pct = percent(traced_ms - plain_ms, plain_ms);
        Some(OverheadRecord { stage: self.of.as_str().into(), plain_ms, traced_ms, overhead_pct, steps: None })
    }
}

/// What cannot be known of a command that a runner of ours would have told.
pub fn findings(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(command) = &analysis.command else { return Vec::new() };
    let mut found = Vec::new();
    let has_stages = !analysis.stages.rows.is_empty();
    if trace.nsys.is_some() && !has_stages {
        let message = "No range of the command is a stage, so nothing is told by stage.";
        let finding = Finding::new("command_without_stages", Severity::Warning, message)
            .with("ranges captured", trace.nsys.as_ref().map_or(0, |nsys| nsys.ranges.len()));
        found.push(finding.advise(
            "Name its NVTX ranges in the command's stages (targets.toml), or have it open ranges called prefill and decode_all.",
        ));
    }
    if analysis.only_traced && has_stages {
        let message =
            "The command tells no stages of its plain pass: times of stages are of the traced one, which tracing has lengthened.";
        let mut finding = Finding::new("stages_only_traced", Severity::Info, message);
        if let Some(overhead) = command.overhead().and_then(|it| it.overhead_pct) {
            finding = finding.with("tracing lengthened the whole by", format!("{overhead:.1} %"));
        }
        found.push(finding.advise("Have it write its stages to standard output as events, a line each."));
    }
    if trace.nsys.is_some() && analysis.outputs.traced_tokens_equal.is_none() {
        let message = "Whether the traced pass computed what the plain one computed is not known: the command tells no tokens.";
        let finding = Finding::new("outputs_unknown", Severity::Info, message);
        found.push(finding.advise("Have it write the tokens of each repeat to standard output as an event, and fix its seed."));
    }
    if trace.nsys.is_some() && command.plain_ms.is_some() && command.traced_ms.is_none() {
        let message = "What tracing cost is not known: the traced command came and went too fast to be timed from outside.";
        found.push(Finding::new("overhead_unknown", Severity::Info, message));
    }
    found
}
