//! Joins logged GEMM calls to the kernels of the timeline, by their order.
//!
//! Log and timeline are of two executions that make the same calls in the same order. A stage is
//! joined as a whole or not at all: when it has as many calls as kernels, and every pair agrees in
//! tile and grid. Nothing is matched by likeness.

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::trace::{
    gemm::GemmCall,
    kernel::LaunchKind,
    timeline::{Timeline, process_of},
};

use super::ChosenAlgorithm;
use crate::{
    kernels::{
        gemm_tiles::tile_of,
        kernel_classes::{KernelClass, classify},
    },
    stages::in_sentence,
    timeline::{
        capture::{Capture, Join},
        open_ranges::NONE,
    },
};

/// A GEMM in the timeline: the launch of a library's kernel, and the reductions of its parts of k.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LibraryGemm {
    /// Index into the launch kinds of the capture.
    pub kind: u32,
    /// Process and stage instance of the launch.
    pub process: i64,
    pub instance: u32,
    /// Time of the kernel and of its reductions.
    pub ns: i64,
}

/// One logged call with its launch in the timeline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JoinedCall {
    /// Index of the call.
    pub call: usize,
    pub gemm: LibraryGemm,
}

/// Calls of one stage in a log, with their launches in the timeline.
pub type StageJoin<'a> = Result<(&'a [GemmCall], Vec<JoinedCall>), String>;

/// Part of a kernel in a library's GEMM.
#[derive(Clone, Copy, PartialEq)]
pub enum GemmPart {
    Product,
    /// Sums the parts of a product with split k.
    Reduction,
}

/// Part of a library's kernel; `None` for other kernels.
pub fn part(full_name: &str) -> Option<GemmPart> {
    let KernelClass { class, engine } = classify(full_name);
    if class != "gemm" || !engine.is_some_and(|it| ["cublas", "cutlass"].contains(&it)) {
        return None;
    }
    let name = full_name.to_ascii_lowercase();
    let reduces = ["splitkreduce", "split_k_kernel", "reduce_1block"];
    Some(if reduces.iter().any(|it| name.contains(it)) {
        GemmPart::Reduction
    } else {
        GemmPart::Product
    })
}

/// The GEMMs of libraries in a capture, with the checks of their sequence against a log.
pub struct TimelineGemms<'a> {
    capture: &'a Capture<'a>,
    /// In the order of their launching calls.
    gemms: Vec<LibraryGemm>,
}

impl<'a> TimelineGemms<'a> {
    pub fn of(capture: &'a Capture<'a>) -> Self {
        let mut parts: HashMap<u32, Option<GemmPart>> = HashMap::default();
        let name = |at: u32| capture.trace.text(at);
        let mut found: Vec<(i64, i64, usize, GemmPart)> = Vec::new();
        let mut calls = capture.trace.cuda_calls.reader();
        let all = capture.kernels();
        for (at, (kernel, Join { call, .. })) in all.enumerate() {
            let named = || part(name(kernel.full_name));
            let Some(part) = *parts.entry(kernel.full_name).or_insert_with(named) else {
                continue;
            };
            // A kernel without its call has an unknown place; the counts will differ.
            if call != NONE {
                found.push((calls.get(call).start_ns, kernel.start_ns, at, part));
            }
        }
        found.sort_by_key(|it| (it.0, it.1));
        let mut gemms: Vec<LibraryGemm> = Vec::with_capacity(found.len());
        let mut last: HashMap<(i64, u32, u32), usize> = HashMap::default();
        for (_, _, at, part) in found {
            let kernel = capture.trace.kernels.get(at);
            let stream = (kernel.global_pid, kernel.device, kernel.stream);
            match (part, last.get(&stream)) {
                (GemmPart::Reduction, Some(product)) => gemms[*product].ns += kernel.ns(),
                (GemmPart::Reduction, None) => {}
                (GemmPart::Product, _) => {
                    last.insert(stream, gemms.len());
                    let (kind, (_, join)) = (capture.trace.kernels.kind(at), capture.kernel(at));
                    let instance = join.instance;
                    let process = process_of(kernel.global_pid);
                    gemms.push(LibraryGemm { kind, process, instance, ns: kernel.ns() });
                }
            }
        }
        Self { capture, gemms }
    }

    pub fn trace(&self) -> &Timeline {
        self.capture.trace
    }

