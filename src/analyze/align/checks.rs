//! The checks of an alignment, each with what was seen, what was asked, and its rows.
//!
//! Nothing here reads a capture: it compares what was isolated.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Check, Place, Row, Side, Verdict,
    advice::advice,
    isolate::Isolated,
    latency::latency,
    names::{at_level, full_name},
    sequence,
    settings::{Level, Question},
};
use crate::analyze::{coverage::coverage, stats::percent};

/// Rows that a check shows.
const ROWS: usize = 60;
const SIDES: [&str; 2] = ["mock", "end to end"];

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

fn check(id: &str, verdict: Verdict, observed: String, threshold: String, mut rows: Vec<Row>) -> Check {
    rows.truncate(ROWS);
    let advice = (verdict != Verdict::Pass).then(|| advice(id).to_owned());
    Check { id: id.into(), verdict, observed, threshold, decisive: true, rows, advice }
}

fn row(what: impl Into<String>, mock: impl Into<String>, e2e: impl Into<String>, note: impl Into<String>) -> Row {
    Row { what: what.into(), mock: mock.into(), e2e: e2e.into(), note: note.into() }
}

fn pass_if(good: bool) -> Verdict {
    if good { Verdict::Pass } else { Verdict::Fail }
}

/// Runs all checks, and puts the usual sequences side by side.
pub fn checks(on: &Evidence) -> (Vec<Check>, Vec<Place>) {
    let mut checks = vec![complete(on), isolation(on)];
    let mut places = Vec::new();
    if on.found.iter().any(|it| it.units.is_empty()) {
        for id in ["names", "missing_kernels", "extra_kernels", "counts", "geometry", "sequence", "matched_time", "latency", "graphs"] {
            let observed = "a side has no kernels of the operation".to_owned();
            checks.push(check(id, Verdict::Inconclusive, observed, "kernels in both sides".into(), vec![]));
        }
    } else {
        let pairs = on.pairs();
        places = on.places(&pairs);
        checks.extend([on.names(), on.one_sided(1), on.one_sided(0), on.counts(), on.geometry(&pairs), on.sequence(&places)]);
        checks.extend([on.matched(), on.latency(), on.graphs()]);
    }
    checks.extend([on.inputs(), on.clocks()]);
    (checks, places)
}

fn complete(on: &Evidence) -> Check {
    let asked = on.question.thresholds.complete_pct;
    let (mut rows, mut good) = (Vec::new(), true);
    let mut values: [Vec<String>; 3] = Default::default();
    let mut notes = Vec::new();
    for (at, (side, found)) in on.sides.iter().zip(on.found).enumerate() {
        let whole = coverage(side.trace, &[]);
        let enough = |part: u64, all: u64| percent(part as f64, all as f64).is_none_or(|pct| pct >= asked);
        let none = side.trace.kernels.is_empty();
        good &= enough(found.recorded, found.launched) && enough(whole.recorded, whole.launched) && found.graphs_empty == 0 && !none;
        values[0].push(format!("{} of {}", found.recorded, found.launched));
        values[1].push(format!("{} of {}", whole.recorded, whole.launched));
        values[2].push(format!("{} of {}", found.graphs_empty, found.graphs));
        if none {
            notes.push(format!("the {} capture holds no kernels", SIDES[at]));
        }
        if found.graphs_empty > 0 {
            notes.push(format!("the {} side has graphs that were not traced by node", SIDES[at]));
        }
    }
    let what = ["launches of the operation with their kernel", "launches of the capture with their kernel", "launches of graphs without kernels"];
    for (what, mut values) in what.into_iter().zip(values) {
        let e2e = values.pop().unwrap_or_default();
        rows.push(row(what, values.pop().unwrap_or_default(), e2e, ""));
    }
    let observed = match notes.is_empty() {
        true if good => "both captures hold what was launched".to_owned(),
        true => "a capture lacks kernels that were launched".to_owned(),
        false => notes.join("; "),
    };
    let verdict = if good { Verdict::Pass } else { Verdict::Inconclusive };
    check("complete", verdict, observed, format!("{asked} % of launches, in each"), rows)
}

