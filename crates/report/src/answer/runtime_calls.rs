//! The sentence on the calls of the GPU's runtime.

use llmprof_analyze::{kernels::nsys_sums::CallSum, stats::percent};
use llmprof_core::trace::runtime_call::{is_hip, without_version};

use super::cited::{Cited, Figure, Row};
use crate::format::{MAJORITY_PCT, count, short_name};

/// Least share of the calls' time, percent, of a part that is named.
const NAMED_PCT: f64 = 5.0;

/// The function of the runtime or driver with the longest calls.
pub fn longest(calls: &[CallSum]) -> Option<Cited> {
    let it = calls.first()?;
    let row_of = |it: &CallSum| Row::of("api_calls").with("name", &it.name);
    let total = |it: &CallSum| row_of(it).ns("ns.total", it.ns.total);
    // Calls inside others of their thread count once.
    let own = |it: &CallSum| match it.nested_ns {
        0 => total(it),
        ns => total(it).minus(&row_of(it).ns("nested_ns", ns)),
    };
    let all = Figure::sum(calls.iter().map(own));
    let share_of_all = total(it).share_of(&all).or_else(|| own(it).share_of(&all))?;
    let row = row_of(it);
    let api = if is_hip(&it.name) { "HIP" } else { "CUDA" };
    let over = (it.processes > 1).then(|| {
        let processes = row.count("processes", it.processes).shown(|it| count(it as u64));
        Cited::of(", summed over {} processes", [processes])
    });
    let part = match share_of_all.pct() > MAJORITY_PCT {
        true => Cited::of("most time of its {} calls", [Cited::words(api)]),
        false => Cited::of(
            "the largest part of its {} call time, {},",
            [Cited::words(api), share_of_all.text()],
        ),
    };
    Some(Cited::of(
        "The host spends {} in {}: {} ms in {}{}{}.",
        [
            part,
            Cited::name(short_name(without_version(&it.name))),
            total(it).short(),
            row.count("ns.count", it.ns.count).quantity("call"),
            over.unwrap_or_default(),
            before_work(it, &row),
        ],
    ))
}

/// The part of the calls before the first recorded work of a GPU.
fn before_work(it: &CallSum, row: &Row) -> Cited {
    let Some(ns) = it.before_work_ns else { return Cited::default() };
    let is_named = percent(ns as f64, it.ns.total as f64).is_some_and(|pct| pct >= NAMED_PCT);
    if !is_named {
        return Cited::default();
    }
    match ns >= it.ns.total {
        true => Cited::words(", all before the first recorded work"),
        false => Cited::of(
            ", {} ms of it before the first recorded work",
            [row.ns("before_work_ns", ns).short()],
        ),
    }
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::timeline::duration_stats::DurationStats;

    use super::*;

    #[test]
    fn calls_of_several_processes_are_stated_as_their_sum() {
        let sum = |name: &str, processes: u64| CallSum {
            name: name.into(),
            processes,
            ns: DurationStats { count: 30, total: 290_000_000, ..DurationStats::default() },
            before_work_ns: None,
            nested_ns: 0,
        };
        for (name, processes, text) in [
            ("cudaFree_v3020", 1, "CUDA calls in cudaFree: 290 ms in 30 calls."),
            ("hipMemcpy", 0, "HIP calls in hipMemcpy: 290 ms in 30 calls."),
            (
                "cuStreamSynchronize",
                2,
                "CUDA calls in cuStreamSynchronize: 290 ms in 30 calls, summed over 2 processes.",
            ),
        ] {
            let text = format!("The host spends most time of its {text}");
            assert_eq!(longest(&[sum(name, processes)]).unwrap().as_str(), text);
        }
    }

    #[test]
    fn a_part_of_the_call_time_is_of_time_that_nested_calls_do_not_count_twice() {
        let sum = |name: &str, ms: i64, nested_ms: i64| CallSum {
            name: name.into(),
            processes: 1,
            ns: DurationStats { count: 3, total: ms * 1_000_000, ..DurationStats::default() },
            before_work_ns: None,
            nested_ns: nested_ms * 1_000_000,
        };
        for (inner_ms, other_ms, part) in [
            (90, 50, "most time of its CUDA calls"),
            (90, 200, "the largest part of its CUDA call time, 33 %,"),
            (0, 100, "the largest part of its CUDA call time, 50 %,"),
        ] {
            let calls = [
                sum("cudaMemcpy", 100, 0),
                sum("cuMemcpy", inner_ms, inner_ms),
                sum("cudaFree", other_ms, 0),
            ];
            let text = longest(&calls).unwrap();
            let start = format!("The host spends {part} in cudaMemcpy: 100 ms");
            assert!(text.as_str().starts_with(&start), "{}", text.as_str());
        }
        // A function inside itself.
        let text = longest(&[sum("cudaMemcpy", 100, 40)]).unwrap();
        assert!(text.as_str().contains("most time of its CUDA calls"), "{}", text.as_str());
    }

    #[test]
    fn a_majority_is_more_than_half_and_calls_before_the_first_work_are_named_as_such() {
        let sum = |ms: i64, before_ms: Option<i64>| CallSum {
            name: "cudaHostAlloc".into(),
            processes: 1,
            ns: DurationStats { count: 3, total: ms * 1_000_000, ..DurationStats::default() },
            before_work_ns: before_ms.map(|ms| ms * 1_000_000),
            nested_ns: 0,
        };
        let all = [None, Some(0), Some(4), Some(40), Some(100)];
        let ends = [
            "",
            "",
            "",
            ", 40.0 ms of it before the first recorded work",
            ", all before the first recorded work",
        ];
        for (before_ms, end) in all.into_iter().zip(ends) {
            for (other_ms, part) in [
                (0, "most time of its CUDA calls"),
                (99, "most time of its CUDA calls"),
                (100, "the largest part of its CUDA call time, 50 %,"),
                (185, "the largest part of its CUDA call time, 35 %,"),
            ] {
                let other = CallSum { name: "cudaFree".into(), ..sum(other_ms, None) };
                let text = longest(&[sum(100, before_ms), other]).unwrap();
                let expected =
                    format!("The host spends {part} in cudaHostAlloc: 100 ms in 3 calls{end}.");
                assert_eq!(text.as_str(), expected);
            }
        }
    }
}
