//! Shares of the stages in all time of a capture, over all instances, with the time outside them.

use std::collections::BTreeMap;

use llmprof_core::{domain::units::Nanos, trace::timeline::process_of};
use serde::{Deserialize, Serialize};

use super::{
    activity::{Activity, activities},
    capture::Capture,
    interval::{Interval, IntervalSet, covered_ns, extended},
    stage_spans::stage_spans,
    step_states::LEFT_OUT,
};
use crate::{kernels::StageKernels, stats::percent};

/// Name of the row of the time outside all stages.
pub const OUTSIDE_STAGES: &str = "outside all stages";

/// All time of one stage in a capture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageShare {
    /// A stage, the warm-up, steps that are left out, or the time outside them.
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// Instances of the stage (each step of an engine is one); `null` outside all stages.
    pub instances: Option<u64>,
    /// Wall time in which at least one instance was open or its work ran; of steps that are left
    /// out, the part that no other stage has. If ranks have traces of their own, whose clocks may
    /// differ, the mean over the traces.
    pub wall_ms: f64,
    /// Share of the wall time of the capture, from its first range or work to its last, percent.
    pub wall_share_pct: Option<f64>,
    /// Time in which devices ran its work, summed over devices; `null` if unknown.
    pub device_ms: Option<f64>,
    /// Share of the capture's device time, percent.
    pub device_share_pct: Option<f64>,
    /// Outside all stages: the part of `wall_ms` before the first stage starts, and the part after
    /// the last one has ended.
    #[serde(default)]
    pub before_ms: Option<f64>,
    #[serde(default)]
    pub after_ms: Option<f64>,
}

/// Wall time of the stages of a capture.
#[derive(Debug, Default)]
pub struct StageWalls {
    /// Instances by label.
    instances: BTreeMap<String, u64>,
    /// Those with stages.
    clocks: Vec<ClockWalls>,
    /// True without calls of the host: which stage launched work is unknown.
    is_work_unknown: bool,
}

/// Wall time by the clock of one trace: ranks record a trace each.
#[derive(Debug, Default)]
struct ClockWalls {
    /// Intervals by label, and then their covered time.
    parts: BTreeMap<usize, Vec<Interval>>,
    stages: BTreeMap<String, i64>,
    /// First to last range, or work on the clock of the ranges.
    window: Option<Interval>,
    /// Covered by any stage.
    covered_ns: i64,
    /// First start and last end of all stages.
    covered: Option<Interval>,
}

impl ClockWalls {
    fn extend(&mut self, it: Interval) {
        self.window = Some(extended(self.window, it));
    }

    /// Sums the parts of the stages of these names.
    fn finish(mut self, labels: &[String]) -> Self {
        let parts = std::mem::take(&mut self.parts);
        let all = || parts.values().flatten().copied();
        let others = parts.iter().filter(|it| labels[*it.0] != LEFT_OUT);
        let others = covered_ns(others.flat_map(|it| it.1.iter().copied()));
        self.covered = all().fold(None, |all, it| Some(extended(all, it)));
        self.covered_ns = covered_ns(all());
        let stage = |(label, parts): (&usize, &Vec<Interval>)| {
            let wall = match labels[*label].as_str() {
                LEFT_OUT => self.covered_ns - others,
                _ => covered_ns(parts.iter().copied()),
            };
            (labels[*label].clone(), wall)
        };
        self.stages = parts.iter().map(stage).collect();
        self
    }

    fn window_ns(&self) -> i64 {
        self.window.map_or(0, |(first, last)| last - first)
    }

    /// Time before the first stage, and after the last one.
    fn around_ns(&self) -> Option<[i64; 2]> {
        let ((first, last), (from, to)) = self.window.zip(self.covered)?;
        Some([from - first, last - to])
    }
}