fn isolation(on: &Evidence) -> Check {
    let (mut reasons, mut rows) = (Vec::new(), Vec::new());
    for (at, found) in on.found.iter().enumerate() {
        let side = SIDES[at];
        if !found.units.is_empty() {
            if found.empty > 0 && found.replayed == 0 {
                reasons.push(format!("{side}: {} of {} counted instances have no kernels", found.empty, found.counted));
            }
        } else if on.by_sequence && at == 1 {
            reasons.push(format!("{side}: the mock's sequence is nowhere in the timeline of the stage"));
        } else if found.ranges == 0 {
            reasons.push(format!("{side}: the operation is not in the capture"));
        } else if found.counted == 0 {
            reasons.push(format!("{side}: all {} instances are warm-up or outside what counts", found.ranges));
        } else {
            reasons.push(format!("{side}: none of {} counted instances has a kernel", found.counted));
        }
    }
    let each = |of: fn(&Isolated) -> String| on.found.map(of);
    let facts = [
        ("found by", each(|it| it.how.clone())),
        ("instances in the capture", each(|it| it.ranges.to_string())),
        ("counted", each(|it| it.counted.to_string())),
        ("left out (warm-up, other stages)", each(|it| (it.ranges - it.counted).to_string())),
        ("layers in forwards with kernels", each(|it| it.units.len().to_string())),
        ("distinct sequences", each(|it| it.forms.len().to_string())),
    ];
    rows.extend(facts.into_iter().map(|(what, [mock, e2e])| row(what, mock, e2e, "")));
    let verdict = if reasons.is_empty() { Verdict::Pass } else { Verdict::Inconclusive };
    let observed = if reasons.is_empty() {
        format!("{} and {} instances", on.found[0].units.len(), on.found[1].units.len())
    } else {
        reasons.join("; ")
    };
    check("isolation", verdict, observed, "instances with kernels in both".into(), rows)
}

