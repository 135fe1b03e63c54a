//! Figures that stand for a run in lists, series and gates and at the head of its page: each the
//! median over the repeats. For an even number it is the lower median, as for steps; for two
//! repeats it is their mean, and is called the mean. A rate is the higher median: the rate of the
//! repeat with the median time.
//!
//! A repeat of several samples is all of them: its time is the mean over the samples, so that a
//! stage never takes longer than the repeat that it is a part of. Samples differ by their content
//! and are not repeats of each other.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::domain::{median::median_name, units::Nanos};
use serde::{Deserialize, Serialize};

use super::{
    DECODE, PREFILL, Stages, apart, per_repeat, step_times::words_of_slowest, steps_per_repeat,
    wall_times,
};
use crate::{
    events::Events,
    stats::{Spread, has_two_halves, ratio, stated_median},
};

/// A figure over repeats; the containing field's name has the unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RepeatMedian {
    /// The median: of an even number, the lower of the two in the middle, of rates the higher; of
    /// two repeats, their mean.
    #[cfg_attr(feature = "schema", schema(example = 12.5))]
    pub p50: f64,
    pub min: f64,
    pub max: f64,
    /// Number of repeats: instances of a capture.
    #[cfg_attr(feature = "schema", schema(example = 3))]
    pub n: u32,
    /// True if the two in the middle of an even number differ by more than 5 %: `p50` is called the
    /// lower median. Absent if not, of two repeats, and of rates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_two_halves: bool,
    /// True if the figure is of the slowest process of a capture whose processes differ; absent if
    /// it is of all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_slowest: bool,
}

/// The name of the figure that stands for `n` repeats: two have no median.
pub const fn statistic(n: u32, has_two_halves: bool) -> &'static str {
    if n == 2 { "mean" } else { median_name(has_two_halves) }
}

impl RepeatMedian {
    /// Summarises the finite values; `None` without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().filter(|it| it.is_finite()).collect();
        let Spread { min, max, n, .. } = Spread::of(values.iter().copied())?;
        let p50 = stated_median(values.iter().copied())?;
        let has_two_halves = has_two_halves(values);
        Some(Self { p50, min, max, n, has_two_halves, of_slowest: false })
    }

    /// The median rate: of the repeat that has the median time, if repeats do the same work.
    fn of_rates(rates: impl IntoIterator<Item = f64>) -> Option<Self> {
        let Self { p50, min, max, n, .. } = Self::of(rates.into_iter().map(|it| -it))?;
        let (min, max) = (-max, -min);
        Some(Self { p50: -p50, min, max, n, has_two_halves: false, of_slowest: false })
    }

    /// The name of the figure.
    pub fn word(&self) -> &'static str {
        match self.of_slowest {
            true => {
                let words = words_of_slowest(self.n.into(), self.has_two_halves);
                words.trim_start_matches("the ")
            }
            false => statistic(self.n, self.has_two_halves),
        }
    }
}

/// The figures of a run; `null` if not measured, or in reports of earlier versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RepeatMedians {
    /// Time to first token: the time of prefill.
    #[serde(default)]
    pub ttft_ms: Option<RepeatMedian>,
    /// Time per output token of a sequence: decode time over decode steps, of whole decodes, or of
    /// the recorded parts if the recording cuts every decode.
    #[serde(default)]
    pub tpot_ms: Option<RepeatMedian>,
    /// From the start of the first stage to the end of the last.
    #[serde(default)]
    pub wall_ms: Option<RepeatMedian>,
    /// Generated tokens of all sequences per second of wall time.
    #[serde(default)]
    pub tokens_per_s: Option<RepeatMedian>,
}

impl RepeatMedians {
    /// The medians of a run without the figures that its stages leave out.
    pub fn stated(self, stages: &Stages) -> Self {
        Self {
            ttft_ms: self.ttft_ms.filter(|_| stages.first_token_ms.is_some()),
            tpot_ms: self.tpot_ms.filter(|_| stages.per_token_ms.is_some()),
            wall_ms: self.wall_ms.filter(|_| stages.wall_ms.is_some()),
            tokens_per_s: self.tokens_per_s.filter(|_| stages.tokens_per_s.is_some()),
        }
    }
}

/// A part and its whole, in one repeat of one sample.
type Parts = (f64, f64);

/// The repeats of the slowest process, by stages whose processes differ.
pub type SlowestRepeats = BTreeMap<&'static str, BTreeSet<u32>>;

