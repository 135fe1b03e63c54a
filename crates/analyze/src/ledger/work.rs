//! Members of one stage from its traced windows: kernels by operator, copies and gaps.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::{names::signature, timeline::Timeline};

use super::{
    LedgerCause, LedgerInput, LedgerMember,
    causes::{self, AcrossRanks, CausePart, KernelTime},
    evidence::LaunchEvidence,
    floors::OperatorFloor,
    gaps::gaps_text,
    kernel_floors::place_floor,
    long_launches::LongGroup,
    rows::{MODEL_SOURCES, StageRows, floor_text},
    savings::GpuSavings,
};
use crate::{
    collectives,
    kernels::kernel_classes::{ClassCache, reads_operands},
    stages::NO_STAGE,
    stats::ratio,
    timeline::{
        activity::DeviceWork,
        gpu::split::{GapAfter, GapSum, WindowSplit, WorkKind, WorkOf},
    },
};

/// Copies by kernels that write the KV cache, which a model needs.
const CACHE_WRITES: [&str; 4] =
    ["reshape_and_cache", "index_copy", "store_kvcache", "concat_and_cache"];
/// Identity of work of one operator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkName<'a> {
    /// Name of a kernel without its template arguments, or of a copy.
    pub name: String,
    /// Name of a kernel with its arguments.
    pub full_name: Option<&'a str>,
    /// Grid and block; a copy or a graph has none.
    pub launch: Option<([u32; 3], [u32; 3])>,
    /// Class and whether it is a copy: kernels of one name differ in it by their arguments.
    class: &'static str,
    is_copy: bool,
}

/// Time of work of one operator in one repeat.
#[derive(Debug, Clone, Default)]
pub struct WorkGroup {
    pub ns: i64,
    alone_ns: i64,
    pub calls: f64,
    is_collective: bool,
    /// Waiting and transfer, and the launches that they are of.
    across_ranks: AcrossRanks,
    long: LongGroup,
    /// A CUDA graph traced as a whole.
    pub is_graph: bool,
    /// Time of kernels by the number of their GPU.
    pub on_gpus: BTreeMap<u32, i64>,
}

impl WorkGroup {
    /// Adds waiting and transfer of `ns` of a kernel, by their shares of its launches in the stage.
    fn add_wait(&mut self, ns: i64, of: &WorkOf, stage: &str, input: &LedgerInput) {
        let WorkKind::Kernel(kind) = of.kind else { return };
        let Some(it) = input.waits.get(&(stage.to_owned(), kind)) else { return };
        let share = |part: i64| ratio(part as f64, it.ns as f64).unwrap_or(0.0) * ns as f64;
        let sums = &mut self.across_ranks;
        sums.wait += share(it.wait_ns);
        sums.transfer += share(it.transfer_ns);
        sums.launches += it.launches;
        sums.joined += it.joined;
    }

    /// Its time without the excess of long launches.
    pub const fn usual_ns(&self) -> i64 {
        self.ns - self.long.ns
    }

    /// Mean time of a launch, without the excess of long launches.
    fn mean_ns(&self) -> i64 {
        ratio(self.usual_ns() as f64, self.calls).unwrap_or(0.0).round() as i64
    }

    /// The parts as shares of the time.
    fn across_ranks(&self) -> Option<AcrossRanks> {
        let share = |ns: f64| ratio(ns, self.ns as f64).unwrap_or(0.0).min(1.0);
        let it = Some(self.across_ranks).filter(|it| it.joined > 0)?;
        Some(AcrossRanks { wait: share(it.wait), transfer: share(it.transfer), ..it })
    }
}

/// Groups of one operator; the empty path is outside all operators.
pub type OperatorGroups<'a> = BTreeMap<WorkName<'a>, WorkGroup>;

/// Sums while the rows of a stage are built.
#[derive(Default)]
pub struct StageSums {
    pub members: Vec<LedgerMember>,
    /// Figures that prove each cause.
    pub sources: BTreeMap<LedgerCause, BTreeSet<&'static str>>,
    pub kernel_ns: i64,
    pub proven_ns: i64,
    pub capped: u64,
    pub capped_ns: i64,
    pub compute_ns: i64,
    pub memory_ns: i64,
    pub is_any_floor: bool,
    /// Time of kernels without a floor of their own, if the stage's floor is theirs.
    pub without_floor_ns: i64,
    pub on_gpus: GpuSavings,
    /// Gaps of the busiest GPU, if they limit the saving of all gaps.
    pub gaps_on_busiest: Option<i64>,
}

