//! Headline figures: time to first token, time per token, use of the GPU, energy.

mod busy;

use llmprof_analyze::{
    Analysis,
    ledger::{LedgerRow, LedgerStage},
    power::StagePower,
    requests::LatencyRecord,
    roofline::mfu::{ALL_STAGES, MfuRecord},
    stages::{
        DECODE, PREFILL, StageTiming,
        command::CommandTiming,
        in_sentence,
        repeat_medians::RepeatMedians,
        step_times::{StepTimes, has_one_rate},
    },
    stats::Spread,
    step_batches::{StepBatch, common_batch},
    timeline::gpu::StageGpu,
};
use llmprof_core::trace::engine_steps::StepClass;
use serde::{Deserialize, Serialize, de::IgnoredAny};

pub use self::busy::gpu_busy_pct;
use self::busy::{busy_pct, is_timed, timed_gpus};
use crate::{
    answer::are_outliers_stated,
    format::{decimals, figure, of_interval, of_peak, pct, quantity},
    headline::times::{StatedTime, TimeRecords, rate_words, tokens_of_step},
    profile::Aggregates,
    waits::Waits,
};

/// Time of one token.
const PER_TOKEN: &str = "Per token";
/// Peaks that a rate is a share of.
const SHEET: &str = "the peak of the datasheet";
const GEMM: &str = "a GEMM measured on this device";
const COPY: &str = "a copy measured on this device";
/// Time of one decode step, which makes several tokens or an unknown number.
const DECODE_STEP: &str = "Decode step";

/// One headline figure.
#[derive(Debug, Clone, Serialize)]
pub struct Tile {
    label: &'static str,
    value: String,
    unit: &'static str,
    note: String,
}

/// Fields of a report that the headline needs.
#[derive(Deserialize)]
struct Headline {
    aggregates: HeadlineTimes,
    stages: Vec<StageTiming>,
    mfu: Vec<MfuRecord>,
    #[serde(default)]
    step_times: Vec<StepTimes>,
    #[serde(default)]
    step_batches: Vec<StepBatch>,
    #[serde(default)]
    request_latency: Vec<LatencyRecord>,
    #[serde(default)]
    stage_gpu: Vec<StageGpu>,
    #[serde(default)]
    ledger: Vec<LedgerRow>,
    #[serde(default)]
    ledger_stages: Vec<LedgerStage>,
    #[serde(default)]
    power: Option<HeadlinePower>,
    #[serde(default)]
    only_traced: bool,
    #[serde(default)]
    samples: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(from = "Aggregates")]
struct HeadlineTimes {
    command: Option<CommandTiming>,
    medians: Option<RepeatMedians>,
    first_token: Option<Spread>,
    per_token: Option<Spread>,
    /// Decode steps of each repeat, if all have equally many.
    decode_steps: Option<u64>,
}

impl From<Aggregates> for HeadlineTimes {
    fn from(it: Aggregates) -> Self {
        Self {
            command: it.command,
            medians: it.medians,
            first_token: it.first_token_ms,
            per_token: it.per_token_ms,
            decode_steps: it.decode_steps,
        }
    }
}

#[derive(Deserialize)]
struct HeadlinePower {
    stages: Vec<StagePower>,
}

/// Headline figures.
pub fn tiles(analysis: &Analysis) -> Vec<Tile> {
    let stages = &analysis.stages;
    Headline {
        aggregates: HeadlineTimes {
            command: analysis.command.clone(),
            medians: Some(analysis.samples.medians.stated(stages)),
            first_token: stages.first_token_ms,
            per_token: stages.per_token_ms,
            decode_steps: stages.decode_steps,
        },
        stages: stages.rows.clone(),
        mfu: analysis.mfu.rows.clone(),
        step_times: analysis.step_times.clone(),
        step_batches: analysis.step_batches.clone(),
        request_latency: analysis.requests.latency.clone(),
        stage_gpu: analysis.stage_gpu.totals.clone(),
        ledger: analysis.ledger.rows.clone(),
        ledger_stages: analysis.ledger.stages.clone(),
        power: analysis.power.as_ref().map(|it| HeadlinePower { stages: it.stages.clone() }),
        only_traced: analysis.only_traced,
        samples: analysis.samples.rows.iter().map(|_| IgnoredAny).collect(),
    }
    .tiles()
}

