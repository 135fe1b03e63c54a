//! The time of each kernel on both sides: equal totals may hide one kernel that halves and another that triples.
//!
//! A kernel is one name, at the level at which names are compared. Instances are what varies: calls within one may be of other shapes, in
//! the same mix each time. The interval of a ratio is that of [`super::latency`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Check, Verdict,
    checks::{Evidence, check, row},
    latency::ratio,
    settings::Thresholds,
};
use crate::{
    analyze::{
        stats::{Spread, percent},
        student::Estimate,
    },
    trace::names::base_name,
};

/// Differing kernels that a sentence names.
const NAMED: usize = 3;
/// Characters of a name in a sentence.
const NAME_CHARS: usize = 60;

/// Calls of one kernel by one side's operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AlignmentKernelSide)]
pub struct KernelSide {
    pub calls: u64,
    /// Mean of a call, microseconds: over instances, of the mean in each.
    pub mean_us: f64,
    /// 95 % interval of the mean over instances; `null` for a single one.
    pub interval_us: Option<[f64; 2]>,
    /// Of the operation's device time, percent.
    pub share_pct: Option<f64>,
}

/// Whether a kernel takes the same time on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AlignmentAgreement)]
pub enum Agreement {
    /// The interval of the ratio lies within the threshold.
    Match,
    /// It lies outside.
    Differs,
    /// It crosses the threshold, or there is none.
    Undecided,
    /// One side does not launch it.
    OneSide,
}

impl Agreement {
    /// As people read it.
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AlignmentKernel)]
pub struct KernelTime {
    pub name: String,
    pub mock: Option<KernelSide>,
    pub e2e: Option<KernelSide>,
    /// Mean of a call in the mock to that in the whole model.
    pub ratio: Option<f64>,
    /// 95 % interval of the ratio; `null` where both sides have a single instance.
    pub interval: Option<[f64; 2]>,
    pub agreement: Agreement,
    /// Whether its share of the time on either side makes it decide, and no waiver covers it.
    pub decisive: bool,
    /// Whether the ratio is beyond `triage_ratio`, either way.
    pub far: bool,
    pub waived: bool,
}

impl KernelTime {
    /// Remarks for readers.
    pub fn note(&self, triage_ratio: f64) -> String {
        let notes = [
            (self.far, format!("{triage_ratio}x or more apart")),
            (self.waived, "known difference".to_owned()),
            (self.decisive, "decides".to_owned()),
        ];
        notes.into_iter().filter(|(holds, _)| *holds).map(|it| it.1).collect::<Vec<_>>().join("; ")
    }

    fn ratio_text(&self) -> String {
        let interval = self.interval.map_or(String::new(), |[from, to]| format!(" ({from:.3} to {to:.3})"));
        self.ratio.map_or("no ratio".into(), |ratio| format!("{ratio:.3}{interval}"))
    }

    /// Whether the ratio itself is outside the threshold, or has no interval.
    fn doubtful(&self, asked: &Thresholds) -> bool {
        self.interval.is_none() || self.ratio.is_none_or(|ratio| (ratio - 1.0).abs() * 100.0 > asked.kernel_time_pct)
    }
}

/// Calls and time of a kernel by instance, nanoseconds.
type ByInstance = BTreeMap<u32, (u64, i64)>;

/// Compares the kernels of both sides, longest in the whole model first.
pub fn kernel_times(on: &Evidence) -> Vec<KernelTime> {
    let mut names: BTreeMap<u32, ([ByInstance; 2], bool)> = BTreeMap::new();
    for side in [0, 1] {
        for (kind, times) in &on.found[side].kind_times {
            let (of, waived) = names.entry(on.keys[side][*kind as usize]).or_default();
            *waived |= on.waived[side][*kind as usize];
            for it in times {
                let sum = of[side].entry(it.unit).or_default();
                *sum = (sum.0 + u64::from(it.calls), sum.1 + it.ns);
            }
        }
    }
    let totals = [0, 1].map(|side| names.values().flat_map(|(of, _)| of[side].values()).map(|it| it.1).sum::<i64>() as f64);
    let compared = |(key, (times, waived)): (&u32, &([ByInstance; 2], bool))| {
        compare(&on.names[*key as usize], times, totals, *waived, &on.question.thresholds)
    };
    let mut all: Vec<KernelTime> = names.iter().map(compared).collect();
    let share = |it: &KernelTime| it.e2e.or(it.mock).and_then(|side| side.share_pct).unwrap_or(0.0);
    all.sort_by(|a, b| share(b).total_cmp(&share(a)).then_with(|| a.name.cmp(&b.name)));
    all
}

