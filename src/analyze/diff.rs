//! What changed from one run to another, and whether it can be told from noise.
//!
//! First whether the two may be compared at all; only then a verdict. Pure arithmetic over what two reports hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    spans::Spans,
    stats::{Spread, percent, ratio},
};

/// How a verdict is reached, for readers.
pub const RULE: &str = "A change counts when the 95 % intervals of the two means over repeats (mean ± t·std/√n, Student's t for n - 1) do not \
                        overlap; overlapping ones are within noise. With a single repeat or call on a side, noise \
                        is not known and no verdict is given; nor is one where a difference of the runs forbids it. For kernels, n is their \
                        calls in the one capture, and the noise of their stage's repeats, where known, is added as squares.";

/// One fact about both runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    #[schema(example = "device")]
    pub what: String,
    /// `null`: not known.
    pub a: Option<String>,
    pub b: Option<String>,
    /// `null` where a side does not know it.
    pub same: Option<bool>,
    /// Whether the difference keeps the runs from being compared.
    pub forbids: bool,
}

impl Check {
    /// Compares a fact; where `decides`, a difference forbids a verdict.
    pub fn of(what: &str, a: Option<String>, b: Option<String>, decides: bool) -> Self {
        let same = a.as_ref().zip(b.as_ref()).map(|(a, b)| a == b);
        Self { what: what.into(), forbids: decides && same == Some(false), a, b, same }
    }

    /// Compares figures that may differ by `tolerance_pct` of the first.
    pub fn near(what: &str, unit: &str, (a, b): (Option<f64>, Option<f64>), tolerance_pct: f64) -> Self {
        let off = a.zip(b).and_then(|(a, b)| percent((a - b).abs(), a.abs()));
        let same = off.map(|off| off <= tolerance_pct);
        let said = |value: Option<f64>| value.map(|value| format!("{value:.0} {unit}"));
        Self { what: what.into(), a: said(a), b: said(b), same, forbids: same == Some(false) }
    }
}

/// What is said of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Faster,
    Slower,
    WithinNoise,
    /// The noise is not known.
    Unknown,
    /// A difference of the runs forbids a verdict.
    NotComparable,
    OnlyInA,
    OnlyInB,
}

impl Verdict {
    /// As people read it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::WithinNoise => "within noise",
            Self::Unknown => "noise unknown",
            Self::NotComparable => "not comparable",
            Self::OnlyInA => "only in A",
            Self::OnlyInB => "only in B",
        }
    }
}

/// One side of a change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Measured {
    /// Milliseconds: per repeat, or of all calls for kernels.
    pub ms: f64,
    /// Half of the 95 % interval, in the same milliseconds; `null` where noise is not known.
    pub noise_ms: Option<f64>,
    pub calls: Option<u64>,
}

impl Measured {
    /// A mean over repeats.
    pub fn over_repeats(ms: &Spread, calls: Option<u64>) -> Self {
        Self { ms: ms.mean, noise_ms: half_interval(ms.std, ms.n), calls }
    }

    /// A total over the calls of one capture, by their spread: `n` times the half interval of their mean.
    pub fn over_calls(ns: &Spans) -> Self {
        let n = u32::try_from(ns.count).unwrap_or(u32::MAX);
        let noise_ms = half_interval(ns.std, n).map(|half| half * ns.count as f64 / 1e6);
        Self { ms: ns.total as f64 / 1e6, noise_ms, calls: Some(ns.count) }
    }

    /// With the relative noise of its stage's repeats added, where that is known: a clock that drifts moves all calls alike.
    pub fn at_least_as_noisy(self, stage: Option<&Self>) -> Self {
        let drift = stage.and_then(|stage| ratio(stage.noise_ms?, stage.ms)).map_or(0.0, |share| share * self.ms);
        Self { noise_ms: self.noise_ms.map(|noise| noise.hypot(drift)), ..self }
    }

    /// The sum of two that vary on their own: their noises add as squares.
    pub fn and(self, other: Self) -> Self {
        let noise_ms = self.noise_ms.zip(other.noise_ms).map(|(a, b)| a.hypot(b));
        Self { ms: self.ms + other.ms, noise_ms, calls: self.calls.zip(other.calls).map(|(a, b)| a + b) }
    }
}

/// One thing in both runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Change {
    /// Empty outside every stage.
    pub stage: String,
    /// The stage, the operator's path or the kernel's name.
    pub name: String,
    pub a: Option<Measured>,
    pub b: Option<Measured>,
    /// `b - a`; a side that lacks it counts as nothing.
    pub change_ms: f64,
    /// Of `a`.
    pub change_pct: Option<f64>,
    pub verdict: Verdict,
    /// Why the verdict is what it is.
    #[serde(default)]
    pub reason: String,
}

