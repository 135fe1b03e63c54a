//! The checks of an alignment, each with what was seen, what was asked, and its rows.
//!
//! Nothing here reads a capture: it compares what was isolated.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Check, Place, Row, Side, Verdict,
    advice::advice,
    conditions, ground,
    isolate::Isolated,
    kernel_times::{KernelTime, kernel_time},
    latency::latency,
    names::{at_level, full_name},
    sequence,
    settings::{Level, Question},
};
use crate::analyze::stats::percent;

/// Grid and block.
type Shape = ([u32; 3], [u32; 3]);

/// Rows that a check shows.
const ROWS: usize = 60;
pub(super) const SIDES: [&str; 2] = ["mock", "end to end"];
/// Checks that compare kernels of both sides.
const COMPARING: [&str; 10] = [
    "names",
    "missing_kernels",
    "extra_kernels",
    "counts",
    "geometry",
    "sequence",
    "matched_time",
    "latency",
    "kernel_time",
    "graphs",
];

/// What the checks compare: the mock first.
pub struct Evidence<'a> {
    pub sides: [&'a Side<'a>; 2],
    pub found: [&'a Isolated; 2],
    /// Number of the name of each kind of launch.
    pub keys: &'a [Vec<u32>; 2],
    pub names: &'a [String],
    pub waived: &'a [Vec<bool>; 2],
    /// Whether the end-to-end side was found by the mock's sequence.
    pub by_sequence: bool,
    pub question: &'a Question,
}

pub(super) fn check(id: &str, verdict: Verdict, observed: String, threshold: String, mut rows: Vec<Row>) -> Check {
    rows.truncate(ROWS);
    let advice = (verdict != Verdict::Pass).then(|| advice(id).to_owned());
    Check { id: id.into(), verdict, observed, threshold, decisive: true, rows, advice }
}

pub(super) fn row(what: impl Into<String>, mock: impl Into<String>, e2e: impl Into<String>, note: impl Into<String>) -> Row {
    Row { what: what.into(), mock: mock.into(), e2e: e2e.into(), note: note.into() }
}

pub(super) fn pass_if(good: bool) -> Verdict {
    if good { Verdict::Pass } else { Verdict::Fail }
}

/// Runs all checks, and puts the usual sequences side by side.
pub fn checks(on: &Evidence, kernels: &[KernelTime]) -> (Vec<Check>, Vec<Place>) {
    let mut checks = vec![ground::complete(on), ground::isolation(on)];
    let mut places = Vec::new();
    if on.found.iter().any(|it| it.units.is_empty()) {
        for id in COMPARING {
            let observed = "a side has no kernels of the operation".to_owned();
            checks.push(check(id, Verdict::Inconclusive, observed, "kernels in both sides".into(), vec![]));
        }
    } else {
        let pairs = on.pairs();
        places = on.places(&pairs);
        checks.extend([on.names(), on.one_sided(1), on.one_sided(0), on.counts(), on.geometry(&pairs), on.sequence(&places)]);
        checks.extend([on.matched(), on.latency(), kernel_time(on, kernels), on.graphs()]);
    }
    checks.extend([conditions::inputs(on), conditions::clocks(on)]);
    (checks, places)
}

