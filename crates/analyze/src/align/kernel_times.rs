//! The time of each kernel on both sides: equal totals may hide one kernel that halves and another
//! that triples.
//!
//! A kernel is one name, at the level at which names are compared. Variation is between instances:
//! calls within one may have different shapes, in the same mix each time. The interval of a ratio
//! is computed as in [`super::latency`].

use std::collections::BTreeMap;

use llmprof_core::trace::names::base_name;
use serde::{Deserialize, Serialize};

use super::{
    AlignmentCheck, Verdict,
    checks::{AlignmentEvidence, check, row},
    latency::ratio,
    settings::Thresholds,
};
use crate::{
    compare::student::Estimate,
    stats::{Spread, percent},
};

/// Maximum number of differing kernels in an observation.
const MAX_NAMED: usize = 3;
/// Maximum length of their names.
const MAX_NAME_CHARS: usize = 60;

/// Calls of one kernel by one side's operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AlignmentKernelSide))]
pub struct KernelSide {
    pub calls: u64,
    /// Mean time of a call, microseconds: over instances, of the mean in each.
    pub mean_us: f64,
    /// 95 % interval of the mean over instances; `null` for a single one.
    pub interval_us: Option<[f64; 2]>,
    /// Share of the operation's device time, percent.
    pub share_pct: Option<f64>,
}

/// Agreement of a kernel's time on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", schema(as = AlignmentAgreement))]
pub enum Agreement {
    /// The interval of the ratio lies within the threshold.
    Match,
    /// The interval lies outside the threshold.
    Differs,
    /// The interval crosses the threshold, or there is none.
    Undecided,
    /// Only one side launches the kernel.
    OneSide,
}

impl Agreement {
    /// The text for reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Match => "match",
            Self::Differs => "differs",
            Self::Undecided => "undecided",
            Self::OneSide => "one side only",
        }
    }
}

/// One kernel of the operation on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AlignmentKernel))]
pub struct KernelTime {
    pub name: String,
    pub mock: Option<KernelSide>,
    pub e2e: Option<KernelSide>,
    /// Mean call time in the mock over that in the whole model.
    pub ratio: Option<f64>,
    /// 95 % interval of the ratio; `null` if both sides have a single instance.
    pub interval: Option<[f64; 2]>,
    pub agreement: Agreement,
    /// Decides the check: its share of the time on either side is large enough, and no waiver
    /// covers it.
    pub decisive: bool,
    /// The ratio is beyond `triage_ratio`, either way.
    pub far: bool,
    pub waived: bool,
}

impl KernelTime {
    /// Remarks for reports.
    pub fn note(&self, triage_ratio: f64) -> String {
        let notes = [
            (self.far, format!("{triage_ratio}x or more apart")),
            (self.waived, "known difference".to_owned()),
            (self.decisive, "decisive".to_owned()),
        ];
        notes.into_iter().filter(|(holds, _)| *holds).map(|it| it.1).collect::<Vec<_>>().join("; ")
    }

    fn ratio_text(&self) -> String {
        let interval = self
            .interval
            .map_or(String::new(), |[from, to]| format!(", 95 % interval {from:.3} to {to:.3}"));
        self.ratio.map_or("no ratio".into(), |ratio| format!("ratio {ratio:.3}{interval}"))
    }

    /// Returns whether the ratio itself is outside the threshold, or has no interval.
    fn doubtful(&self, thresholds: &Thresholds) -> bool {
        self.interval.is_none()
            || self
                .ratio
                .is_none_or(|ratio| (ratio - 1.0).abs() * 100.0 > thresholds.kernel_time_pct)
    }
}

/// Calls and time of a kernel by instance, nanoseconds.
type ByInstance = BTreeMap<u32, (u64, i64)>;

/// Compares the kernels of both sides, longest in the whole model first.
pub fn kernel_times(evidence: &AlignmentEvidence) -> Vec<KernelTime> {
    let mut names: BTreeMap<u32, ([ByInstance; 2], bool)> = BTreeMap::new();
    for side in [0, 1] {
        for (kind, times) in &evidence.operations[side].kind_times {
            let (of, waived) = names.entry(evidence.keys[side][*kind as usize]).or_default();
            *waived |= evidence.waived[side][*kind as usize];
            for it in times {
                let sum = of[side].entry(it.instance).or_default();
                *sum = (sum.0 + u64::from(it.calls), sum.1 + it.ns);
            }
        }
    }
    let totals = [0, 1].map(|side| {
        names.values().flat_map(|(of, _)| of[side].values()).map(|it| it.1).sum::<i64>() as f64
    });
    let compared = |(key, (times, waived)): (&u32, &([ByInstance; 2], bool))| {
        compare(
            &evidence.names[*key as usize],
            times,
            totals,
            *waived,
            &evidence.question.thresholds,
        )
    };
    let mut all: Vec<KernelTime> = names.iter().map(compared).collect();
    let share = |it: &KernelTime| it.e2e.or(it.mock).and_then(|side| side.share_pct).unwrap_or(0.0);
    all.sort_by(|a, b| share(b).total_cmp(&share(a)).then_with(|| a.name.cmp(&b.name)));
    all
}