/// What changed from run A to run B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Diff {
    /// Whether no difference forbids a verdict.
    pub comparable: bool,
    pub checks: Vec<Check>,
    /// How verdicts are reached.
    pub rule: String,
    /// Stages, latencies and parts of stages; what changed most comes first, here and below.
    pub stages: Vec<Change>,
    pub operators: Vec<Change>,
    pub kernels: Vec<Change>,
}

/// Figures of one run by stage and name.
pub type Figures = BTreeMap<(String, String), Measured>;

/// One run's figures.
#[derive(Debug, Clone, Default)]
pub struct Side {
    pub stages: Figures,
    pub operators: Figures,
    pub kernels: Figures,
}

/// Compares two runs.
pub fn diff(checks: Vec<Check>, a: &Side, b: &Side) -> Diff {
    let comparable = checks.iter().all(|check| !check.forbids);
    Diff {
        stages: changes(&a.stages, &b.stages, comparable),
        operators: changes(&a.operators, &b.operators, comparable),
        kernels: changes(&a.kernels, &b.kernels, comparable),
        rule: RULE.into(),
        comparable,
        checks,
    }
}

fn changes(a: &Figures, b: &Figures, comparable: bool) -> Vec<Change> {
    let mut names: Vec<&(String, String)> = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))).collect();
    names.sort();
    let change = |key: &(String, String)| {
        let (a, b) = (a.get(key).copied(), b.get(key).copied());
        let of = |side: Option<Measured>| side.map_or(0.0, |side| side.ms);
        let change_ms = of(b) - of(a);
        Change {
            stage: key.0.clone(),
            name: key.1.clone(),
            change_ms,
            change_pct: a.zip(b).and_then(|(a, _)| percent(change_ms, a.ms)),
            verdict: verdict(a, b, comparable),
            reason: reason(a, b, comparable),
            a,
            b,
        }
    };
    let mut changes: Vec<Change> = names.into_iter().map(change).collect();
    changes.sort_by(|x, y| y.change_ms.abs().total_cmp(&x.change_ms.abs()));
    changes
}

fn verdict(a: Option<Measured>, b: Option<Measured>, comparable: bool) -> Verdict {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (Some(_), None) => return Verdict::OnlyInA,
        (None, _) => return Verdict::OnlyInB,
    };
    match (comparable, a.noise_ms, b.noise_ms) {
        (false, ..) => Verdict::NotComparable,
        (true, Some(x), Some(y)) if (a.ms - b.ms).abs() <= x + y => Verdict::WithinNoise,
        (true, Some(_), Some(_)) if b.ms < a.ms => Verdict::Faster,
        (true, Some(_), Some(_)) => Verdict::Slower,
        _ => Verdict::Unknown,
    }
}

/// Why [`verdict`] says what it says.
fn reason(a: Option<Measured>, b: Option<Measured>, comparable: bool) -> String {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (a, _) => return format!("run {} has none", if a.is_some() { "B" } else { "A" }),
    };
    let (Some(x), Some(y)) = (a.noise_ms, b.noise_ms) else {
        let lacking: Vec<&str> =
            [("A", a), ("B", b)].iter().filter(|(_, it)| it.noise_ms.is_none()).map(|(name, _)| *name).collect();
        return format!("measured once in {}: how much it varies is not known", lacking.join(" and "));
    };
    if !comparable {
        return "a difference of the runs forbids a verdict".into();
    }
    let calls = match a.calls.zip(b.calls) {
        Some((a, b)) if a != b => format!("; calls: {a} in A, {b} in B"),
        _ => String::new(),
    };
    let (gap, noise) = ((a.ms - b.ms).abs(), x + y);
    let than = if gap <= noise { "no more than" } else { "more than" };
    format!("{gap:.4} ms apart, {than} the noise of both ({noise:.4} ms){calls}")
}