/// The wall time of all stages; none if only a part of the capture counts.
pub fn stage_walls(capture: &Capture) -> StageWalls {
    let trace = capture.trace;
    if trace.rules.narrowed() {
        return StageWalls::default();
    }
    let clock = |place: i64| trace.collectives.file(process_of(place));
    let labels = &capture.stages.labels;
    let mut instances: BTreeMap<String, u64> = BTreeMap::new();
    let mut clocks: BTreeMap<u32, ClockWalls> = BTreeMap::new();
    for (it, span) in capture.stages.instances.iter().zip(&stage_spans(capture)) {
        let walls = clocks.entry(clock(it.place)).or_default();
        walls.extend(*span);
        if it.start_ns < it.end_ns {
            let (place, range) = it.key();
            let taken_out = IntervalSet::new(capture.stages.states.inside(place, range));
            *instances.entry(labels[it.label].clone()).or_default() += 1;
            walls.parts.entry(it.label).or_default().extend(taken_out.outside(*span));
        }
    }
    for it in &trace.ranges {
        let times = (it.start_ns, it.end_ns.unwrap_or(it.start_ns));
        clocks.entry(clock(it.global_tid)).or_default().extend(times);
    }
    let is_placed = |it: &Activity| trace.has_common_clock(it.process, it.device);
    for it in activities(capture).filter(is_placed) {
        clocks.entry(clock(it.process)).or_default().extend((it.start_ns, it.end_ns));
    }
    let clocks = clocks.into_values().filter(|it| !it.parts.is_empty());
    StageWalls {
        instances,
        clocks: clocks.map(|it| it.finish(labels)).collect(),
        is_work_unknown: trace.cuda_calls.is_empty(),
    }
}

