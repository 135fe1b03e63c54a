//! Checks of names: kernels that both sides launch, and kernels that only one does.

use std::{cmp::Reverse, collections::BTreeSet};

use llmprof_core::domain::units::quantity;

use super::{AlignmentCheck, AlignmentEvidence, SIDES, Verdict, check, pass_if, row};
use crate::{
    align::{
        names::{at_level, full_name},
        settings::Level,
    },
    stats::percent,
};

impl AlignmentEvidence<'_> {
    pub(super) fn names(&self) -> AlignmentCheck {
        let times = [self.times(0), self.times(1)];
        let all: BTreeSet<u32> = times[0].keys().chain(times[1].keys()).copied().collect();
        let families = [self.families(0), self.families(1)];
        let totals = [0, 1].map(|side| times[side].values().sum::<i64>());
        let share = |side: usize, key: &u32| match times[side].get(key) {
            Some(ns) => format!("{:.2} %", percent(*ns as f64, totals[side] as f64).unwrap_or(0.0)),
            None => "absent".to_owned(),
        };
        let (mut rows, mut shared) = (Vec::new(), Vec::new());
        for key in &all {
            let has = [times[0].contains_key(key), times[1].contains_key(key)];
            let name = &self.names[*key as usize];
            let like = families[usize::from(has[0])].contains(&at_level(name, Level::Family));
            let note = if like && has != [true; 2] {
                "on the other side with another tile, architecture or template"
            } else {
                ""
            };
            let row = row(name.clone(), share(0, key), share(1, key), note);
            if has == [true; 2] { shared.push((times[1][key], row)) } else { rows.push(row) }
        }
        let both = shared.len();
        shared.sort_by_key(|(ns, _)| Reverse(*ns));
        let critical = [self.critical(0), self.critical(1)];
        let one_sided = |key: &u32| times[0].contains_key(key) != times[1].contains_key(key);
        let verdict = match rows.is_empty() {
            true if both > 0 => Verdict::Pass,
            true => Verdict::Inconclusive,
            false if critical.iter().flatten().any(one_sided) => Verdict::Fail,
            false => Verdict::Warn,
        };
        rows.extend(shared.into_iter().map(|it| it.1));
        check(
            "names",
            verdict,
            format!("{both} of {} names on both sides", all.len()),
            "every critical name on both sides".into(),
            rows,
        )
    }

    /// Families of the kernels that a side launches.
    fn families(&self, side: usize) -> BTreeSet<String> {
        let trace = self.sides[side].trace;
        let kinds = trace.kernels.kinds();
        let name = |kind: &u32| {
            let kind = &kinds[*kind as usize];
            full_name(trace, kind.full_name, kind.name)
        };
        let used = self.operations[side].kind_times.keys();
        used.map(|kind| at_level(name(kind), Level::Family)).collect()
    }

    /// Names that matter on a side: by share, or within the smallest set that covers enough time.
    fn critical(&self, side: usize) -> BTreeSet<u32> {
        let thresholds = &self.question.thresholds;
        let mut times: Vec<(u32, i64)> = self.times(side).into_iter().collect();
        times.sort_by_key(|(key, ns)| (Reverse(*ns), *key));
        let total: i64 = times.iter().map(|it| it.1).sum();
        let share = |ns: i64| percent(ns as f64, total as f64).unwrap_or(0.0);
        let (mut covered, mut critical) = (0, BTreeSet::new());
        for (key, ns) in times {
            if share(ns) >= thresholds.critical_pct || share(covered) < thresholds.critical_set_pct
            {
                critical.insert(key);
            }
            covered += ns;
        }
        critical
    }

    /// Kernels that only `side` launches: missing in the mock, or extra there.
    pub(super) fn one_sided(&self, side: usize) -> AlignmentCheck {
        let (times, other, critical) =
            (self.times(side), self.times(1 - side), self.critical(side));
        let total: i64 = times.values().sum();
        let mut only: Vec<(u32, i64)> =
            times.into_iter().filter(|(key, _)| !other.contains_key(key)).collect();
        only.sort_by_key(|it| Reverse(it.1));
        let worst = only.iter().filter(|(key, _)| critical.contains(key)).count();
        let rows = only.iter().map(|(key, ns)| {
            let share = format!("{:.2} %", percent(*ns as f64, total as f64).unwrap_or(0.0));
            let note = if critical.contains(key) { "critical" } else { "" };
            let (mock, e2e) =
                if side == 0 { (share, "absent".into()) } else { ("absent".to_owned(), share) };
            row(self.names[*key as usize].clone(), mock, e2e, note)
        });
        let verdict = match (only.is_empty(), worst) {
            (true, _) => Verdict::Pass,
            (false, 0) => Verdict::Warn,
            (false, _) => Verdict::Fail,
        };
        let id = if side == 1 { "missing_kernels" } else { "extra_kernels" };
        check(
            id,
            verdict,
            format!(
                "{} of the {} absent in the {}, {worst} of them critical",
                quantity(only.len() as u64, "kernel"),
                SIDES[side],
                SIDES[1 - side]
            ),
            format!("none with {} % of the time or more", self.question.thresholds.critical_pct),
            rows.collect(),
        )
    }

    pub(super) fn matched_time(&self) -> AlignmentCheck {
        let times = [self.times(0), self.times(1)];
        let share = |side: usize| {
            let both = times[side]
                .iter()
                .filter(|(key, _)| times[1 - side].contains_key(key))
                .map(|it| it.1)
                .sum::<i64>();
            percent(both as f64, times[side].values().sum::<i64>() as f64).unwrap_or(0.0)
        };
        let [mock, e2e] = [0, 1].map(share);
        let limit = self.question.thresholds.matched_time_pct;
        check(
            "matched_time",
            pass_if(mock.min(e2e) >= limit),
            format!("{mock:.1} % of the mock's time and {e2e:.1} % of the whole model's"),
            format!("{limit} % of each"),
            vec![],
        )
    }
}