impl Evidence<'_> {
    /// Time by name of what is not waived, nanoseconds.
    fn times(&self, side: usize) -> BTreeMap<u32, i64> {
        let mut times = BTreeMap::new();
        for (kind, ns) in self.found[side].kind_ns.iter().filter(|(kind, _)| !self.waived[side][**kind as usize]) {
            *times.entry(self.keys[side][*kind as usize]).or_default() += ns;
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
            let name = |kind: &u32| full_name(self.sides[side].trace, kinds[*kind as usize].full_name, kinds[*kind as usize].name);
            self.found[side].kind_ns.keys().map(|kind| at_level(name(kind), Level::Family)).collect()
        };
        let families = [family(0), family(1)];
        let (mut rows, mut both) = (Vec::new(), 0);
        for key in &all {
            let has = [times[0].contains_key(key), times[1].contains_key(key)];
            if has == [true, true] {
                both += 1;
                continue;
            }
            let name = &self.names[*key as usize];
            let like = families[usize::from(has[0])].contains(&at_level(name, Level::Family));
            let note = if like { "the other side has it with another tile, architecture or template" } else { "" };
            let said = |has: bool| if has { "yes" } else { "no" };
            rows.push(row(name.clone(), said(has[0]), said(has[1]), note));
        }
        let critical = [self.critical(0), self.critical(1)];
        let one_sided = |key: &u32| times[0].contains_key(key) != times[1].contains_key(key);
        let verdict = match rows.is_empty() {
            true if both > 0 => Verdict::Pass,
            true => Verdict::Inconclusive,
            false if critical.iter().flatten().any(one_sided) => Verdict::Fail,
            false => Verdict::Warn,
        };
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
        let verdict = if only.is_empty() { Verdict::Pass } else if worst > 0 { Verdict::Fail } else { Verdict::Warn };
        let id = if side == 1 { "missing_kernels" } else { "extra_kernels" };
        let threshold = format!("none of {} % of the time or more", self.question.thresholds.critical_pct);
        check(id, verdict, format!("{} names, {worst} critical", only.len()), threshold, rows.collect())
    }

    fn counts(&self) -> Check {
        let per_instance = |side: usize| {
            let lengths: Vec<usize> = self.found[side].forms.iter().map(|form| self.kept(side, form).len()).collect();
            let units = &self.found[side].units;
            units.iter().map(|unit| lengths[unit.form as usize] as f64).sum::<f64>() / units.len() as f64
        };
        let [mock, e2e] = [0, 1].map(per_instance);
        let mut by_name: BTreeMap<u32, [u64; 2]> = BTreeMap::new();
        for side in [0, 1] {
            let usual = self.keyed(side, self.found[side].usual());
            usual.iter().for_each(|key| by_name.entry(*key).or_default()[side] += 1);
        }
        let differs = by_name.iter().filter(|(_, counts)| counts[0] != counts[1]);
        let rows: Vec<Row> =
            differs.map(|(key, [a, b])| row(self.names[*key as usize].clone(), a.to_string(), b.to_string(), "")).collect();
        let off = percent((mock - e2e).abs(), e2e).unwrap_or(100.0);
        let asked = self.question.thresholds.count_pct;
        let good = off <= asked + 1e-9 && (rows.is_empty() || asked > 0.0);
        let observed = format!("{} and {} kernels per layer and forward", trim(mock), trim(e2e));
        check("counts", pass_if(good), observed, format!("within {asked} %"), rows)
    }

    /// The grids and blocks seen at each place of sequences of the same names.
    fn geometry(&self, pairs: &[sequence::Pair]) -> Check {
        type Shape = ([u32; 3], [u32; 3]);
        let usual = [0, 1].map(|side| self.keyed(side, self.found[side].usual()));
        let seen = |side: usize| -> Vec<BTreeSet<Shape>> {
            let kinds = self.sides[side].trace.kernels.kinds();
            let mut seen = vec![BTreeSet::new(); usual[side].len()];
            for form in self.found[side].forms.iter().filter(|form| self.keyed(side, form) == usual[side]) {
                for (at, kind) in self.kept(side, form).iter().enumerate() {
                    seen[at].insert((kinds[*kind as usize].grid, kinds[*kind as usize].block));
                }
            }
            seen
        };
        let shapes = [seen(0), seen(1)];
        let said = |shapes: &BTreeSet<Shape>| {
            let first: Vec<String> = shapes.iter().take(3).map(|(grid, block)| format!("{grid:?} x {block:?}")).collect();
            first.join(", ") + if shapes.len() > 3 { ", and more" } else { "" }
        };
        let (mut rows, mut both) = (Vec::new(), 0);
        for (a, b) in pairs.iter().filter_map(|(a, b)| a.zip(*b)) {
            both += 1;
            let (mock, e2e) = (&shapes[0][a], &shapes[1][b]);
            if mock != e2e {
                let name = self.names[usual[0][a] as usize].clone();
                rows.push(row(name, said(mock), said(e2e), format!("place {} and {}", a + 1, b + 1)));
            }
        }
        let verdict = if both == 0 { Verdict::Inconclusive } else { pass_if(rows.is_empty()) };
        let observed = format!("{} of {both} matched places differ in grid or block", rows.len());
        check("geometry", verdict, observed, "the same grids and blocks at each place".into(), rows)
    }

    fn sequence(&self, places: &[Place]) -> Check {
        let forms = |side: usize| -> Vec<Vec<u32>> { self.found[side].forms.iter().map(|form| self.keyed(side, form)).collect() };
        let all = [forms(0), forms(1)];
        let sets = [0, 1].map(|side| all[side].iter().collect::<BTreeSet<_>>());
        let share = |side: usize| {
            let known: Vec<bool> = all[side].iter().map(|form| sets[1 - side].contains(form)).collect();
            let units = &self.found[side].units;
            percent(units.iter().filter(|unit| known[unit.form as usize]).count() as f64, units.len() as f64).unwrap_or(0.0)
        };
        let [mock, e2e] = [0, 1].map(share);
        let asked = self.question.thresholds.sequence_pct;
        let differs = places.iter().enumerate().filter(|(_, place)| place.mock.is_none() || place.e2e.is_none());
        let rows = differs.map(|(at, place)| {
            let said = |it: &Option<String>| it.clone().unwrap_or_else(|| "–".into());
            row(format!("place {}", at + 1), said(&place.mock), said(&place.e2e), "only in one, or elsewhere in the order")
        });
        let observed = format!("{mock:.1} % of the mock's instances and {e2e:.1} % of the whole model's run an order of the other side");
        check("sequence", pass_if(mock.min(e2e) >= asked), observed, format!("{asked} % of each"), rows.collect())
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
            row("microseconds per layer and forward", format!("{:.2}", it.mock_us), format!("{:.2}", it.e2e_us), notes.join("; ")),
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

    fn inputs(&self) -> Check {
        let threshold = "number format, prompt and image positions, batch and cache as in the whole model".to_owned();
        let (Some(mock), Some(e2e)) = (self.sides[0].start, self.sides[1].start) else {
            let observed = "a bare capture does not tell its inputs".to_owned();
            return Check { decisive: false, ..check("inputs", Verdict::Inconclusive, observed, threshold, vec![]) };
        };
        let of = |what: &str, [a, b]: [String; 2]| row(what, a.clone(), b.clone(), if a == b { "" } else { "differs" });
        let rows = vec![
            of("number format", [mock.dtype.clone(), e2e.dtype.clone()]),
            of("prompt positions", [mock.prompt_tokens.to_string(), e2e.prompt_tokens.to_string()]),
            of("image positions", [mock.image_tokens.to_string(), e2e.image_tokens.to_string()]),
        ];
        let differ = rows.iter().filter(|row| !row.note.is_empty()).count();
        check("inputs", pass_if(differ == 0), format!("{differ} of {} differ", rows.len()), threshold, rows)
    }

    fn clocks(&self) -> Check {
        let asked = self.question.thresholds.clock_pct;
        let threshold = format!("mean clocks within {asked} %");
        let Some((mock, e2e)) = self.sides[0].clock_mhz.zip(self.sides[1].clock_mhz) else {
            let observed = "clocks were not sampled on both sides".to_owned();
            return Check { decisive: false, ..check("clocks", Verdict::Inconclusive, observed, threshold, vec![]) };
        };
        let off = percent((mock - e2e).abs(), e2e).unwrap_or(100.0);
        let verdict = if off <= asked { Verdict::Pass } else { Verdict::Warn };
        check("clocks", verdict, format!("{mock:.0} and {e2e:.0} MHz"), threshold, vec![])
    }
}

/// A mean count: whole where it is.
fn trim(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
