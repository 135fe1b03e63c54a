//! Times of each sample of a run with several, and their spread over samples apart from that over
//! repeats.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::units::Nanos,
    trace::{
        event::{SampleStart, StageRange},
        interval::extended,
    },
};
use serde::{Deserialize, Serialize};

use super::{
    events::Events,
    stages::{
        DECODE, PREFILL, STAGES,
        repeat_medians::{RepeatMedians, SlowestRepeats, repeat_medians},
    },
    stats::Spread,
};

/// Name of the sum of all stages.
pub const WALL: &str = "wall";

/// Times of one sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampleTiming {
    /// Index, from 0.
    #[cfg_attr(feature = "schema", schema(example = 0))]
    pub sample: u32,
    pub prompt_tokens: u64,
    /// Part of `prompt_tokens`.
    pub image_tokens: u64,
    pub images: u64,
    /// Milliseconds per repeat, as the next two.
    pub prefill_ms: Option<Spread>,
    pub decode_ms: Option<Spread>,
    /// From the start of the first stage to the end of the last.
    pub wall_ms: Spread,
    /// The longest mean wall time.
    pub slowest: bool,
}

/// Spread of one stage over the samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampleSpread {
    /// A stage, or `wall` for all.
    #[cfg_attr(feature = "schema", schema(example = "prefill"))]
    pub stage: String,
    /// Spread of the samples' mean times, milliseconds.
    pub over_samples_ms: Spread,
    /// Deviation of repeats from the mean of their sample, pooled over the samples, milliseconds:
    /// `sqrt(mean(std^2))`; `null` for single repeats.
    pub over_repeats_std_ms: Option<f64>,
    /// The sample with the longest mean time.
    pub slowest_sample: u32,
}

/// Times by sample, empty for a run with one, and medians over the passes of all samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    pub rows: Vec<SampleTiming>,
    pub spreads: Vec<SampleSpread>,
    pub medians: RepeatMedians,
}

/// Times of each sample in the events of one pass.
pub fn samples(events: &Events) -> Samples {
    let mut rows: Vec<SampleTiming> =
        events.samples.iter().filter_map(|sample| row(events, sample)).collect();
    let slowest = slowest(rows.iter().map(|row| (row.sample, row.wall_ms)));
    rows.iter_mut().for_each(|row| row.slowest = slowest == Some(row.sample));
    let of = |stage: &str, time: fn(&SampleTiming) -> Option<Spread>| {
        let times: Vec<(u32, Spread)> =
            rows.iter().filter_map(|row| Some((row.sample, time(row)?))).collect();
        spread(stage, &times)
    };
    let spreads = [
        of(PREFILL, |row| row.prefill_ms),
        of(DECODE, |row| row.decode_ms),
        of(WALL, |row| Some(row.wall_ms)),
    ];
    let spreads = spreads.into_iter().flatten().collect();
    Samples { rows, spreads, medians: repeat_medians(events, &SlowestRepeats::new()) }
}

fn row(events: &Events, about: &SampleStart) -> Option<SampleTiming> {
    let own = |range: &&StageRange| about.contains(range.repeat);
    let stage = |name: &str| {
        let mut times: BTreeMap<u32, Nanos> = BTreeMap::new();
        for range in events.measured(name).filter(own) {
            *times.entry(range.repeat).or_default() += Nanos(range.end_ns - range.start_ns);
        }
        Spread::of(times.into_values().map(Nanos::as_ms))
    };
    let mut walls: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
    for range in STAGES.iter().flat_map(|name| events.measured(name)).filter(own) {
        let wall = walls.entry(range.repeat).or_insert((range.start_ns, range.end_ns));
        *wall = extended(Some(*wall), (range.start_ns, range.end_ns));
    }
    let walls = walls.into_values().map(|(start, end)| Nanos(end - start).as_ms());
    Some(SampleTiming {
        sample: about.sample,
        prompt_tokens: about.prompt_tokens,
        image_tokens: about.image_tokens,
        images: about.images.len() as u64,
        prefill_ms: stage(PREFILL),
        decode_ms: stage(DECODE),
        wall_ms: Spread::of(walls)?,
        slowest: false,
    })
}

fn slowest(times: impl Iterator<Item = (u32, Spread)>) -> Option<u32> {
    times.max_by(|a, b| a.1.mean.total_cmp(&b.1.mean)).map(|(sample, _)| sample)
}

fn spread(stage: &str, times: &[(u32, Spread)]) -> Option<SampleSpread> {
    let squares: Option<Vec<f64>> =
        times.iter().map(|(_, ms)| ms.std.map(|std| std * std)).collect();
    let mean = squares.and_then(Spread::of).map(|squares| squares.mean.sqrt());
    Some(SampleSpread {
        stage: stage.to_owned(),
        over_samples_ms: Spread::of(times.iter().map(|(_, ms)| ms.mean))?,
        over_repeats_std_ms: mean,
        slowest_sample: slowest(times.iter().copied())?,
    })
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::event::Event;

    use super::*;

    fn range(repeat: u32, start: i64, ms: i64) -> Event {
        Event::Range(StageRange {
            name: PREFILL.into(),
            start_ns: start * 1_000_000,
            end_ns: (start + ms) * 1_000_000,
            device_ns: None,
            warmup: false,
            repeat,
            step: None,
        })
    }

    fn start(sample: u32) -> Event {
        Event::Sample(SampleStart {
            sample,
            first_repeat: sample * 2,
            repeats: 2,
            prompt_tokens: 10 + u64::from(sample),
            image_tokens: 0,
            images: vec![],
        })
    }

    #[test]
    fn the_spread_over_samples_is_not_mixed_with_that_over_repeats() {
        let events = [
            start(0),
            range(0, 0, 10),
            range(1, 100, 12),
            start(1),
            range(2, 200, 50),
            range(3, 300, 52),
        ];
        let found = samples(&Events::of(&events));
        let means: Vec<f64> = found.rows.iter().map(|row| row.wall_ms.mean).collect();
        assert_eq!(means, [11.0, 51.0]);
        assert_eq!((found.rows[0].slowest, found.rows[1].slowest), (false, true));
        let prefill = &found.spreads[0];
        assert_eq!((prefill.over_samples_ms.mean, prefill.over_samples_ms.n), (31.0, 2));
        assert!((prefill.over_repeats_std_ms.unwrap() - 2f64.sqrt()).abs() < 1e-9);
        assert_eq!((prefill.slowest_sample, found.spreads.len()), (1, 2), "no decode");
        let one = samples(&Events::of(&events[1..3]));
        assert!(one.rows.is_empty() && one.spreads.is_empty());
    }
}
