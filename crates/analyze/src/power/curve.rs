//! Power and SM clock over time, thinned for a figure.

use llmprof_core::trace::power::PowerSample;

use super::readings::highest;
use crate::{events::Events, stages::STAGES};

/// Max points of a curve: enough for a figure of a thousand pixels.
pub const MAX_POINTS: usize = 400;

/// Power over time; seconds count from the first sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PowerCurve {
    pub seconds: f64,
    /// Time and highest power of each part of the curve.
    pub points: Vec<(f64, f64)>,
    /// Time and lowest SM clock of each part of the curve, MHz.
    pub sm_mhz: Vec<(f64, f64)>,
    /// Time and highest memory in use of each part of the curve, GB (10^9 bytes).
    pub memory_gb: Vec<(f64, f64)>,
    pub bands: Vec<StageBand>,
}

/// Time in which a stage ran.
#[derive(Debug, Clone, PartialEq)]
pub struct StageBand {
    pub stage: &'static str,
    pub warmup: bool,
    pub from_s: f64,
    pub to_s: f64,
}

/// The curves in at most [`MAX_POINTS`] points: each has the highest power and the lowest clock of
/// its part, so that peaks and drops stay visible.
pub fn curve(samples: &[PowerSample], events: &Events) -> PowerCurve {
    let Some((first, last)) = samples.first().zip(samples.last()) else {
        return PowerCurve::default();
    };
    let seconds = |t: i64| (t - first.t_ns) as f64 / 1e9;
    let parts = || samples.chunks(samples.len().div_ceil(MAX_POINTS).max(1));
    let points = parts()
        .filter_map(|part| Some((seconds(part.first()?.t_ns), highest(part.iter())?)))
        .collect();
    let lowest = |part: &[PowerSample]| part.iter().filter_map(|it| it.sm_mhz).min().map(f64::from);
    let sm_mhz =
        parts().filter_map(|part| Some((seconds(part.first()?.t_ns), lowest(part)?))).collect();
    let used = |part: &[PowerSample]| {
        part.iter().filter_map(|it| it.memory_used_bytes).max().map(|bytes| bytes as f64 / 1e9)
    };
    let memory_gb =
        parts().filter_map(|part| Some((seconds(part.first()?.t_ns), used(part)?))).collect();
    let bands = STAGES.iter().flat_map(|stage| {
        let ranges = events.ranges.iter().filter(move |it| it.name == *stage);
        ranges.map(move |it| StageBand {
            stage,
            warmup: it.warmup,
            from_s: seconds(it.start_ns.max(first.t_ns)),
            to_s: seconds(it.end_ns.min(last.t_ns)),
        })
    });
    let steady = events.steady.iter().filter_map(|it| {
        let stage = STAGES.iter().find(|stage| **stage == it.stage)?;
        let (from_s, to_s) =
            (seconds(it.start_ns.max(first.t_ns)), seconds(it.end_ns.min(last.t_ns)));
        Some(StageBand { stage, warmup: false, from_s, to_s })
    });
    let bands = bands.chain(steady);
    PowerCurve {
        seconds: seconds(last.t_ns),
        points,
        sm_mhz,
        memory_gb,
        bands: bands.filter(|band| band.from_s < band.to_s).collect(),
    }
}
