//! Causes of steps that take much longer than others: the ledger's causes of idle time with the
//! calls of the host, single launches instead of a graph, and the work of the GPU.

use llmprof_analyze::{
    ledger::{LedgerCause, length_of},
    stages::step_times::{OutlierStep, StepTimes},
    step_batches::common_batch,
};
use llmprof_core::{
    domain::finding::{
        Finding,
        catalogue::{self, FindingId},
    },
    trace::{collectives::CollectiveKind, runtime_call::CallKind},
};

use super::{
    AnswerRecords,
    cause_words::plain,
    cited::{Cited, Figure},
    outliers::{LISTED, batches},
    stage_time::row_of_steps,
    steps::row_of,
};
use crate::format::{count, short_name};

/// Passes of the draft model, of the mean of all steps, above which they explain an outlier.
const MANY_DRAFTS: f64 = 1.5;

/// An outlier and its place among the longest.
type Listed<'a> = (usize, &'a OutlierStep);

/// Times of one name in outliers.
struct Named {
    name: String,
    ms: Vec<Figure>,
    /// The time of this name in other steps.
    usual_ms: Option<Figure>,
}

fn by_name(times: impl Iterator<Item = (String, Figure, Option<Figure>)>) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
    for (name, ms, usual_ms) in times {
        match all.iter_mut().find(|known| known.name == name) {
            Some(known) => known.ms.push(ms),
            None => all.push(Named { name, ms: vec![ms], usual_ms }),
        }
    }
    all
}

/// The causes of outliers, each sentence after a space.
pub fn sentences(records: &AnswerRecords, steps: &StepTimes) -> Cited {
    let listed: Vec<Listed> = steps.longest.iter().take(LISTED).enumerate().collect();
    if !listed.iter().any(|it| is_explained(it.1))
        && let Some(drafts) = drafts(steps, records)
    {
        return drafts;
    }
    let mut all = Cited::default();
    let parts = [
        singly(steps, &listed),
        calls(steps, &listed),
        idle(steps, &listed),
        works(steps, &listed),
    ];
    parts.into_iter().flatten().for_each(|it| all.push(it));
    if !listed.iter().any(|it| is_explained(it.1)) {
        let which = Cited::words(if steps.outliers == 1 { "it" } else { "them" });
        all.push(Cited::of(unnamed_delay(steps, records), [which]));
    }
    all
}

/// True if a call, work, single launches or the cause of its idle time explain an outlier.
pub fn is_explained(it: &OutlierStep) -> bool {
    it.host_call.is_some()
        || it.longest_work.is_some()
        || it.single_launches.is_some()
        || it.cause.is_some_and(|cause| cause != LedgerCause::GapHost)
}

/// Words for the outliers that have these figures.
fn which(steps: &StepTimes, figures: impl Iterator<Item = Figure>) -> Cited {
    let number = Figure::number(figures);
    match (number.value() as u64, steps.outliers) {
        (1, 1) => Cited::words("it"),
        (named, all) if named == all => Cited::words("them"),
        _ => Cited::of("{} of them", [number.shown(|it| count(it as u64))]),
    }
}

/// A time of some milliseconds, in its unit.
fn length(ms: Figure) -> Cited {
    ms.shown(|ms| length_of((ms * 1e6).round() as i64))
}

/// A sentence on the outliers that have these names, with their times.
fn sentence(steps: &StepTimes, words: &'static str, named: &[Named]) -> Option<Cited> {
    let each = named.iter().map(|it| {
        let usual = it.usual_ms.clone().map(|ms| Cited::of("; usually {}", [length(ms)]));
        let ms = Cited::list(it.ms.iter().cloned().map(length), ", ");
        Cited::of("{} ({}{})", [Cited::name(&it.name), ms, usual.unwrap_or_default()])
    });
    let which = which(steps, named.iter().flat_map(|it| it.ms.iter().cloned()));
    let each = Cited::list(each, "; ");
    (!named.is_empty()).then(|| Cited::of(words, [which, each]))
}

/// Outliers that launch kernels one by one.
fn singly(steps: &StepTimes, listed: &[Listed]) -> Option<Cited> {
    let row = row_of_steps(steps);
    let figures = listed.iter().filter_map(|(at, it)| {
        Some(row.count(format!("longest.{at}.single_launches"), it.single_launches?))
    });
    let figures: Vec<Figure> = figures.collect();
    let shown = figures.iter().cloned().map(|it| it.shown(|it| count(it as u64)));
    let parts = [which(steps, figures.iter().cloned()), Cited::list(shown, ", ")];
    (!figures.is_empty()).then(|| {
        Cited::of(
            " In {} the host launches {} kernels one by one; the other steps replay a graph.",
            parts,
        )
    })
}

/// Words for the host's activity in a call that names an outlier.
const HOST_WORDS: [&str; 5] = [
    " In {} the GPU idles while the host launches nothing, in {}.",
    " In {} the GPU idles while the host waits for it, in {}.",
    " In {} the GPU idles while the host copies data, in {}.",
    " In {} the GPU idles while the host launches the next work, in {}.",
    " In {} the GPU idles while the host launches a graph, in {}.",
];