/// `t · std / √n`: half of the 95 % interval of a mean over `n` values.
fn half_interval(std: Option<f64>, n: u32) -> Option<f64> {
    /// Two-sided 95 % quantiles of Student's t for 1 to 10 degrees of freedom.
    const T: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    let freedom = (n as usize).checked_sub(1).filter(|it| *it > 0)?;
    // Past the table an upper bound of its own range stands for all: an interval is never told too narrow.
    let t = T.get(freedom - 1).copied().unwrap_or(if freedom < 30 { 2.201 } else { 2.042 });
    Some(t * std? / f64::from(n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(stages: &[(&str, &[f64])]) -> Side {
        let figure = |(name, times): &(&str, &[f64])| {
            ((String::new(), (*name).to_owned()), Measured::over_repeats(&Spread::of(times.iter().copied()).unwrap(), None))
        };
        Side { stages: stages.iter().map(figure).collect(), ..Side::default() }
    }

    fn verdicts(a: &[(&str, &[f64])], b: &[(&str, &[f64])], checks: Vec<Check>) -> Vec<(String, Verdict)> {
        diff(checks, &side(a), &side(b)).stages.into_iter().map(|it| (it.name, it.verdict)).collect()
    }

    #[test]
    fn a_change_counts_only_beyond_the_noise_of_both() {
        let steady: &[f64] = &[10.0, 10.1, 9.9];
        let cases: [(&[f64], Verdict); 5] = [
            (&[12.0, 12.1, 11.9], Verdict::Slower),
            (&[8.0, 8.1, 7.9], Verdict::Faster),
            (&[10.2, 10.3, 10.1], Verdict::WithinNoise),
            (&[8.0, 20.0, 14.0], Verdict::WithinNoise),
            (&[12.0], Verdict::Unknown),
        ];
        for (times, expected) in cases {
            assert_eq!(verdicts(&[("x", steady)], &[("x", times)], vec![])[0].1, expected, "{times:?}");
        }
    }

    #[test]
    fn the_calls_of_one_capture_tell_the_noise_of_their_total() {
        let kernel = |ns: &[i64]| Measured::over_calls(&Spans::of(&mut ns.to_vec()));
        // Mean 2 ms, std 1 ms, n 3: t 4.303 * 1 / sqrt(3) on the mean, three times that on the total.
        let three = kernel(&[1_000_000, 2_000_000, 3_000_000]);
        assert!((three.noise_ms.unwrap() - 4.303 * 3f64.sqrt()).abs() < 1e-9 && three.ms == 6.0);
        assert_eq!(kernel(&[5]).noise_ms, None);
        let both = three.and(three);
        assert!((both.noise_ms.unwrap() - three.noise_ms.unwrap() * 2f64.sqrt()).abs() < 1e-9);
        let stage = Measured { ms: 100.0, noise_ms: Some(10.0), calls: None };
        let drifting = Measured { noise_ms: Some(0.8), ..three }.at_least_as_noisy(Some(&stage));
        assert_eq!(drifting.noise_ms, Some(1.0), "6 ms of which 10 % drift");
        assert_eq!((both.ms, both.calls, three.and(kernel(&[5])).noise_ms), (12.0, Some(6), None));
    }

    #[test]
    fn every_verdict_has_its_reason() {
        let measured = |ms, noise_ms, calls| Some(Measured { ms, noise_ms, calls });
        let steady = measured(1.0, Some(0.1), Some(4));
        let cases = [
            (
                steady,
                measured(2.0, Some(0.1), Some(5)),
                true,
                "1.0000 ms apart, more than the noise of both (0.2000 ms); calls: 4 in A, 5 in B",
            ),
            (steady, measured(1.1, Some(0.1), Some(4)), true, "0.1000 ms apart, no more than the noise of both (0.2000 ms)"),
            (steady, measured(1.1, None, None), true, "measured once in B: how much it varies is not known"),
            (steady, steady, false, "a difference of the runs forbids a verdict"),
            (steady, None, true, "run B has none"),
            (None, steady, true, "run A has none"),
        ];
        for (a, b, comparable, expected) in cases {
            assert_eq!(reason(a, b, comparable), expected);
        }
    }

    #[test]
    fn what_changed_most_comes_first_and_what_a_side_lacks_is_said() {
        let (a, b) = ([("x", &[1.0, 1.0][..]), ("gone", &[3.0, 3.0])], [("x", &[2.0, 2.0][..]), ("new", &[9.0, 9.0])]);
        let expected = [("new", Verdict::OnlyInB), ("gone", Verdict::OnlyInA), ("x", Verdict::Slower)];
        assert_eq!(verdicts(&a, &b, vec![]), expected.map(|(name, verdict)| (name.to_owned(), verdict)));
    }

    #[test]
    fn a_difference_that_decides_forbids_every_verdict_and_an_unknown_one_does_not() {
        let said = |text: &str| Some(text.to_owned());
        let (a, b) = ([("x", &[1.0, 1.0][..])], [("x", &[2.0, 2.0][..])]);
        let with = |check| verdicts(&a, &b, vec![check])[0].1;
        assert_eq!(with(Check::of("device", said("H200"), said("H100"), true)), Verdict::NotComparable);
        assert_eq!(with(Check::of("device", said("H200"), None, true)), Verdict::Slower);
        assert_eq!(with(Check::of("nsys", said("1"), said("2"), false)), Verdict::Slower);
        assert_eq!(with(Check::near("clock", "MHz", (Some(1980.0), Some(1500.0)), 5.0)), Verdict::NotComparable);
        assert_eq!(with(Check::near("clock", "MHz", (Some(1980.0), Some(1950.0)), 5.0)), Verdict::Slower);
    }
}