    pub fn launch_kind(&self, kind: u32) -> &LaunchKind {
        &self.capture.trace.kernels.kinds()[kind as usize]
    }

    pub fn name(&self, index: u32) -> &str {
        self.capture.trace.text(index)
    }

    /// Label of the stage in which a GEMM was launched.
    pub fn stage(&self, gemm: &LibraryGemm) -> &str {
        self.capture.stage(gemm.instance)
    }

    /// The GEMMs of each instance of a stage that has the sequence of the first, in order of time.
    fn instances(&self, stage: &str) -> Vec<(u32, Vec<LibraryGemm>)> {
        let mut instances: Vec<(u32, Vec<LibraryGemm>)> = Vec::new();
        for gemm in self.gemms.iter().filter(|it| self.stage(it) == stage) {
            match instances.iter_mut().rfind(|(instance, _)| *instance == gemm.instance) {
                Some((_, gemms)) => gemms.push(*gemm),
                None => instances.push((gemm.instance, vec![*gemm])),
            }
        }
        let kinds = |gemms: &[LibraryGemm]| gemms.iter().map(|it| it.kind).collect::<Vec<_>>();
        let first = instances.first().map(|(_, gemms)| kinds(gemms)).unwrap_or_default();
        instances.retain(|(_, gemms)| kinds(gemms) == first);
        instances
    }