fn compare(name: &str, times: &[ByInstance; 2], totals: [f64; 2], waived: bool, asked: &Thresholds) -> KernelTime {
    let us = |side: usize| Spread::of(times[side].values().map(|(calls, ns)| *ns as f64 / 1e3 / *calls as f64));
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
    let (low, high) = (1.0 - asked.kernel_time_pct / 100.0, 1.0 + asked.kernel_time_pct / 100.0);
    let interval = both.and_then(|it| it.1);
    let agreement = match interval {
        _ if mock.is_none() || e2e.is_none() => Agreement::OneSide,
        Some([from, to]) if from >= low && to <= high => Agreement::Match,
        Some([from, to]) if to < low || from > high => Agreement::Differs,
        _ => Agreement::Undecided,
    };
    let heavy = [mock, e2e].into_iter().flatten().any(|it| it.share_pct.is_some_and(|pct| pct >= asked.kernel_share_pct));
    KernelTime {
        name: name.to_owned(),
        mock,
        e2e,
        ratio: both.map(|it| it.0),
        interval,
        agreement,
        decisive: heavy && !waived && agreement != Agreement::OneSide,
        far: both.is_some_and(|(ratio, _)| ratio >= asked.triage_ratio || ratio * asked.triage_ratio <= 1.0),
        waived,
    }
}

/// Whether every kernel that weighs enough takes the same time on both sides.
pub fn kernel_time(on: &Evidence, kernels: &[KernelTime]) -> Check {
    let asked = &on.question.thresholds;
    let threshold = format!("each kernel of {} % of the time or more within {} %", asked.kernel_share_pct, asked.kernel_time_pct);
    let decisive = || kernels.iter().filter(|it| it.decisive);
    let with = |agreement: Agreement| decisive().filter(move |it| it.agreement == agreement);
    let light = kernels.iter().any(|it| !it.decisive && !it.waived && (it.far || it.agreement == Agreement::Differs));
    let verdict = if with(Agreement::Differs).next().is_some() {
        Verdict::Fail
    } else if with(Agreement::Undecided).any(|it| it.doubtful(asked)) || decisive().next().is_none() {
        Verdict::Inconclusive
    } else if with(Agreement::Undecided).next().is_some() || light {
        Verdict::Warn
    } else {
        Verdict::Pass
    };
    let observed = format!("{} of {} match", with(Agreement::Match).count(), decisive().count());
    let unlike = || kernels.iter().filter(|it| !matches!(it.agreement, Agreement::Match | Agreement::OneSide) && !it.waived);
    let mut rows: Vec<&KernelTime> = unlike().collect();
    rows.sort_by_key(|it| (!it.decisive, it.agreement != Agreement::Differs));
    let named = rows.iter().take_while(|it| it.decisive).take(NAMED).map(|it| {
        let name: String = base_name(&it.name).chars().take(NAME_CHARS).collect();
        format!(
            "; {name} {}{}",
            it.ratio_text(),
            if it.far { format!(", {}x or more apart", asked.triage_ratio) } else { String::new() }
        )
    });
    let observed = observed + &named.collect::<String>();
    let mean =
        |side: Option<KernelSide>| side.map_or("absent".to_owned(), |it| format!("{:.3} us, {} calls", it.mean_us, it.calls));
    let rows = rows.into_iter().map(|it| {
        let notes = [it.agreement.as_str().to_owned(), it.ratio_text(), it.note(asked.triage_ratio)];
        row(
            it.name.clone(),
            mean(it.mock),
            mean(it.e2e),
            notes.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join("; "),
        )
    });
    check("kernel_time", verdict, observed, threshold, rows.collect())
}