impl StageSums {
    /// Adds a member and the names of the figures that prove it.
    pub fn add(&mut self, member: LedgerMember, sources: &'static str) {
        let names = sources.split(", ").filter(|name| !name.is_empty());
        self.sources.entry(member.cause).or_default().extend(names);
        self.members.push(member);
    }
}

impl StageRows<'_> {
    /// Divides the traced windows.
    pub fn add_work(
        &self,
        split: &WindowSplit,
        nsys: &Timeline,
        input: &LedgerInput,
        sums: &mut StageSums,
    ) {
        let mut parts = self.times.scale.parts();
        let mut operators: BTreeMap<String, OperatorGroups> = BTreeMap::new();
        let mut classes = ClassCache::default();
        let path = |of: &WorkOf| {
            of.operator.and_then(|at| input.splits.operators.get(at as usize)).cloned()
        };
        // By names, not by the order of the kernels' records: parts round by their order.
        let mut work: Vec<_> = split
            .work
            .iter()
            .map(|(of, time)| {
                let group = group_of(of, nsys, &mut classes);
                (path(of).unwrap_or_default(), group, of, time)
            })
            .collect();
        work.sort_by(|a, b| (&a.0, &a.1.0).cmp(&(&b.0, &b.1.0)));
        for (path, (name, group), of, time) in work {
            let at = operators.entry(path).or_default().entry(name).or_insert(group);
            let ns = parts.next(time.ns);
            at.ns += ns;
            if let WorkKind::Kernel(kind) = of.kind {
                let gpu = nsys.kernels.kinds()[kind as usize].device;
                *at.on_gpus.entry(gpu).or_default() += ns;
            }
            at.add_wait(ns, of, &split.stage, input);
            at.alone_ns += self.times.scale.of(time.alone_ns).min(ns);
            // Collective operations wait for other ranks.
            if let Some(long) = split.long_launches.get(of).filter(|_| !at.is_collective) {
                at.long.add(long, ns);
            }
            at.calls += time.calls as f64 * self.times.scale.ratio();
        }
        let named = |(gap, sum): (&GapAfter, &GapSum)| {
            let after = gap.after.as_ref();
            let name = after.map(|of| group_of(of, nsys, &mut classes).0.name);
            let call = gap.call.and_then(|at| input.splits.host_calls.get(at as usize)).cloned();
            ((LedgerCause::of_gap(gap.reason), call.or_else(|| after.and_then(path)), name), *sum)
        };
        // By name: a gap does not depend on the grid of the work before it.
        let mut gaps: BTreeMap<_, GapSum> = BTreeMap::new();
        for (name, sum) in split.gaps.iter().map(named) {
            gaps.entry(name).or_default().append(&sum);
        }
        for ((cause, path, name), sum) in gaps {
            let mut member = self.member(cause, path, name);
            member.ns = parts.next(sum.ns);
            member.max_saving_ns = if cause.is_gap() { member.ns } else { 0 };
            member.calls = sum.count as f64 * self.times.scale.ratio();
            (member.samples, member.gap_parts) = (sum.count, sum.parts);
            member.longest_ns = Some(sum.longest_ns);
            let noun = if split.stage == NO_STAGE { "processes" } else { "instances" };
            let instances = (split.instances, noun);
            member.evidence = gaps_text(cause, member.operator.as_deref(), &sum, instances);
            let is_profiler = cause == LedgerCause::ProfilerOverhead;
            sums.add(
                member,
                if is_profiler { "the profiler's own records" } else { "calls of the runtime" },
            );
        }
        sums.on_gpus.add_gaps(split, self.times.scale);
        let has_collectives = collectives::are_in_stage(input.waits, self.times.stage);
        sums.gaps_on_busiest = sums.on_gpus.on_busiest(split).filter(|_| !has_collectives);
        self.add_other(split, &mut parts, sums);
        self.add_operators(&operators, sums);
    }

    /// Evidence on work; empty of a copy or graph.
    fn evidence_of(&self, of: &WorkName, mean_ns: i64) -> LaunchEvidence<'_> {
        let Some((grid, block)) = of.launch else { return LaunchEvidence::default() };
        let launch = (self.times.stage, of.name.as_str(), grid, block);
        // Counters depend on it if ncu profiled an instantiation with this launch configuration.
        let depends = self.evidence.has_counters_by_signature(launch);
        let signature = of.full_name.filter(|_| depends).map(signature).unwrap_or_default();
        self.evidence.launch(launch, &signature, mean_ns)
    }

    /// Divides the time of each operator. Floors of operators without kernels of their own count
    /// for graphs traced as a whole, and for kernels outside all operators.
    fn add_operators(&self, operators: &BTreeMap<String, OperatorGroups>, sums: &mut StageSums) {
        let floors = &self.floors.operators;
        let without = floors.iter().filter(|(path, _)| !operators.contains_key(*path));
        let without = OperatorFloor::sum(without.map(|(_, floor)| floor));
        // Operators of another program have other names: the floor of all is divided by time.
        let is_foreign = !operators.keys().any(|path| floors.contains_key(path));
        let time = |groups: &OperatorGroups| -> i64 {
            let counted = groups.iter().filter(|(name, it)| !name.is_copy && !it.is_collective);
            counted.map(|(_, it)| it.ns).sum()
        };
        let all: i64 = operators.values().map(time).sum();
        for (path, groups) in operators {
            let share = match (is_foreign, path.is_empty()) {
                (true, _) => ratio(time(groups) as f64, all as f64).unwrap_or(0.0),
                (false, true) => 1.0,
                (false, false) => 0.0,
            };
            let name = match (is_foreign, path.is_empty()) {
                (true, true) if share < 1.0 => Some("outside all ranges"),
                (true, true) => Some("all operators of the model"),
                (false, true) => Some("operators without kernels of their own"),
                (_, false) => None,
            };
            let pool = OperatorFloor { name, ..without.share(share) };
            let pool = Some(pool).filter(|it| it.ns > 0.0);
            self.add_operator(path, groups, floors.get(path).or(pool.as_ref()), sums);
        }
    }

    fn add_operator(
        &self,
        path: &str,
        groups: &OperatorGroups,
        floor: Option<&OperatorFloor>,
        sums: &mut StageSums,
    ) {
        // A copy is needed if the operator has nothing else.
        let only_copies = groups.iter().all(|(name, it)| name.is_copy || it.is_collective);
        let has_floor = floor.is_some_and(|it| it.ns > 0.0);
        let mut kernels: Vec<KernelTime> = groups
            .iter()
            .map(|(name, group)| KernelTime {
                ns: group.usual_ns(),
                floor_ns: 0,
                calls: group.calls,
                class: name.class,
                reads_operands: name.full_name.is_some_and(|it| reads_operands(name.class, it)),
                is_collective: group.is_collective,
                across_ranks: group.across_ranks(),
                is_needed: !name.is_copy || (only_copies && has_floor),
                excess: None,
                evidence: self.evidence_of(name, group.mean_ns()),
            })
            .collect();
        if self.floors.is_model {
            place_floor(&mut kernels, floor, self.rates, sums);
            self.place_excess(&mut kernels, floor);
            self.add_floor_member(path, floor, &kernels, sums);
        } else {
            self.place_kernel_floors(path, groups, &mut kernels, sums);
        }
        let operator = Some(path.to_owned()).filter(|path| !path.is_empty());
        for ((name, group), kernel) in groups.iter().zip(&kernels) {
            if !name.is_copy && !group.is_graph {
                sums.kernel_ns += group.ns;
                sums.proven_ns += if kernel.evidence.pass.is_empty() { 0 } else { group.ns };
            }
            // First: the other causes save time of the usual launches only.
            let long = (group.long.ns > 0)
                .then(|| CausePart::of_long_launches(group.long.ns, group.long.text()));
            let floor = floor.filter(|_| self.floors.is_model);
            let parts = causes::assign(kernel, floor, self.rates);
            let parts = long.into_iter().chain(parts).collect();
            self.add_causes(operator.as_ref(), (name, group), kernel, parts, sums);
        }
    }

    /// Adds the parts of one kernel's time with their savings: at most the time in which it runs
    /// alone. A kernel that stays saves at most its time above its launches.
    fn add_causes(
        &self,
        operator: Option<&String>,
        (name, group): (&WorkName, &WorkGroup),
        kernel: &KernelTime,
        parts: Vec<CausePart>,
        sums: &mut StageSums,
    ) {
        let mut alone = group.alone_ns;
        let launches_ns = (group.calls * self.launch_ns as f64).round() as i64;
        let mut above_launches = group.ns.saturating_sub(launches_ns).max(0);
        for part in parts {
            let mut member = self.member(part.cause, operator.cloned(), Some(name.name.clone()));
            member.set_launch(name.launch);
            member.full_name = name.full_name.map(str::to_owned);
            member.calls = group.calls;
            member.ns = part.ns;
            if part.by_timeline {
                member.pass = "nsys".into();
            }
            if member.pass.is_empty() {
                member.samples = kernel.evidence.samples;
                member.pass = kernel.evidence.pass.into();
            }
            member.evidence = part.evidence;
            if group.is_graph && part.cause == LedgerCause::Unexplained {
                member.evidence = "its kernels were not recorded: traced as a whole".into();
            }
            if part.cause.is_cause() {
                let stays = part.cause.keeps_kernel();
                let limit = if stays { alone.min(above_launches) } else { alone };
                member.max_saving_ns = part.ns.min(limit);
                alone -= member.max_saving_ns;
                above_launches = above_launches.saturating_sub(member.max_saving_ns).max(0);
                sums.on_gpus.add_member(&member, group, self.times.split);
            }
            sums.add(member, part.sources);
        }
    }

    /// The floor that was placed into the kernels of one operator.
    fn add_floor_member(
        &self,
        path: &str,
        floor: Option<&OperatorFloor>,
        kernels: &[KernelTime],
        sums: &mut StageSums,
    ) {
        let ns = kernels.iter().map(|it| it.floor_ns).sum();
        let Some(floor) = floor.filter(|_| ns > 0) else { return };
        let name = floor.name.unwrap_or(path);
        let mut member = self.member(LedgerCause::Floor, Some(name.into()), None);
        member.ns = ns;
        member.calls = kernels.iter().map(|it| it.calls).fold(0.0, f64::max);
        member.evidence = floor_text(floor);
        if floor.is_memory_bound {
            sums.memory_ns += ns;
        } else {
            sums.compute_ns += ns;
        }
        sums.add(member, MODEL_SOURCES);
    }
}