    /// Joins the last calls of a log to a stage that runs last in the logged process, once.
    pub fn join_last<'c>(
        &self,
        stage: &str,
        calls: &'c [GemmCall],
        chosen: &ChosenAlgorithm,
    ) -> StageJoin<'c> {
        let instances = self.instances(stage);
        let count = instances.first().map_or(0, |(_, gemms)| gemms.len());
        if count == 0 {
            return Err(no_kernels(stage));
        }
        let Some(before) = calls.len().checked_sub(count) else {
            return Err(format!(
                "the log has {} calls, the timeline {count} GEMM kernels in {}",
                calls.len(),
                in_sentence(stage)
            ));
        };
        let calls = &calls[before..];
        self.check(calls.iter().zip(&instances[0].1), chosen)?;
        let joined = instances.iter().flat_map(|(_, gemms)| {
            gemms.iter().enumerate().map(|(call, gemm)| JoinedCall { call, gemm: *gemm })
        });
        Ok((calls, joined.collect()))
    }

    /// Joins the calls of `steps` logged decode steps to the steps of a stage's instances. Calls
    /// whose shape differs between the logged steps are joined only in those steps.
    pub fn join_steps<'c>(
        &self,
        stage: &str,
        (calls, steps): (&'c [GemmCall], u64),
        chosen: &ChosenAlgorithm,
    ) -> StageJoin<'c> {
        let instances = self.instances(stage);
        let (Some((instance, first)), Ok(steps)) = (instances.first(), usize::try_from(steps))
        else {
            return Err(no_kernels(stage));
        };
        let per_step = calls.len().checked_div(steps).unwrap_or(0);
        if per_step == 0 || calls.len() != per_step * steps {
            return Err(format!("{} logged calls are not {steps} equal steps", calls.len()));
        }
        let traced = self.steps(*instance).unwrap_or(first.len() / per_step);
        if first.len() != traced * per_step {
            return Err(format!(
                "the log has {per_step} calls a step, the timeline {} GEMM kernels in {traced} \
                 steps",
                first.len()
            ));
        }
        let call_of = |at: usize| {
            let (step, place) = (at / per_step, at % per_step);
            let same = |step: usize| calls[step * per_step + place].shape == calls[place].shape;
            let known = step < steps || (0..steps).all(same);
            known.then(|| step.min(steps - 1) * per_step + place)
        };
        let known = || (0..first.len()).filter_map(|at| Some((at, call_of(at)?)));
        self.check(known().map(|(at, call)| (&calls[call], &first[at])), chosen)?;
        let joined = instances
            .iter()
            .flat_map(|(_, gemms)| known().map(|(at, call)| JoinedCall { call, gemm: gemms[at] }));
        Ok((calls, joined.collect()))
    }

    /// Joins all calls of each process of a command to all GEMMs of a process in the timeline; one
    /// list per logged process. Several processes must all have the same calls.
    pub fn join_processes(
        &self,
        processes: &[Vec<GemmCall>],
        chosen: &ChosenAlgorithm,
    ) -> Result<Vec<Vec<JoinedCall>>, String> {
        let mut launched: BTreeMap<i64, Vec<LibraryGemm>> = BTreeMap::new();
        for gemm in &self.gemms {
            launched.entry(gemm.process).or_default().push(*gemm);
        }
        if launched.len() != processes.len() {
            return Err(format!(
                "{} processes logged GEMMs, {} of the timeline launched some",
                processes.len(),
                launched.len()
            ));
        }
        let shapes =
            |calls: &[GemmCall]| calls.iter().map(|it| it.shape.clone()).collect::<Vec<_>>();
        if processes.windows(2).any(|pair| shapes(&pair[0]) != shapes(&pair[1])) {
            return Err("the logs of its processes differ, and do not name the GPU".into());
        }
        let join = |(calls, gemms): (&Vec<GemmCall>, &Vec<LibraryGemm>)| {
            if calls.len() != gemms.len() {
                return Err(format!(
                    "the log has {} calls, the timeline {} GEMM kernels of libraries",
                    calls.len(),
                    gemms.len()
                ));
            }
            self.check(calls.iter().zip(gemms), chosen)?;
            let joined = gemms.iter().enumerate();
            Ok(joined.map(|(call, gemm)| JoinedCall { call, gemm: *gemm }).collect())
        };
        processes.iter().zip(launched.values()).map(join).collect()
    }

    /// Decode steps in an instance; `None` if the capture has no ranges of steps.
    fn steps(&self, instance: u32) -> Option<usize> {
        let it = self.capture.stages.instances.get(instance as usize)?;
        let inside = |start_ns: i64| (it.start_ns..it.end_ns).contains(&start_ns);
        let rules = &self.capture.trace.rules;
        let steps = self.capture.trace.ranges.iter().filter(|range| {
            inside(range.start_ns)
                && process_of(range.global_tid) == process_of(it.place)
                && rules.is_step_in_decode(&range.name, &range.domain)
        });
        Some(steps.count()).filter(|count| *count > 0)
    }

    /// Checks that each kernel can have computed its call.
    fn check<'c>(
        &self,
        pairs: impl Iterator<Item = (&'c GemmCall, &'c LibraryGemm)>,
        chosen: &ChosenAlgorithm,
    ) -> Result<(), String> {
        for (at, (call, gemm)) in pairs.enumerate() {
            let kind = self.launch_kind(gemm.kind);
            let name = self.name(kind.full_name);
            let logged = || call.algorithm.iter().map(String::as_str);
            let selected = || chosen.get(&call.shape).into_iter().flatten().copied();
            let tiles: Vec<&str> = if call.algorithm.is_some() {
                logged().filter_map(logged_tile).collect()
            } else {
                selected().filter_map(logged_tile).collect()
            };
            if !agrees(call, kind, name, &tiles) {
                let shape = &call.shape;
                return Err(format!(
                    "call {at}, {} x {} x {}, cannot be a launch of {}",
                    shape.m,
                    shape.n,
                    shape.k,
                    self.name(kind.name)
                ));
            }
        }
        Ok(())
    }
}

/// The tile in the description of an algorithm: `algorithm 66, tile 128x64, stages 64x4`.
fn logged_tile(algorithm: &str) -> Option<&str> {
    algorithm.split(", ").find_map(|part| part.strip_prefix("tile "))
}

/// Returns false when the kernel has another tile than the log, or fewer blocks than the GEMM has
/// tiles. Kernels for Hopper and newer loop over tiles, so their grids may be smaller.
fn agrees(call: &GemmCall, kind: &LaunchKind, name: &str, tiles: &[&str]) -> bool {
    let Some(tile) = tile_of(name) else { return true };
    let loops = ["nvjet", "sm90_", "sm100_"].iter().any(|family| name.contains(family));
    let blocks = kind.blocks();
    let enough = loops
        || tile.of_launch(&call.shape, blocks).is_none_or(|tile| tile.tiles(&call.shape) <= blocks);
    enough && (tiles.is_empty() || tiles.iter().any(|logged| tile.matches(logged)))
}

/// The reason of a stage without products of a library.
fn no_kernels(stage: &str) -> String {
    format!("the timeline has no GEMM kernels of a library in {}", in_sentence(stage))
}