/// The medians over the repeats of a pass; of a stage in `slowest`, over these repeats.
pub fn repeat_medians(events: &Events, slowest: &SlowestRepeats) -> RepeatMedians {
    let times = |stage: &str| {
        let mut times = per_repeat(events, stage);
        times.retain(|repeat, _| slowest.get(stage).is_none_or(|it| it.contains(repeat)));
        times
    };
    let figure = |stage: &str, values: Vec<f64>| {
        let of_slowest = slowest.contains_key(stage);
        Some(RepeatMedian { of_slowest, ..RepeatMedian::of(values)? })
    };
    let (cut, whole) = apart(events, times(DECODE));
    let decode = if whole.is_empty() { cut } else { whole };
    let steps = steps_per_repeat(events);
    let over_steps = |(repeat, time): (u32, Nanos)| {
        let steps = *steps.get(&repeat).filter(|_| events.has_one_token_a_step())?;
        Some((repeat, (time.as_ms(), steps as f64)))
    };
    let walls = wall_times(events);
    // The first token of each sequence is one of prefill.
    let over_wall = |(repeat, time): (&u32, &Nanos)| {
        let steps = *steps.get(repeat)?;
        let made = events.generated(*repeat, steps)?;
        Some((*repeat, ((made + made / steps.max(1)) as f64, time.as_secs())))
    };
    let whole_ms = |(repeat, time): (u32, Nanos)| (repeat, (time.as_ms(), 1.0));
    RepeatMedians {
        ttft_ms: figure(PREFILL, of_repeats(events, times(PREFILL).into_iter().map(whole_ms))),
        tpot_ms: figure(DECODE, of_repeats(events, decode.into_iter().filter_map(over_steps))),
        tokens_per_s: RepeatMedian::of_rates(of_repeats(
            events,
            walls.iter().filter_map(over_wall),
        )),
        wall_ms: RepeatMedian::of(of_repeats(events, walls.into_iter().map(whole_ms))),
    }
}