/// The words for a call: by the cause, or by the call if it launches work.
fn host_words(cause: Option<LedgerCause>, call: &str) -> &'static str {
    let [nothing, waits, copies, launches, graph] = HOST_WORDS;
    match (cause, CallKind::of(call)) {
        (Some(LedgerCause::GapSync), _) => waits,
        (Some(LedgerCause::GapCopy), _) => copies,
        (Some(LedgerCause::GapGraphLaunch), _) | (_, CallKind::Graph) => graph,
        (Some(LedgerCause::GapLaunch), _) | (_, CallKind::Kernel) => launches,
        _ => nothing,
    }
}

/// The calls of the host in outliers.
fn calls(steps: &StepTimes, listed: &[Listed]) -> Option<Cited> {
    let row = row_of_steps(steps);
    let mut all = Cited::default();
    for words in HOST_WORDS {
        let named = by_name(listed.iter().filter_map(|(at, it)| {
            let (call, ms) = it.host_call.as_deref().zip(it.host_call_ms)?;
            let figure = |column: &str, ms| row.figure(format!("longest.{at}.{column}"), ms);
            let usual = it.usual_call_ms.map(|ms| figure("usual_call_ms", ms));
            let is_of_words = host_words(it.cause, call) == words;
            is_of_words.then(|| (short_name(call), figure("host_call_ms", ms), usual))
        }));
        if let Some(it) = sentence(steps, words, &named) {
            all.push(it);
        }
    }
    Some(all)
}

/// The causes of idle time in outliers without a call that names it.
fn idle(steps: &StepTimes, listed: &[Listed]) -> Option<Cited> {
    let row = row_of_steps(steps);
    let named = by_name(listed.iter().filter_map(|(at, it)| {
        let cause = it.cause.filter(|_| it.host_call.is_none())?;
        let place = it.idle.iter().position(|idle| idle.cause == cause)?;
        let ms = row.figure(format!("longest.{at}.idle.{place}.ms"), it.idle[place].ms);
        let words = plain(cause);
        let words = match cause.is_of_recording() {
            true => format!("the GPU idles because of {words}"),
            false => words.to_owned(),
        };
        Some((words, ms, None))
    }));
    sentence(steps, " In {} {}.", &named)
}

/// The work of the GPU in outliers. Kernels of collective operations wait in it.
fn works(steps: &StepTimes, listed: &[Listed]) -> Option<Cited> {
    let row = row_of_steps(steps);
    let mut all = Cited::default();
    for (is_collective, words) in [
        (false, " In {} the GPU works longer, most of all in {}."),
        (true, " In {} the GPU waits for other ranks or transfers, most of all in {}."),
    ] {
        let named = by_name(listed.iter().filter_map(|(at, it)| {
            let (work, ms) = it.longest_work.as_deref().zip(it.longest_work_ms)?;
            let ms = row.figure(format!("longest.{at}.longest_work_ms"), ms);
            let is_of_words = CollectiveKind::of_kernel(work).is_some() == is_collective;
            is_of_words.then(|| (short_name(work), ms, None))
        }));
        if let Some(it) = sentence(steps, words, &named) {
            all.push(it);
        }
    }
    Some(all)
}

/// The delay of outliers in which nothing is named. The page has conditions of the same time, which
/// this sentence must not contradict.
fn unnamed_delay(steps: &StepTimes, records: &AnswerRecords) -> &'static str {
    const OFF_CORE: [FindingId; 2] =
        [catalogue::LAUNCHING_THREAD_DISPLACED, catalogue::LAUNCHING_THREAD_OFF_CORE];
    let is_off_core = |it: &Finding| {
        let is_of_stage = it.evidence.get("stage") == Some(&steps.stage);
        is_of_stage && OFF_CORE.iter().any(|id| it.id == *id)
    };
    if records.findings.iter().any(is_off_core) {
        return " The thread that launches work was off its core at times, which may have delayed \
                {}.";
    }
    match records.only_traced {
        true => " No operator, range or call of the runtime explains {}.",
        false if records.findings.iter().any(|it| it.id == catalogue::HOST_BUSY) => {
            " The host was busy meanwhile, which may have delayed {}."
        }
        false => " What delayed {} is not recorded.",
    }
}