fn compare(
    name: &str,
    times: &[ByInstance; 2],
    totals: [f64; 2],
    waived: bool,
    thresholds: &Thresholds,
) -> KernelTime {
    let us = |side: usize| {
        Spread::of(times[side].values().map(|(calls, ns)| *ns as f64 / 1e3 / *calls as f64))
    };
    let spreads = [us(0), us(1)];
    let side = |at: usize| {
        let spread = spreads[at]?;
        let half = Estimate::of(&spread).map(|it| it.half_interval());
        Some(KernelSide {
            calls: times[at].values().map(|it| it.0).sum(),
            mean_us: spread.mean,
            interval_us: half.map(|half| [spread.mean - half, spread.mean + half]),
            share_pct: percent(times[at].values().map(|it| it.1).sum::<i64>() as f64, totals[at]),
        })
    };
    let [mock, e2e] = [side(0), side(1)];
    let both = spreads[0].zip(spreads[1]).and_then(|(a, b)| ratio(&a, &b));
    let (low, high) =
        (1.0 - thresholds.kernel_time_pct / 100.0, 1.0 + thresholds.kernel_time_pct / 100.0);
    let interval = both.and_then(|it| it.1);
    let agreement = match interval {
        _ if mock.is_none() || e2e.is_none() => Agreement::OneSide,
        Some([from, to]) if from >= low && to <= high => Agreement::Match,
        Some([from, to]) if to < low || from > high => Agreement::Differs,
        _ => Agreement::Undecided,
    };
    let heavy = [mock, e2e]
        .into_iter()
        .flatten()
        .any(|it| it.share_pct.is_some_and(|pct| pct >= thresholds.kernel_share_pct));
    KernelTime {
        name: name.to_owned(),
        mock,
        e2e,
        ratio: both.map(|it| it.0),
        interval,
        agreement,
        decisive: heavy && !waived && agreement != Agreement::OneSide,
        far: both.is_some_and(|(ratio, _)| {
            ratio >= thresholds.triage_ratio || ratio * thresholds.triage_ratio <= 1.0
        }),
        waived,
    }
}

/// Checks that every decisive kernel takes the same time on both sides.
pub fn kernel_time(evidence: &AlignmentEvidence, kernels: &[KernelTime]) -> AlignmentCheck {
    let thresholds = &evidence.question.thresholds;
    let threshold = format!(
        "each kernel with {} % of the time or more within {} %",
        thresholds.kernel_share_pct, thresholds.kernel_time_pct
    );
    let decisive = || kernels.iter().filter(|it| it.decisive);
    let with = |agreement: Agreement| decisive().filter(move |it| it.agreement == agreement);
    let light = kernels
        .iter()
        .any(|it| !it.decisive && !it.waived && (it.far || it.agreement == Agreement::Differs));
    let verdict = if with(Agreement::Differs).next().is_some() {
        Verdict::Fail
    } else if with(Agreement::Undecided).any(|it| it.doubtful(thresholds))
        || decisive().next().is_none()
    {
        Verdict::Inconclusive
    } else if with(Agreement::Undecided).next().is_some() || light {
        Verdict::Warn
    } else {
        Verdict::Pass
    };
    let observed = format!(
        "{} of {} decisive kernels match",
        with(Agreement::Match).count(),
        decisive().count()
    );
    let differing = || {
        kernels.iter().filter(|it| {
            !matches!(it.agreement, Agreement::Match | Agreement::OneSide) && !it.waived
        })
    };
    let mut rows: Vec<&KernelTime> = differing().collect();
    rows.sort_by_key(|it| (!it.decisive, it.agreement != Agreement::Differs));
    let named = rows.iter().take_while(|it| it.decisive).take(MAX_NAMED).map(|it| {
        let name: String = base_name(&it.name).chars().take(MAX_NAME_CHARS).collect();
        format!(
            "; {name} {}{}",
            it.ratio_text(),
            if it.far {
                format!(", {}x or more apart", thresholds.triage_ratio)
            } else {
                String::new()
            }
        )
    });
    let observed = observed + &named.collect::<String>();
    let mean = |side: Option<KernelSide>| {
        side.map_or("absent".to_owned(), |it| format!("{:.3} us, {} calls", it.mean_us, it.calls))
    };
    let rows = rows.into_iter().map(|it| {
        let notes =
            [it.agreement.as_str().to_owned(), it.ratio_text(), it.note(thresholds.triage_ratio)];
        row(
            it.name.clone(),
            mean(it.mock),
            mean(it.e2e),
            notes.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join("; "),
        )
    });
    check("kernel_time", verdict, observed, threshold, rows.collect())
}