/// All parts over their wholes, of each repeat that has all samples.
fn of_repeats(events: &Events, parts: impl Iterator<Item = (u32, Parts)>) -> Vec<f64> {
    let mut repeats: BTreeMap<u32, (Parts, usize)> = BTreeMap::new();
    for (repeat, (part, whole)) in parts {
        let sample = events.samples.iter().find(|it| it.contains(repeat));
        let number = sample.map_or(repeat, |it| repeat - it.first_repeat);
        let (sum, samples) = repeats.entry(number).or_default();
        *sum = (sum.0 + part, sum.1 + whole);
        *samples += 1;
    }
    let samples = events.samples.len().max(1);
    let whole = repeats.into_values().filter(|it| it.1 == samples);
    whole.filter_map(|((part, whole), _)| ratio(part, whole)).collect()
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::event::{DECODE_STEP, Event, SampleStart, StageRange};
    use proptest::prelude::*;

    use super::*;
    use crate::{stages::step_times::StepTimes, stats::lower_median};

    fn range(name: &str, repeat: u32, (start, end): (i64, i64), step: Option<u32>) -> Event {
        Event::Range(StageRange {
            name: name.into(),
            start_ns: start,
            end_ns: end,
            device_ns: None,
            warmup: false,
            repeat,
            step,
        })
    }

    /// Repeats of a prefill and a decode of two steps, each of these lengths, by sample.
    fn events(samples: &[Vec<(i64, i64)>]) -> Vec<Event> {
        let (mut found, mut at, mut repeat) = (vec![], 0, 0);
        for (sample, repeats) in (0..).zip(samples) {
            if samples.len() > 1 {
                found.push(Event::Sample(SampleStart {
                    sample,
                    first_repeat: repeat,
                    repeats: repeats.len() as u32,
                    prompt_tokens: 10,
                    image_tokens: 0,
                    images: vec![],
                }));
            }
            for (prefill, decode) in repeats {
                let (from, middle) = (at + prefill, at + prefill + decode / 2);
                at = from + decode;
                found.push(range(PREFILL, repeat, (from - prefill, from), None));
                found.push(range(DECODE, repeat, (from, at), None));
                found.push(range(DECODE_STEP, repeat, (from, middle), Some(0)));
                found.push(range(DECODE_STEP, repeat, (middle, at), Some(1)));
                repeat += 1;
            }
        }
        found
    }

    fn of(samples: &[Vec<(i64, i64)>]) -> RepeatMedians {
        repeat_medians(&Events::of(&events(samples)), &SlowestRepeats::new())
    }

    #[test]
    fn one_two_and_many_repeats_have_the_same_statistic() {
        let ms = 1_000_000;
        for (times, expected) in [
            (&[8][..], (8.0, 8.0, 8.0, 1)),
            (&[8, 10], (9.0, 8.0, 10.0, 2)),
            (&[8, 10, 90], (10.0, 8.0, 90.0, 3)),
        ] {
            let repeats: Vec<(i64, i64)> = times.iter().map(|it| (it * ms, 2 * it * ms)).collect();
            let found = of(&[repeats]);
            for it in [found.ttft_ms, found.tpot_ms] {
                let it = it.unwrap();
                assert_eq!((it.p50, it.min, it.max, it.n), expected);
            }
        }
    }

    #[test]
    fn the_figure_is_the_mean_of_two_and_a_measured_repeat_of_others() {
        for (times, p50, word) in [
            (&[8.0][..], 8.0, "median"),
            (&[8.0, 10.0], 9.0, "mean"),
            (&[1.0, 90.0], 45.5, "mean"),
            (&[8.0, 10.0, 90.0], 10.0, "median"),
            (&[8.0, 9.0, 9.1, 90.0], 9.0, "median"),
            (&[1.0, 1.0, 1.9, 1.9], 1.0, "lower median"),
            (&[8.0, 9.0, 80.0, 90.0], 9.0, "lower median"),
            (&[8.0, 9.0, 10.0, 70.0, 80.0, 90.0], 10.0, "lower median"),
            (&[8.0, 9.0, 70.0, 80.0, 90.0], 70.0, "median"),
        ] {
            let it = RepeatMedian::of(times.iter().copied()).unwrap();
            assert_eq!((it.p50, it.word()), (p50, word), "{times:?}");
        }
    }

    #[test]
    fn samples_are_not_repeats_of_each_other() {
        let ms = 1_000_000;
        let sample = |times: [i64; 3]| times.map(|it| (it * ms, 4 * ms)).to_vec();
        let found = of(&[sample([1, 1, 1]), sample([100, 103, 106]), sample([100, 103, 106])]);
        let it = found.ttft_ms.unwrap();
        assert_eq!((it.n, it.p50.round(), it.min.round(), it.max.round()), (3, 69.0, 67.0, 71.0));
        // A repeat that lacks a sample is of other work.
        let short = of(&[sample([1, 1, 1]), sample([100, 103, 106])[..2].to_vec()]);
        assert_eq!(short.ttft_ms.unwrap().n, 2);
    }

    proptest! {
        #[test]
        fn the_median_rate_is_of_the_repeat_with_the_median_time(
            times in prop::collection::vec(1.0..100.0_f64, 3..9),
        ) {
            let of_times = RepeatMedian::of(times.iter().copied()).unwrap();
            let of_rates = RepeatMedian::of_rates(times.iter().map(|ms| 1e3 / ms)).unwrap();
            for (rate, ms) in [
                (of_rates.p50, of_times.p50),
                (of_rates.min, of_times.max),
                (of_rates.max, of_times.min),
            ] {
                prop_assert!((rate * ms / 1e3 - 1.0).abs() < 1e-9, "{} {}", rate, ms);
            }
            prop_assert_eq!((of_rates.n, of_rates.word()), (of_times.n, "median"));
        }

        #[test]
        fn repeats_have_the_median_and_the_name_of_steps_with_these_times(
            times in prop::collection::vec(1.0..100.0_f64, 3..9),
        ) {
            let it = RepeatMedian::of(times.iter().copied()).unwrap();
            let steps = serde_json::json!({
                "stage": PREFILL, "ms": Spread::of(times.iter().copied()), "excess_ms": 0.0,
                "p50_ms": lower_median(times.iter().copied()), "outliers": 0, "longest": [],
                "has_two_halves": has_two_halves(times.iter().copied())
            });
            let steps: StepTimes = serde_json::from_value(steps).unwrap();
            prop_assert_eq!(Some(it.p50), steps.median_ms());
            prop_assert_eq!(it.word(), steps.median_word().trim_start_matches("the "));
        }

        #[test]
        fn a_stage_never_takes_longer_than_its_repeat(
            samples in (1usize..5, 1usize..5).prop_flat_map(|(samples, repeats)| {
                let times = (1i64..1_000_000, 2i64..1_000_000);
                prop::collection::vec(prop::collection::vec(times, repeats), samples)
            }),
        ) {
            let found = of(&samples);
            let (ttft, wall) = (found.ttft_ms.unwrap(), found.wall_ms.unwrap());
            prop_assert_eq!((ttft.n, wall.n), (samples[0].len() as u32, samples[0].len() as u32));
            prop_assert!(ttft.p50 <= wall.p50, "{:?} {:?}", ttft, wall);
            prop_assert!(2.0 * found.tpot_ms.unwrap().p50 <= wall.p50 + 1e-9);
        }
    }
}
