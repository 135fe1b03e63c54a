//! Rows and members of one stage.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::domain::digits::figure;

use super::{
    FloorOf, Ledger, LedgerCause, LedgerInput, LedgerMember, LedgerRow, LedgerStage, LedgerUnit,
    StageTimes,
    evidence::{KernelEvidence, SAMPLED_PASS},
    floors::{Floors, OperatorFloor, Rate, Rates},
    missing_figures::{ModelState, has_unknown_work},
    part_names::part_name,
    savings::limit_gap_savings,
    work::StageSums,
};
use crate::stats::{percent, ratio};

/// Members of a row that are listed; the rest is one more.
const MAX_MEMBERS: usize = 200;
/// Sources of the floor of a model.
pub const MODEL_SOURCES: &str = "FLOPs and bytes of the model, ceilings";

/// Everything that the rows of one stage are made from.
pub struct StageRows<'a> {
    pub times: &'a StageTimes<'a>,
    pub floors: &'a Floors,
    pub model: &'a ModelState,
    pub evidence: &'a KernelEvidence<'a>,
    pub rates: &'a Rates,
    /// Least time of a kernel launch, nanoseconds.
    pub launch_ns: i64,
    /// Ranks by their GPUs, of collective operations.
    pub ranks: &'a BTreeMap<u32, u32>,
}