/// A row of each stage, longest first, and of the time outside them; none without stages.
pub fn stage_shares(walls: &StageWalls, kernels: &[StageKernels]) -> Vec<StageShare> {
    if walls.clocks.is_empty() {
        return vec![];
    }
    let sum = |of: &dyn Fn(&ClockWalls) -> i64| walls.clocks.iter().map(of).sum::<i64>();
    let mean_ms = |sum: i64| Nanos(sum).as_ms() / walls.clocks.len() as f64;
    let whole = sum(&ClockWalls::window_ns);
    let is_unknown = walls.is_work_unknown && !kernels.is_empty();
    let device = |stage: &str| match kernels.iter().find(|it| it.stage == stage) {
        _ if is_unknown => None,
        Some(it) => it.busy_ms,
        None => Some(0.0),
    };
    // The time of steps that are left out may be unknown, and is then no part of the sum.
    let is_summed = |it: &&StageKernels| it.stage != LEFT_OUT || it.busy_ms.is_some();
    let total: Option<f64> = kernels.iter().filter(is_summed).map(|it| it.busy_ms).sum();
    let total = total.filter(|_| !is_unknown);
    let row =
        |stage: &str, instances: Option<u64>, wall_ns: i64, device_ms: Option<f64>| StageShare {
            stage: stage.to_owned(),
            instances,
            wall_ms: mean_ms(wall_ns),
            wall_share_pct: percent(wall_ns as f64, whole as f64),
            device_ms,
            device_share_pct: device_ms.zip(total).and_then(|(part, all)| percent(part, all)),
            before_ms: None,
            after_ms: None,
        };
    let stages = walls.instances.iter().map(|(stage, count)| {
        let ns = sum(&|it: &ClockWalls| it.stages.get(stage).copied().unwrap_or(0));
        row(stage, Some(*count), ns, device(stage))
    });
    let mut rows: Vec<StageShare> = stages.collect();
    rows.sort_by(|a, b| b.wall_ms.total_cmp(&a.wall_ms));
    let named = kernels.iter().filter(is_summed);
    let named = named.filter(|it| walls.instances.contains_key(&it.stage));
    let inside: Option<f64> = named.map(|it| it.busy_ms).sum();
    let outside = total.zip(inside).map(|(all, inside)| (all - inside).max(0.0));
    let around = |at: usize| {
        let each = walls.clocks.iter().map(|it| it.around_ns().map(|it| it[at]));
        each.sum::<Option<i64>>().map(mean_ms)
    };
    rows.push(StageShare {
        before_ms: around(0),
        after_ms: around(1),
        ..row(OUTSIDE_STAGES, None, whole - sum(&|it: &ClockWalls| it.covered_ns), outside)
    });
    rows
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{clocks::UnequalClock, collectives::ProcessRank, timeline::Timeline};

    use super::*;
    use crate::kernels::{kernels, tests::capture};

    fn of(sketch: &str) -> Vec<(String, Option<u64>, i64, i64)> {
        let trace = capture(sketch);
        let capture = Capture::of(&trace);
        let rows = stage_shares(&stage_walls(&capture), &kernels(&capture).stages);
        let ns = |ms: f64| (ms * 1e6).round() as i64;
        let row =
            |it: StageShare| (it.stage, it.instances, ns(it.wall_ms), ns(it.device_ms.unwrap()));
        rows.into_iter().map(row).collect()
    }

    #[test]
    fn all_time_of_a_capture_is_of_a_stage_or_outside_all() {
        let rows = of("range 1 prefill 0..100\nrange 1 decode_all 200..300
             range 1 decode_all 300..400\nrange 1 other 0..1000
             call 1 1 10..11\ncall 1 2 210..211\ncall 1 3 310..311\ncall 1 4 500..501
             kernel 1 a 20..60 7\nkernel 2 b 220..250 7\nkernel 3 b 320..350 7
             kernel 4 c 510..530 7");
        let expected = [
            ("decode_all", Some(2), 200, 60),
            ("prefill", Some(1), 100, 40),
            (OUTSIDE_STAGES, None, 700, 20),
        ];
        assert_eq!(rows, expected.map(|it| (it.0.to_owned(), it.1, it.2, it.3)));
        assert!(of("range 1 other 0..10").is_empty());
    }

    #[test]
    fn work_on_another_clock_makes_the_capture_no_longer() {
        let mut trace = capture(
            "range 1 prefill 0..80\nrange 1 other 0..100\ncall 1 1 10..11\nkernel 1 a 900..940 7",
        );
        let wall = |trace: &Timeline| {
            let capture = Capture::of(trace);
            let rows = stage_shares(&stage_walls(&capture), &kernels(&capture).stages);
            let outside = rows.last().unwrap();
            [outside.wall_ms, outside.after_ms.unwrap()].map(|ms| (ms * 1e6).round() as i64)
        };
        assert_eq!(wall(&trace)[1], 0, "prefill lasts until its work has ended");
        let process = process_of(trace.ranges[0].global_tid);
        trace.unequal_clocks = vec![UnequalClock { process, device: 0 }];
        assert_eq!(wall(&trace), [20, 20]);
    }

    #[test]
    fn wall_time_does_not_depend_on_the_distance_of_the_clocks_of_ranks() {
        let of = |offset: i64| {
            let at = |ns: i64| ns + offset;
            let second = format!(
                "range {other} decode_all {}..{}\nrange {other} other {}..{}",
                at(0),
                at(60),
                at(0),
                at(100),
                other = 1_i64 << 40
            );
            let mut trace =
                capture(&format!("range 1 decode_all 0..60\nrange 1 other 0..100\n{second}"));
            for it in &trace.ranges {
                let process = process_of(it.global_tid);
                let file = u32::from(process > 1 << 40);
                let rank = ProcessRank { file, ..ProcessRank::default() };
                trace.collectives.processes.insert(process, rank);
            }
            let capture = Capture::of(&trace);
            let rows = stage_shares(&stage_walls(&capture), &kernels(&capture).stages);
            let ns = |ms: f64| (ms * 1e6).round() as i64;
            let row = |it: &StageShare| (ns(it.wall_ms), it.wall_share_pct, it.after_ms.map(ns));
            rows.iter().map(row).collect::<Vec<_>>()
        };
        let expected = [(60, Some(60.0), None), (40, Some(40.0), Some(40))];
        for offset in [0, 7, 3_600_000_000_000] {
            assert_eq!(of(offset), expected, "{offset}");
        }
    }

    #[test]
    fn without_calls_the_stage_of_work_is_unknown() {
        let trace = capture("range 1 prefill 0..10\nkernel 1 a 2..8 7");
        let capture = Capture::of(&trace);
        let rows = stage_shares(&stage_walls(&capture), &kernels(&capture).stages);
        let device: Vec<_> = rows.iter().map(|it| (it.device_ms, it.device_share_pct)).collect();
        assert_eq!(device, [(None, None); 2]);
    }
}