/// The passes of the draft model in outliers, if they have many more than steps have on average.
fn drafts(steps: &StepTimes, records: &AnswerRecords) -> Option<Cited> {
    let common = common_batch(batches(records, &steps.stage))?;
    let mean = common.drafts?;
    let is_more = |it: &&OutlierStep| it.drafts.is_some_and(|it| it as f64 > MANY_DRAFTS * mean);
    let listed = || steps.longest.iter().take(LISTED);
    let row = row_of_steps(steps);
    let number = |(at, it): (usize, &OutlierStep)| {
        let drafts = row.count(format!("longest.{at}.drafts"), it.drafts?);
        Some(drafts.shown(|it| count(it as u64)))
    };
    listed().all(|it| is_more(&it)).then(|| {
        Cited::of(
            " The draft model runs {} times in {}, {} times on average.",
            [
                Cited::list(listed().enumerate().filter_map(number), ", "),
                Cited::words(if steps.outliers == 1 { "it" } else { "them" }),
                row_of(common).figure("drafts", mean).decimals(1),
            ],
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{stored_answer, unfounded};

    /// The sentence on an outlier of 40 ms among 20 steps of 4 ms, after its time.
    fn causes(fields: &Value) -> String {
        let mut longest = json!({"step": 11, "ms": 40.0, "host_call": null, "host_call_ms": null});
        longest.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let report = json!({
            "only_traced": true,
            "stages": [{
                "stage": "decode_all", "tokens": null, "tokens_per_s": null, "share_pct": null,
                "ms": {"mean": 116.0, "std": null, "min": 116.0, "max": 116.0, "n": 1}
            }],
            "step_batches": [{
                "class": "decode", "mode": null, "requests": 6, "padded_min": null,
                "padded_max": null, "context_min": null, "context_max": null, "steps": 20,
                "ms": {"mean": 5.8, "std": null, "min": 4.0, "max": 40.0, "n": 20},
                "p50_ms": 4.0, "period_ms": null, "busy_pct": null, "tokens_per_s": null
            }],
            "step_times": [{
                "stage": "decode_all", "p50_ms": 4.0, "outliers": 1, "excess_ms": 36.0,
                "ms": {"mean": 5.8, "std": null, "min": 4.0, "max": 40.0, "n": 20},
                "longest": [longest]
            }]
        });
        let report = serde_json::to_vec(&report).unwrap();
        assert_eq!(unfounded(&report).unwrap(), [""; 0]);
        let answer = stored_answer(&report).unwrap().remove(0);
        let all = answer.sentences.iter().map(|it| it.as_str().to_owned());
        let outlier = all.into_iter().find(|it| it.contains("more than twice")).unwrap();
        outlier.rsplit_once("40.0 ms. ").unwrap().1.to_owned()
    }

    #[test]
    fn each_kind_of_call_and_each_cause_names_an_outlier() {
        let call = |cause: &str, name: &str| {
            json!({
                "cause": cause, "host_call": name, "host_call_ms": 36.0, "usual_call_ms": 0.25,
                "idle": [{"cause": cause, "ms": 36.2}]
            })
        };
        let without = |cause: &str| json!({"cause": cause, "idle": [{"cause": cause, "ms": 36.2}]});
        let unexplained = "No operator, range or call of the runtime explains it.";
        let idle = "In it the GPU idles while the host";
        let times = "(36.0 ms; usually 250 us).";
        for (fields, expected) in [
            (
                call("gap_sync", "cudaStreamSynchronize"),
                format!("{idle} waits for it, in cudaStreamSynchronize {times}"),
            ),
            (call("gap_copy", "cudaMemcpy"), format!("{idle} copies data, in cudaMemcpy {times}")),
            (
                call("gap_host", "cuXyzUnknown"),
                format!("{idle} launches nothing, in cuXyzUnknown {times}"),
            ),
            (
                call("gap_graph_launch", "cudaGraphLaunch"),
                format!("{idle} launches a graph, in cudaGraphLaunch {times}"),
            ),
            (
                call("gap_launch", "cuXyzUnknown"),
                format!("{idle} launches the next work, in cuXyzUnknown {times}"),
            ),
            (
                call("gap_host", "hipModuleLaunchKernel"),
                format!("{idle} launches the next work, in hipModuleLaunchKernel {times}"),
            ),
            (
                call("gap_long_call", "cudaMalloc"),
                format!("{idle} launches nothing, in cudaMalloc {times}"),
            ),
            (
                without("gap_wait"),
                "In it the GPU waits with launched work for something that the capture does not \
                 record, such as another process or an event of another stream (36.2 ms)."
                    .into(),
            ),
            (
                without("gap_host"),
                format!("{idle} prepares the next launch (36.2 ms). {unexplained}"),
            ),
            (json!({}), unexplained.into()),
        ] {
            assert_eq!(causes(&fields), expected);
        }
    }

    #[test]
    fn a_collective_kernel_waits_and_others_work() {
        let text = |work: &str| causes(&json!({"longest_work": work, "longest_work_ms": 36.0}));
        for (work, words) in [
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "waits for other ranks or transfers"),
            ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "waits for other ranks or transfers"),
            ("target_gemm", "works longer"),
            ("copy host_to_device", "works longer"),
        ] {
            let begins = format!("In it the GPU {words}, most of all in ");
            assert!(text(work).starts_with(&begins), "{}", text(work));
        }
    }

    #[test]
    fn a_step_that_replays_no_graph_is_named_by_its_single_launches() {
        let mut fields = json!({"cause": "gap_host", "idle": [{"cause": "gap_host", "ms": 36.2}]});
        fields["single_launches"] = 409.into();
        assert_eq!(
            causes(&fields),
            "In it the host launches 409 kernels one by one; the other steps replay a graph. In it \
             the GPU idles while the host prepares the next launch (36.2 ms)."
        );
    }
}