impl StageRows<'_> {
    /// Adds the stage with its rows and members.
    pub fn add_to(&self, input: &LedgerInput, ledger: &mut Ledger) {
        let mut sums = StageSums::default();
        let mut missing = self.floors.missing.clone();
        let traced_ns = match self.times.split.zip(input.nsys) {
            Some((split, nsys)) => {
                self.add_work(split, nsys, input, &mut sums);
                self.add_missing(&sums, nsys.calls_hip(), &mut missing);
                Some(self.times.scale.of(split.window_ns))
            }
            None => {
                self.add_untraced(&mut sums);
                missing.push(
                    "No complete timeline of the stage: its time above the floor is unexplained. \
                     Trace it with nsys, and read the findings on the capture."
                        .into(),
                );
                None
            }
        };
        let measured_ns = self.times.measured_ns;
        let difference = traced_ns.map_or(0, |traced| measured_ns - traced);
        let mut difference_of = self.member(LedgerCause::PassDifference, None, None);
        difference_of.ns = difference;
        difference_of.evidence = match self.times.is_only_traced {
            true => {
                "time of the stage minus its windows on the GPUs, whose overlaps count once".into()
            }
            false => "unprofiled minus traced time".into(),
        };
        sums.add(difference_of, "time of the stage");
        limit_gap_savings(&mut sums.members, difference, sums.gaps_on_busiest);
        let floor_ns: i64 = of_cause(&sums.members, LedgerCause::Floor).map(|it| it.ns).sum();
        let floor_of = match (self.floors.is_model, sums.is_any_floor) {
            (true, _) => Some(FloorOf::Model),
            (false, true) => Some(FloorOf::Kernels),
            (false, false) => None,
        };
        let source = |rate: Option<&Rate>| rate.map(|it| it.source.to_owned());
        ledger.stages.push(LedgerStage {
            stage: self.times.stage.into(),
            measured_ns,
            traced_ns,
            steps: self.times.steps,
            unit: match self.times.cut_steps {
                Some(_) => LedgerUnit::Step,
                None => LedgerUnit::Repeat,
            },
            instances: self.times.cut_steps.or_else(|| {
                self.times.split.filter(|_| self.times.is_only_traced).map(|it| it.instances)
            }),
            floor_of,
            floor_ns: floor_of.map(|_| floor_ns),
            // A floor of a part of the work is not the floor of the stage.
            times_floor: floor_of
                .filter(|_| self.floors.is_model || !has_unknown_work(&sums))
                .and_then(|_| ratio(measured_ns as f64, floor_ns as f64)),
            flops_ceiling: source(self.rates.flops.get(&self.rates.dtype)),
            bytes_ceiling: source(self.rates.bytes.as_ref()),
            capped_operators: sums.capped,
            capped_ns: sums.capped_ns,
            overlap_ns: sums.compute_ns.min(sums.memory_ns),
            evidence_pct: percent(sums.proven_ns as f64, sums.kernel_ns as f64),
            missing,
        });
        self.add_rows(sums, ledger);
    }

    /// Floor and rest of a stage without a timeline.
    fn add_untraced(&self, sums: &mut StageSums) {
        let mut left = self.times.measured_ns;
        for (path, floor) in &self.floors.operators {
            let mut member = self.member(LedgerCause::Floor, Some(path.clone()), None);
            let wanted = floor.ns.round() as i64;
            member.ns = wanted.clamp(0, left);
            sums.capped += u64::from(wanted > member.ns);
            sums.capped_ns += wanted - member.ns;
            member.evidence = floor_text(floor);
            left -= member.ns;
            if member.ns > 0 {
                sums.add(member, MODEL_SOURCES);
            }
        }
        let mut rest = self.member(LedgerCause::Unexplained, None, None);
        rest.ns = left;
        rest.evidence = "no timeline".into();
        sums.add(rest, "");
    }

    pub fn member(
        &self,
        cause: LedgerCause,
        operator: Option<String>,
        kernel: Option<String>,
    ) -> LedgerMember {
        LedgerMember {
            stage: self.times.stage.into(),
            cause,
            operator,
            kernel,
            full_name: None,
            grid: None,
            block: None,
            calls: 0.0,
            ns: 0,
            share_pct: None,
            pass: pass_of(cause, self.times.is_only_traced).into(),
            samples: 0,
            gap_parts: 0,
            evidence: String::new(),
            max_saving_ns: 0,
            longest_ns: None,
        }
    }

    /// Sums the members to rows.
    fn add_rows(&self, sums: StageSums, ledger: &mut Ledger) {
        let StageSums { mut members, sources, on_gpus, .. } = sums;
        let do_wait = of_cause(&members, LedgerCause::CollectiveWait).any(|it| it.ns > 0);
        let on_gpus = Some(on_gpus).filter(|_| do_wait && self.times.is_only_traced);
        let stage_samples = self.evidence.stage_samples(self.times.stage);
        let share = |ns: i64| percent(ns as f64, self.times.measured_ns as f64);
        members.iter_mut().for_each(|it| it.share_pct = share(it.ns));
        members.sort_by(|a, b| {
            (a.cause, b.ns).cmp(&(b.cause, a.ns)).then_with(|| name_of(a).cmp(&name_of(b)))
        });
        for cause in LedgerCause::ALL {
            let of: Vec<&LedgerMember> = of_cause(&members, *cause).collect();
            let ns = of.iter().map(|it| it.ns).sum::<i64>();
            let is_absent = *cause == LedgerCause::Floor || cause.is_cause();
            if ns == 0 && is_absent {
                continue;
            }
            let passes: BTreeSet<&str> = of
                .iter()
                .filter(|it| it.ns != 0)
                .map(|it| it.pass.as_str())
                .filter(|it| !it.is_empty())
                .collect();
            let mean: i64 = of.iter().map(|it| it.max_saving_ns).sum();
            let largest = on_gpus.as_ref().and_then(|it| it.above_mean(*cause, mean));
            ledger.rows.push(LedgerRow {
                stage: self.times.stage.into(),
                cause: *cause,
                ns,
                step_ns: self.times.steps.and_then(|steps| ratio_signed(ns, steps)),
                share_pct: signed_share(ns, self.times.measured_ns),
                members: of.iter().filter(|it| it.ns != 0).count() as u64,
                largest: of
                    .first()
                    .map(|it| part_name(it, &members, LedgerMember::name))
                    .filter(|name| !name.is_empty()),
                pass: join(&passes),
                counter: sources.get(cause).map(join).unwrap_or_default(),
                samples: samples(&of, stage_samples),
                gap_parts: of.iter().map(|it| it.gap_parts).sum(),
                max_saving_ns: largest.map_or(mean, |it| it.1).min(self.times.measured_ns),
                saving_rank: largest.and_then(|(gpu, _)| self.ranks.get(&gpu).copied()),
            });
            let listed = of.iter().filter(|it| it.ns != 0).take(MAX_MEMBERS);
            ledger.members.extend(listed.map(|it| (*it).clone()));
            let beyond = of.iter().filter(|it| it.ns != 0).skip(MAX_MEMBERS);
            ledger.members.extend(summed(beyond));
        }
    }
}

