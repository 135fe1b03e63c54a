//! Proof of a window: the steps that it contains, and its cost for the server.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::{Trace, engine_steps::StepClass, requests::LoadPass, windows::Window},
};

use super::{LatencyMetric, Requests};
use crate::{Analysis, stages::PREFILL, stats::percent};

/// Findings on the window of a server, if it has one.
pub fn window_findings(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(window) = trace.command.as_ref().and_then(|command| command.window) else {
        return Vec::new();
    };
    let mut found = vec![proof(analysis, trace, &window)];
    if window.is_cut {
        let message = "The load ended within the window: a part of it has no requests.";
        let finding = Finding::new(catalogue::WINDOW_CUT, message);
        found.push(finding.advise("Read the client's output in logs/."));
    }
    found.extend(cost(&analysis.requests, &window));
    found
}

/// The steps of a window, and whether they are as many as requested.
fn proof(analysis: &Analysis, trace: &Trace, window: &Window) -> Finding {
    let count = |class: StepClass| {
        let is_of = |it: Option<StepClass>| it == Some(class) || it == Some(StepClass::Mixed);
        analysis.engine_steps.iter().filter(|step| is_of(step.class)).count() as u64
    };
    let (prefill, decode) = if analysis.engine_steps.is_empty() && analysis.only_traced {
        stage_instances(analysis)
    } else {
        (count(StepClass::Prefill), count(StepClass::Decode))
    };
    let min = window.min_steps;
    let is_proven = prefill >= min.prefill.into() && decode >= min.decode.into();
    let contents = format!("{prefill} prefill and {decode} decode steps");
    let finding = if is_proven {
        let message = format!("The window contains {contents} from the middle of the load.");
        Finding::new(catalogue::WINDOW_PROVEN, message)
    } else if analysis.engine_steps.is_empty() && prefill + decode == 0 {
        let message = "The window has no range or launch that shows a step: the number of its \
                       steps is unknown.";
        Finding::new(catalogue::WINDOW_UNPROVEN, message).advise(
            "Name the ranges of the stages in the command's stages, or have the engine open \
             ranges (llmprof engines).",
        )
    } else {
        let message = format!(
            "The window contains {contents}, fewer than the requested {} and {}.",
            min.prefill, min.decode
        );
        Finding::new(catalogue::WINDOW_SHORT, message)
            .advise("Raise window.max_s of the command, or use a load with more requests.")
    };
    let nsys = trace.timeline.as_ref();
    let finding = finding
        .with("kernels", nsys.map_or(0, |nsys| nsys.kernels.len()))
        .with("ranges", nsys.map_or(0, |nsys| nsys.ranges.len()));
    match window.recorded_s {
        Some(seconds) => finding.with("recorded, s", format!("{seconds:.2}")),
        None => finding.with("recorded", "nothing: nsys start failed"),
    }
}

/// Ranges `prefill` and `decode_step` of a window without steps of an engine.
fn stage_instances(analysis: &Analysis) -> (u64, u64) {
    let stages = &analysis.stages;
    let prefill = stages.row(PREFILL).map_or(0, |row| row.ms.n);
    (prefill.into(), stages.step_ms.map_or(0, |steps| steps.n.into()))
}