/// Name of work, and an empty group for it.
fn group_of<'a>(
    of: &WorkOf,
    nsys: &'a Timeline,
    classes: &mut ClassCache,
) -> (WorkName<'a>, WorkGroup) {
    let text = |at: u32| nsys.text(at);
    let mut group = WorkGroup::default();
    let name = match of.kind {
        WorkKind::Kernel(at) => {
            let kind = &nsys.kernels.kinds()[at as usize];
            let class = classes.of(kind.full_name, &nsys.strings);
            let is_cache_write =
                CACHE_WRITES.iter().any(|part| text(kind.full_name).contains(part));
            group.is_collective = class.engine == Some("nccl");
            WorkName {
                name: DeviceWork::Kernel(at).name(nsys),
                full_name: Some(text(kind.full_name)).filter(|name| !name.is_empty()),
                launch: Some((kind.grid, kind.block)),
                class: class.class,
                is_copy: class.class == "copy" && !is_cache_write,
            }
        }
        WorkKind::Graph => {
            group.is_graph = true;
            let name = DeviceWork::Graph.name(nsys);
            WorkName { name, full_name: None, launch: None, class: "graph", is_copy: false }
        }
        WorkKind::Copy(kind) => {
            let name = DeviceWork::Copy(kind).name(nsys);
            WorkName { name, full_name: None, launch: None, class: "copy", is_copy: true }
        }
    };
    (name, group)
}