/// Headline figures of a stored `report.json`.
pub fn stored_tiles(report: &[u8]) -> Result<Vec<Tile>, serde_json::Error> {
    Ok(serde_json::from_slice::<Headline>(report)?.tiles())
}

/// MFU over all stages, unless a wait is a part of its time.
pub fn mfu<'a>(rows: &'a [MfuRecord], waits: Waits) -> Option<&'a MfuRecord> {
    rows.iter().find(|row| row.scope == ALL_STAGES).filter(|_| !waits.any())
}

impl Headline {
    fn tiles(&self) -> Vec<Tile> {
        let times = [self.wall(), self.prefill(), self.decode()];
        let tiles = times.into_iter().chain([self.busy(), self.utilisation(), self.energy()]);
        tiles.flatten().collect()
    }

    /// Wall time of a command; a load has latencies in its place.
    fn wall(&self) -> Option<Tile> {
        let it = self.aggregates.command.as_ref().filter(|_| self.request_latency.is_empty())?;
        let (ms, (wall_ms, word)) = (it.plain_ms?, it.wall_ms()?);
        let note = format!("{}{}", over(word, ms.n, "repeat"), range(ms.min, ms.max));
        Some(Tile { label: "Wall time", value: figure(wall_ms), unit: "ms", note })
    }