/// Latencies before, within and after the window: the profiler stays attached to the server.
fn cost(requests: &Requests, window: &Window) -> Option<Finding> {
    let p50 = |pass: LoadPass, metric: LatencyMetric| {
        let record = requests.latency.iter().find(|it| it.pass == pass && it.metric == metric)?;
        Some(record.p50_ms)
    };
    let passes =
        [LoadPass::Unprofiled, LoadPass::BeforeWindow, LoadPass::Traced, LoadPass::AfterWindow];
    let row = |metric: LatencyMetric| {
        let text = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.2}"));
        passes.map(|pass| text(p50(pass, metric))).join(" / ")
    };
    let plain = p50(LoadPass::Unprofiled, LatencyMetric::EndToEnd)?;
    let change = |pass: LoadPass| {
        let change = percent(p50(pass, LatencyMetric::EndToEnd)? - plain, plain)?;
        Some(format!("{change:+.0} %"))
    };
    let unknown = || "an unknown amount".to_owned();
    let message = format!(
        "The latency of requests (end to end, p50) differs from the unprofiled one by {} before \
         the window, {} within it and {} after it.",
        change(LoadPass::BeforeWindow)?,
        change(LoadPass::Traced).unwrap_or_else(unknown),
        change(LoadPass::AfterWindow).unwrap_or_else(unknown)
    );
    let mut finding = Finding::new(catalogue::WINDOW_COST, message);
    for metric in [LatencyMetric::FirstToken, LatencyMetric::OutputToken, LatencyMetric::EndToEnd] {
        let name = format!("{metric}, p50 ms: unprofiled / before / within / after");
        finding = finding.with(&name, row(metric));
    }
    for (name, seconds) in [("nsys start, s", window.start_s), ("nsys stop, s", window.stop_s)] {
        if let Some(seconds) = seconds {
            finding = finding.with(name, format!("{seconds:.2}"));
        }
    }
    Some(finding)
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{command::CommandTrace, windows::MinSteps};

    use super::{super::LatencyRecord, *};
    use crate::{kernels::tests::capture, timeline};

    /// Findings of a window with these ranges.
    fn ids(ranges: &str, min: (u32, u32), is_cut: bool) -> Vec<(String, String)> {
        let nsys = capture(ranges);
        let engine_steps =
            timeline::engine_steps::engine_steps(&timeline::capture::Capture::of(&nsys));
        let window = Window {
            min_steps: MinSteps { prefill: min.0, decode: min.1 },
            recorded_s: Some(1.0),
            is_cut,
            ..Window::default()
        };
        let command = CommandTrace { window: Some(window), ..CommandTrace::default() };
        let trace = Trace { timeline: Some(nsys), command: Some(command), ..Trace::default() };
        let analysis = Analysis { engine_steps, ..Analysis::default() };
        let found = window_findings(&analysis, &trace).into_iter();
        found.map(|it| (it.id.clone(), it.message.clone())).collect()
    }

    #[test]
    fn a_window_is_proven_by_its_steps_or_states_its_contents() {
        let ranges = "range 1 execute_context_1(8)_generation_0(0) 0..10
             range 1 execute_context_0(0)_generation_1(1) 20..30
             range 1 execute_context_0(0)_generation_1(1) 40..50";
        assert_eq!(ids(ranges, (1, 2), false)[0].0, "window_proven");
        let short = &ids(ranges, (1, 3), false)[0];
        assert_eq!(
            (short.0.as_str(), short.1.as_str()),
            (
                "window_short",
                "The window contains 1 prefill and 2 decode steps, fewer than the requested 1 \
                 and 3."
            )
        );
        let none: Vec<String> =
            ids("range 1 other 0..10", (1, 1), true).into_iter().map(|it| it.0).collect();
        assert_eq!(none, ["window_unproven", "window_cut"]);
    }

    #[test]
    fn ranges_of_stages_prove_a_window_without_steps_of_an_engine() {
        let nsys = capture(
            "range 1 prefill 0..10\nrange 1 decode_all 20..60\nrange 1 decode_step 20..30
             range 1 decode_step 40..50",
        );
        let window = |min: (u32, u32)| Window {
            min_steps: MinSteps { prefill: min.0, decode: min.1 },
            ..Window::default()
        };
        let id = |min: (u32, u32)| {
            let command = CommandTrace { window: Some(window(min)), ..CommandTrace::default() };
            let (nsys, command) = (Some(nsys.clone()), Some(command));
            let trace = Trace { timeline: nsys, command, ..Trace::default() };
            let found = crate::analyze(&trace, None, None).findings;
            found.into_iter().find(|it| it.id.starts_with("window_")).unwrap().id.clone()
        };
        assert_eq!([id((1, 2)), id((1, 3))], ["window_proven", "window_short"]);
    }

    #[test]
    fn the_cost_of_a_window_is_what_was_measured_slower_or_faster() {
        let record = |(pass, p50_ms): (LoadPass, f64)| LatencyRecord {
            pass,
            metric: LatencyMetric::EndToEnd,
            n: 1,
            mean_ms: p50_ms,
            p50_ms,
            p90_ms: p50_ms,
            p99_ms: p50_ms,
            max_ms: p50_ms,
            loads: 1,
            std_error_ms: None,
        };
        let message = |passes: &[(LoadPass, f64)]| {
            let latency = passes.iter().copied().map(record).collect();
            let requests = Requests { latency, ..Requests::default() };
            cost(&requests, &Window::default()).map(|it| it.message.clone())
        };
        let (plain, before) = ((LoadPass::Unprofiled, 20.0), (LoadPass::BeforeWindow, 22.0));
        let all = [plain, before, (LoadPass::Traced, 30.0), (LoadPass::AfterWindow, 18.0)];
        assert_eq!(
            message(&all).unwrap(),
            "The latency of requests (end to end, p50) differs from the unprofiled one by +10 % \
             before the window, +50 % within it and -10 % after it."
        );
        assert!(message(&[plain, before]).unwrap().contains("an unknown amount within it"));
        assert_eq!(message(&[plain]), None);
    }
}