impl Evidence<'_> {
    /// Time by name of what is not waived, nanoseconds.
    fn times(&self, side: usize) -> BTreeMap<u32, i64> {
        let mut times = BTreeMap::new();
        for (kind, ns) in self.found[side].kind_times.iter().filter(|(kind, _)| !self.waived[side][**kind as usize]) {
            *times.entry(self.keys[side][*kind as usize]).or_default() += ns.iter().map(|it| it.ns).sum::<i64>();
        }
        times
    }

    /// A sequence without what is waived.
    fn kept(&self, side: usize, form: &[u32]) -> Vec<u32> {
        form.iter().copied().filter(|kind| !self.waived[side][*kind as usize]).collect()
    }

    fn keyed(&self, side: usize, form: &[u32]) -> Vec<u32> {
        self.kept(side, form).iter().map(|kind| self.keys[side][*kind as usize]).collect()
    }

    fn pairs(&self) -> Vec<sequence::Pair> {
        sequence::align(&self.keyed(0, self.found[0].usual()), &self.keyed(1, self.found[1].usual()))
    }

    fn places(&self, pairs: &[sequence::Pair]) -> Vec<Place> {
        let forms = [0, 1].map(|side| self.keyed(side, self.found[side].usual()));
        let name = |side: usize, at: Option<usize>| at.map(|at| self.names[forms[side][at] as usize].clone());
        pairs.iter().map(|(a, b)| Place { mock: name(0, *a), e2e: name(1, *b) }).collect()
    }

    fn names(&self) -> Check {
        let times = [self.times(0), self.times(1)];
        let all: BTreeSet<u32> = times[0].keys().chain(times[1].keys()).copied().collect();
        let family = |side: usize| -> BTreeSet<String> {
            let kinds = self.sides[side].trace.kernels.kinds();
            let name =
                |kind: &u32| full_name(self.sides[side].trace, kinds[*kind as usize].full_name, kinds[*kind as usize].name);
            self.found[side].kind_times.keys().map(|kind| at_level(name(kind), Level::Family)).collect()
        };
        let families = [family(0), family(1)];
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
            let note =
                if like && has != [true; 2] { "the other side has it with another tile, architecture or template" } else { "" };
            let told = row(name.clone(), share(0, key), share(1, key), note);
            if has == [true; 2] { shared.push((times[1][key], told)) } else { rows.push(told) }
        }
        let both = shared.len();
        shared.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
        let critical = [self.critical(0), self.critical(1)];
        let one_sided = |key: &u32| times[0].contains_key(key) != times[1].contains_key(key);
        let verdict = match rows.is_empty() {
            true if both > 0 => Verdict::Pass,
            true => Verdict::Inconclusive,
            false if critical.iter().flatten().any(one_sided) => Verdict::Fail,
            false => Verdict::Warn,
        };
        rows.extend(shared.into_iter().map(|it| it.1));
        check("names", verdict, format!("{both} of {} names in both", all.len()), "every critical name in both".into(), rows)
    }

    /// Names that matter in a side: by share, or within the smallest set that covers most.
    fn critical(&self, side: usize) -> BTreeSet<u32> {
        let asked = &self.question.thresholds;
        let mut times: Vec<(u32, i64)> = self.times(side).into_iter().collect();
        times.sort_by_key(|(key, ns)| (std::cmp::Reverse(*ns), *key));
        let total: i64 = times.iter().map(|it| it.1).sum();
        let share = |ns: i64| percent(ns as f64, total as f64).unwrap_or(0.0);
        let (mut covered, mut critical) = (0, BTreeSet::new());
        for (key, ns) in times {
            if share(ns) >= asked.critical_pct || share(covered) < asked.critical_set_pct {
                critical.insert(key);
            }
            covered += ns;
        }
        critical
    }

    /// Kernels that only `side` has: missing in the mock, or extra there.
    fn one_sided(&self, side: usize) -> Check {
        let (times, other, critical) = (self.times(side), self.times(1 - side), self.critical(side));
        let total: i64 = times.values().sum();
        let mut only: Vec<(u32, i64)> = times.into_iter().filter(|(key, _)| !other.contains_key(key)).collect();
        only.sort_by_key(|it| std::cmp::Reverse(it.1));
        let worst = only.iter().filter(|(key, _)| critical.contains(key)).count();
        let rows = only.iter().map(|(key, ns)| {
            let share = format!("{:.2} %", percent(*ns as f64, total as f64).unwrap_or(0.0));
            let note = if critical.contains(key) { "critical" } else { "" };
            let (mock, e2e) = if side == 0 { (share, "absent".into()) } else { ("absent".to_owned(), share) };
            row(self.names[*key as usize].clone(), mock, e2e, note)
        });
        let verdict = if only.is_empty() {
            Verdict::Pass
        } else if worst > 0 {
            Verdict::Fail
        } else {
            Verdict::Warn
        };
        let id = if side == 1 { "missing_kernels" } else { "extra_kernels" };
        let threshold = format!("none of {} % of the time or more", self.question.thresholds.critical_pct);
        check(id, verdict, format!("absent on the other side: {}, critical: {worst}", only.len()), threshold, rows.collect())
    }

    fn counts(&self) -> Check {
        let mut by_length: BTreeMap<usize, [u64; 2]> = BTreeMap::new();
        let mut mean = |side: usize| {
            let lengths: Vec<usize> = self.found[side].forms.iter().map(|form| self.kept(side, form).len()).collect();
            let units = &self.found[side].units;
            units.iter().for_each(|unit| by_length.entry(lengths[unit.form as usize]).or_default()[side] += 1);
            units.iter().map(|unit| lengths[unit.form as usize] as f64).sum::<f64>() / units.len() as f64
        };
        let [mock, e2e] = [mean(0), mean(1)];
        let mut by_name: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
        for side in [0, 1] {
            let usual = self.keyed(side, self.found[side].usual());
            usual.iter().for_each(|key| by_name.entry(*key).or_default()[side] += 1);
        }
        let differs = by_name.iter().filter(|(_, counts)| counts[0] != counts[1]);
        let named = |(key, [a, b]): (&u32, &[u64; 2])| row(self.names[*key as usize].clone(), a.to_string(), b.to_string(), "");
        let mut rows: Vec<Row> = differs.map(named).collect();
        let usual_differs = !rows.is_empty();
        let length = |(length, [a, b]): (&usize, &[u64; 2])| {
            row(format!("instances of {length} kernels"), a.to_string(), b.to_string(), "")
        };
        rows.extend(by_length.iter().map(length));
        let off = percent((mock - e2e).abs(), e2e).unwrap_or(100.0);
        let asked = self.question.thresholds.count_pct;
        let good = off <= asked + 1e-9 && (!usual_differs || asked > 0.0);
        let observed = format!("{} and {} kernels per layer and forward", trim(mock), trim(e2e));
        check("counts", pass_if(good), observed, format!("within {asked} %"), rows)
    }

    /// The grids and blocks seen at each place of sequences of the same names; of the usual ones where no names are the same.
    fn geometry(&self, pairs: &[sequence::Pair]) -> Check {
        let shapes = [self.shapes(0), self.shapes(1)];
        let usual = [0, 1].map(|side| self.keyed(side, self.found[side].usual()));
        let matched: Vec<sequence::Pair> = pairs.iter().copied().filter(|(a, b)| a.is_some() && b.is_some()).collect();
        let common = shapes[0].keys().filter(|form| shapes[1].contains_key(*form));
        let mut compared: Vec<([&Vec<u32>; 2], Vec<sequence::Pair>)> =
            common.map(|form| ([form; 2], (0..form.len()).map(|at| (Some(at), Some(at))).collect())).collect();
        if usual[0] != usual[1] {
            compared.push(([&usual[0], &usual[1]], matched));
        }
        let said = |shapes: &BTreeSet<Shape>| {
            let first: Vec<String> = shapes.iter().take(3).map(|(grid, block)| format!("{grid:?} x {block:?}")).collect();
            first.join(", ") + if shapes.len() > 3 { ", and more" } else { "" }
        };
        let (mut rows, mut both) = (Vec::new(), 0);
        for ([left, right], pairs) in compared {
            for (a, b) in pairs.into_iter().filter_map(|(a, b)| a.zip(b)) {
                both += 1;
                let (mock, e2e) = (&shapes[0][left][a], &shapes[1][right][b]);
                if mock != e2e {
                    let name = self.names[left[a] as usize].clone();
                    rows.push(row(name, said(mock), said(e2e), format!("place {} and {}", a + 1, b + 1)));
                }
            }
        }
        let verdict = if both == 0 { Verdict::Inconclusive } else { pass_if(rows.is_empty()) };
        let observed = format!("{} of {both} matched places differ in grid or block", rows.len());
        check("geometry", verdict, observed, "the same grids and blocks at each place".into(), rows)
    }

    /// By sequence of names: the grids and blocks seen at each of its places.
    fn shapes(&self, side: usize) -> BTreeMap<Vec<u32>, Vec<BTreeSet<Shape>>> {
        let kinds = self.sides[side].trace.kernels.kinds();
        let mut shapes: BTreeMap<Vec<u32>, Vec<BTreeSet<Shape>>> = BTreeMap::new();
        for form in &self.found[side].forms {
            let kept = self.kept(side, form);
            let seen = shapes.entry(self.keyed(side, form)).or_insert_with(|| vec![BTreeSet::new(); kept.len()]);
            for (seen, kind) in seen.iter_mut().zip(kept) {
                seen.insert((kinds[kind as usize].grid, kinds[kind as usize].block));
            }
        }
        shapes
    }

    fn sequence(&self, places: &[Place]) -> Check {
        let forms = |side: usize| -> Vec<Vec<u32>> { self.found[side].forms.iter().map(|form| self.keyed(side, form)).collect() };
        let all = [forms(0), forms(1)];
        let sets = [0, 1].map(|side| all[side].iter().collect::<BTreeSet<_>>());
        let mut alone: [BTreeMap<&Vec<u32>, u64>; 2] = Default::default();
        let mut share = |side: usize| {
            let units = &self.found[side].units;
            let mut known = 0;
            for unit in units {
                let form = &all[side][unit.form as usize];
                if sets[1 - side].contains(form) { known += 1 } else { *alone[side].entry(form).or_default() += 1 }
            }
            percent(f64::from(known), units.len() as f64).unwrap_or(0.0)
        };
        let [mock, e2e] = [share(0), share(1)];
        let asked = self.question.thresholds.sequence_pct;
        let differs = places.iter().enumerate().filter(|(_, place)| place.mock.is_none() || place.e2e.is_none());
        let said = |it: &Option<String>| it.clone().unwrap_or_else(|| "–".into());
        let place = |(at, place): (usize, &Place)| {
            row(format!("place {}", at + 1), said(&place.mock), said(&place.e2e), "only in one, or elsewhere in the order")
        };
        let mut rows: Vec<Row> = differs.map(place).collect();
        for (side, alone) in alone.iter().enumerate() {
            let usual = self.keyed(1 - side, self.found[1 - side].usual());
            for (form, instances) in alone {
                let pairs = sequence::align(form, &usual);
                let off = pairs.iter().filter(|(a, b)| a.is_none() || b.is_none()).count();
                let told = [format!("{instances} instances"), String::new()];
                let (mock, e2e) = if side == 0 { (&told[0], &told[1]) } else { (&told[1], &told[0]) };
                rows.push(row(
                    "an order of one side alone",
                    mock.clone(),
                    e2e.clone(),
                    format!("{off} places off the other's usual one"),
                ));
            }
        }
        let observed =
            format!("{mock:.1} % of the mock's instances and {e2e:.1} % of the whole model's run an order of the other side");
        check("sequence", pass_if(mock.min(e2e) >= asked), observed, format!("{asked} % of each"), rows)
    }

    fn matched(&self) -> Check {
        let times = [self.times(0), self.times(1)];
        let share = |side: usize| {
            let both = times[side].iter().filter(|(key, _)| times[1 - side].contains_key(key)).map(|it| it.1).sum::<i64>();
            percent(both as f64, times[side].values().sum::<i64>() as f64).unwrap_or(0.0)
        };
        let [mock, e2e] = [0, 1].map(share);
        let asked = self.question.thresholds.matched_time_pct;
        let observed = format!("{mock:.1} % of the mock's time and {e2e:.1} % of the whole model's");
        check("matched_time", pass_if(mock.min(e2e) >= asked), observed, format!("{asked} % of each"), vec![])
    }

    fn latency(&self) -> Check {
        let asked = &self.question.thresholds;
        let (low, high) = (1.0 - asked.latency_pct / 100.0, 1.0 + asked.latency_pct / 100.0);
        let threshold = format!("{low:.2} to {high:.2}, told by a 95 % interval; triage below {}x", asked.triage_ratio);
        let Some(it) = latency(&self.found[0].units, &self.found[1].units) else {
            return check("latency", Verdict::Inconclusive, "a side has no time".into(), threshold, vec![]);
        };
        let mut notes = Vec::new();
        for (side, n) in [(SIDES[0], it.mock_instances), (SIDES[1], it.e2e_instances)] {
            if n == 1 {
                notes.push(format!("the {side} side has a single instance: its spread is taken from the other"));
            }
        }
        let rows = vec![
            row(
                "microseconds per layer and forward",
                format!("{:.2}", it.mock_us),
                format!("{:.2}", it.e2e_us),
                notes.join("; "),
            ),
            row("instances", it.mock_instances.to_string(), it.e2e_instances.to_string(), ""),
        ];
        let Some([from, to]) = it.interval else {
            let observed = format!("{:.3}, one instance on each side: no interval", it.ratio);
            return check("latency", Verdict::Inconclusive, observed, threshold, rows);
        };
        let verdict = if from >= low && to <= high {
            Verdict::Pass
        } else if to < low || from > high {
            Verdict::Fail
        } else {
            Verdict::Inconclusive
        };
        let beyond = it.ratio > asked.triage_ratio || it.ratio * asked.triage_ratio < 1.0;
        let note = if beyond { ", beyond triage" } else { "" };
        check("latency", verdict, format!("{:.3} ({from:.3} to {to:.3}){note}", it.ratio), threshold, rows)
    }

    fn graphs(&self) -> Check {
        let share = |side: usize| percent(self.found[side].replayed as f64, self.found[side].kernels as f64).unwrap_or(0.0);
        let [mock, e2e] = [0, 1].map(share);
        let observed = format!("{mock:.0} % of the mock's kernels and {e2e:.0} % of the whole model's are replayed");
        check("graphs", pass_if((mock - e2e).abs() < 1.0), observed, "equal shares".into(), vec![])
    }
}

/// A mean count: whole where it is.
fn trim(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