fn join(names: &BTreeSet<&str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

/// Profiled launches and gaps of members, and their samples of the GPU: one sample overlaps several
/// kernels, so these are at most all samples of the stage.
fn samples(members: &[&LedgerMember], stage_samples: Option<u64>) -> u64 {
    let sum = |is_sampled: bool| {
        let of_kind = members.iter().filter(|it| (it.pass == SAMPLED_PASS) == is_sampled);
        of_kind.map(|it| it.samples).sum::<u64>()
    };
    sum(false) + sum(true).min(stage_samples.unwrap_or(u64::MAX))
}

/// The fields that identify a member of a cause.
fn name_of(it: &LedgerMember) -> impl Ord + '_ {
    (&it.operator, &it.kernel, &it.full_name, it.grid, it.block)
}

/// Members beyond the limit as one.
fn summed<'a>(members: impl Iterator<Item = &'a &'a LedgerMember>) -> Option<LedgerMember> {
    let mut all: Option<LedgerMember> = None;
    let mut count = 0u64;
    for it in members {
        count += 1;
        let Some(sum) = &mut all else {
            all = Some((*it).clone());
            continue;
        };
        sum.ns += it.ns;
        sum.calls += it.calls;
        sum.samples += it.samples;
        sum.gap_parts += it.gap_parts;
        sum.max_saving_ns += it.max_saving_ns;
        sum.longest_ns = sum.longest_ns.max(it.longest_ns);
        sum.share_pct = sum.share_pct.zip(it.share_pct).map(|(a, b)| a + b);
    }
    let mut all = all?;
    (all.operator, all.full_name, all.grid, all.block) = (None, None, None, None);
    all.kernel = Some(format!("{count} others"));
    all.evidence = String::new();
    Some(all)
}

fn of_cause(members: &[LedgerMember], cause: LedgerCause) -> impl Iterator<Item = &LedgerMember> {
    members.iter().filter(move |it| it.cause == cause)
}

fn ratio_signed(ns: i64, steps: u64) -> Option<f64> {
    (steps > 0).then(|| ns as f64 / steps as f64)
}

fn signed_share(ns: i64, of: i64) -> Option<f64> {
    (of > 0).then(|| 100.0 * ns as f64 / of as f64)
}

/// Milliseconds, or microseconds of a shorter time.
pub fn length_of(ns: i64) -> String {
    match ns as f64 / 1e3 {
        us @ 1000.0.. => format!("{} ms", figure(us / 1e3)),
        us => format!("{} us", figure(us)),
    }
}

/// The work of a floor in words.
pub fn floor_text(floor: &OperatorFloor) -> String {
    let by = if floor.is_memory_bound { "bytes" } else { "FLOPs" };
    match floor.bytes {
        Some(bytes) => format!(
            "{:.3} GFLOP, {:.2} MB necessary; limited by {by}",
            floor.flops / 1e9,
            bytes.needed / 1e6
        ),
        None => "share of the model's floor by time: the capture's ranges are not the model's \
                 operators"
            .into(),
    }
}

/// The pass that proves a cause; empty if it is the pass of a kernel's counters.
const fn pass_of(cause: LedgerCause, is_only_traced: bool) -> &'static str {
    use LedgerCause::*;
    match (cause, is_only_traced) {
        (Floor, false) => "unprofiled",
        (PassDifference, false) => "unprofiled, nsys",
        (
            Floor | MoreBytes | TensorCores | Waves | Instructions | OperandTraffic | MemoryTraffic
            | Latency | Unexplained,
            _,
        ) => "",
        _ => "nsys",
    }
}