    fn times(&self) -> TimeRecords<'_> {
        TimeRecords {
            medians: self.aggregates.medians,
            first_token_ms: self.aggregates.first_token,
            per_token_ms: self.aggregates.per_token,
            stages: &self.stages,
            step_times: &self.step_times,
            only_traced: self.only_traced,
            step_batches: &self.step_batches,
            request_latency: &self.request_latency,
            waits: self.waits(),
        }
    }

    const fn waits(&self) -> Waits<'_> {
        Waits { rows: self.ledger.as_slice(), stages: self.ledger_stages.as_slice() }
    }

    fn prefill(&self) -> Option<Tile> {
        match self.times().first_token() {
            Some(time) => Some(self.timed("First token", &time)),
            None => self.step(StepClass::Prefill, "Prefill step"),
        }
    }

    fn decode(&self) -> Option<Tile> {
        match self.times().per_token() {
            None | Some(StatedTime::Batch(_)) => self.step(StepClass::Decode, DECODE_STEP),
            Some(time @ StatedTime::Requests(_)) => Some(self.timed(PER_TOKEN, &time)),
            Some(time) => Some(self.with_rate(self.timed(self.unit_of_decode(), &time), &time)),
        }
    }

    /// The unit of the time of decode, as in its sentence: a token if each step makes one.
    fn unit_of_decode(&self) -> &'static str {
        let row = self.stages.iter().find(|it| it.stage == DECODE);
        let ledger = self.ledger_stages.iter().find(|it| it.stage == DECODE);
        let steps = ledger.map_or(self.aggregates.decode_steps, |it| it.steps);
        let tokens = row.zip(steps).and_then(|(row, steps)| tokens_of_step(row, steps as f64));
        if tokens == Some(1.0) { PER_TOKEN } else { DECODE_STEP }
    }

    fn timed(&self, label: &'static str, time: &StatedTime) -> Tile {
        let traced = if self.only_traced { ", traced" } else { "" };
        let samples = match self.samples.len() {
            0 => String::new(),
            samples => format!(" of {samples} samples"),
        };
        let note = match time {
            StatedTime::Requests(it) => {
                let requests = quantity(it.n, "request");
                format!("median of {requests}; p99 {} ms", figure(it.p99_ms))
            }
            StatedTime::Batch(it) => {
                format!("{} of {}", it.median_word(), quantity(it.steps, "step"))
            }
            StatedTime::Steps(it) => {
                let outliers = match are_outliers_stated(it, self.waits()) {
                    true => format!(" with {}", quantity(it.outliers, "outlier")),
                    false => String::new(),
                };
                let word = it.median_word().trim_start_matches("the ");
                let steps = it.processes.first().map_or(it.ms.n.into(), |slowest| slowest.steps);
                format!("{word} of {}{traced}{outliers}", quantity(steps, "step"))
            }
            StatedTime::Repeats(it) => {
                let noun = if self.only_traced { "instance" } else { "repeat" };
                let of = match it.of_slowest {
                    true => format!("{} of {}", it.word(), quantity(it.n.into(), noun)),
                    false => over(it.word(), it.n, noun),
                };
                format!("{of}{samples}{traced}{}", range(it.min, it.max))
            }
            StatedTime::Mean(it) => {
                let spread = it.std.map(|std| {
                    let [std, _] = of_interval(std, std);
                    let repeats = quantity(self.repeats(it.n).into(), "repeat");
                    format!("deviation {std} over {repeats}{samples}")
                });
                spread.unwrap_or_else(|| "one repeat".into()) + traced
            }
        };
        Tile { label, value: figure(time.ms()), unit: "ms", note }
    }

    /// Repeats of each sample, of `times` measured ones.
    fn repeats(&self, times: u32) -> u32 {
        (times / self.samples.len().max(1) as u32).max(1)
    }

    /// The median of the most common steps of an engine: no mean describes different requests.
    fn step(&self, class: StepClass, label: &'static str) -> Option<Tile> {
        let it = common_batch(self.step_batches.iter().filter(|it| it.class == class))
            .filter(|it| !it.has_unrecorded_waits)?;
        let requests = it.requests.map(|requests| format!(" of {}", quantity(requests, "request")));
        let period = it.apart_period_ms().map(|ms| format!("; one every {} ms", figure(ms)));
        let rate = it.typical_tokens_per_s();
        let rate = rate.map(|rate| format!("; {} tokens/s{}", figure(rate), it.rate_scope()));
        let steps = match it.steps {
            1 => "one step".to_owned(),
            2 => "two alike steps".to_owned(),
            steps => format!("{} of {}", it.median_word(), quantity(steps, "step")),
        };
        let process = it.process_name().map(|name| format!(", {name}, the slowest"));
        let note = format!(
            "{steps}{}{}{}{}{}",
            requests.unwrap_or_default(),
            process.unwrap_or_default(),
            if self.only_traced { ", traced" } else { "" },
            period.unwrap_or_default(),
            rate.unwrap_or_default()
        );
        Some(Tile { label, value: figure(it.p50_ms), unit: "ms", note })
    }

    /// Steps over mean time: the mean of the repeats' rates would favour the fast ones.
    fn with_rate(&self, tile: Tile, time: &StatedTime) -> Tile {
        let decode = self.stages.iter().find(|row| row.stage == DECODE);
        let has_rate = !self.waits().has(DECODE) && has_one_rate(&self.step_times, DECODE);
        let decode = decode.filter(|_| has_rate);
        let steps = self.aggregates.decode_steps.map(|steps| steps as f64);
        let of = match time {
            StatedTime::Steps(it) if it.steps_beyond(decode, steps) >= 0.5 => "whole decodes",
            _ => "decode",
        };
        let rate = decode.and_then(|row| {
            let words = rate_words(row, steps, time.ms());
            Some(format!("; {of} {} tokens/s{words}", figure(row.tokens_per_s?)))
        });
        Tile { note: tile.note + &rate.unwrap_or_default(), ..tile }
    }

    /// Share of the traced stages in which the GPU ran their work.
    fn busy(&self) -> Option<Tile> {
        let stages = || timed_gpus((&self.stages, &self.step_times), &self.stage_gpu);
        let waits = self.waits();
        let share = busy_pct(stages(), waits)?;
        let of_each = stages().filter_map(|it| {
            let share = busy_pct(std::iter::once(it), waits)?;
            Some(format!("{} {}", in_sentence(&it.stage), pct(share)))
        });
        let of_each: Vec<String> = of_each.collect();
        let upper = stages().any(|it| it.busy_is_upper_bound);
        let gpus = stages().map(|it| it.devices).max().filter(|gpus| *gpus > 1);
        let gpus = gpus.map(|gpus| format!("; mean of {gpus} GPUs")).unwrap_or_default();
        let is_without = stages().any(|it| waits.has(&it.stage));
        let without = if is_without { ", without unrecorded waits" } else { "" };
        let is_withheld = |stage: &&str| {
            is_timed(stage, &self.stages, &self.step_times) && stages().all(|it| it.stage != *stage)
        };
        let withheld: Vec<&str> =
            [PREFILL, DECODE].into_iter().filter(is_withheld).map(in_sentence).collect();
        let withheld = match withheld.is_empty() {
            true => String::new(),
            false => format!("; withheld for {}: read the findings", withheld.join(" and ")),
        };
        Some(Tile {
            label: "GPU busy",
            value: format!("{}{}", if upper { "≤ " } else { "" }, number(share)),
            unit: "%",
            note: format!("traced: {}{without}{gpus}{withheld}", of_each.join(", ")),
        })
    }

    /// MFU, or the share of the bandwidth if no peak FLOP/s is known.
    fn utilisation(&self) -> Option<Tile> {
        let row = mfu(&self.mfu, self.waits())?;
        let share = [
            ("MFU", row.datasheet_pct, SHEET, row.flops_per_s, "FLOP/s"),
            ("MFU", row.measured_pct, GEMM, row.flops_per_s, "FLOP/s"),
            ("Bandwidth", row.datasheet_bandwidth_pct, SHEET, row.bytes_per_s, "B/s"),
            ("Bandwidth", row.measured_bandwidth_pct, COPY, row.bytes_per_s, "B/s"),
        ];
        let tile = |(label, share, peak, rate, unit): (_, Option<f64>, &str, Option<f64>, &str)| {
            let share = share.filter(|it| *it > 0.0)?;
            let note = format!("{}, {peak}{}", of_peak(rate?, share, unit), self.mfu_base());
            Some(Tile { label, value: number(share), unit: "%", note })
        };
        share.into_iter().find_map(tile)
    }

    /// The instances that rates over all stages are of, if a capture has more of one stage.
    fn mfu_base(&self) -> String {
        let counts = || self.stages.iter().map(|it| it.ms.n);
        if !self.only_traced || counts().min() == counts().max() {
            return String::new();
        }
        let is_step = |name: &str| {
            self.ledger_stages.iter().any(|it| it.stage == name && it.steps == Some(1))
        };
        let of_each = self.stages.iter().map(|it| {
            let step = if is_step(&it.stage) { " step" } else { "" };
            format!("one mean {}{step}", in_sentence(&it.stage))
        });
        format!("; over {}", of_each.collect::<Vec<_>>().join(" and "))
    }

    fn energy(&self) -> Option<Tile> {
        let decode = self.power.as_ref()?.stages.iter().find(|it| it.stage == DECODE)?;
        let of_gpus = match decode.gpus {
            1 => String::new(),
            gpus => format!(" on {gpus} GPUs"),
        };
        let watts = decode.mean_w.map(|watts| format!("decode, {} W{of_gpus}", decimals(watts, 0)));
        Some(Tile {
            label: "Energy per token",
            value: decimals(decode.joules_per_token?, 3),
            unit: "J",
            note: watts.unwrap_or_else(|| "decode".into()),
        })
    }
}

/// The name of a figure with the number of repeats or instances that it is over.
fn over(word: &str, n: u32, noun: &str) -> String {
    match n {
        1 => format!("one {noun}"),
        n => format!("{word} of {}", quantity(n.into(), noun)),
    }
}

/// The least and the longest time, unless they read the same.
fn range(min: f64, max: f64) -> String {
    let [min, max] = [figure(min), figure(max)];
    if min == max { String::new() } else { format!(", {min} to {max} ms") }
}

/// A percentage without its sign.
fn number(share: f64) -> String {
    pct(share).trim_end_matches(" %").to_owned()
}

#[cfg(test)]
pub(crate) mod tests;
