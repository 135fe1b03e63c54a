//! Results that depend on the model: its work, utilisation, ledger and refutations.

use llmprof_core::{
    domain::{device_peaks::DevicePeaks, stated_model::StatedModel},
    trace::{Trace, event::Start},
};

use super::Analysis;
use crate::{
    events::Events,
    ledger::{self, LedgerInput},
    model_work::{KnownModel, ModelWork},
    power, refutation,
    roofline::{self, ceilings::DeviceCeilings, limits, mfu},
    step_batches::StepBatch,
    timeline::gpu::split::WindowSplits,
};

impl Analysis {
    /// Number of GPUs, or of processes on one, that share the work: as in the capture, or the
    /// number of ranks if the capture has fewer.
    pub(crate) fn sharing_gpus(&self, trace: &Trace) -> u64 {
        let ranks = trace.timeline.iter().flat_map(|it| {
            let groups = it.collectives.groups.iter().filter_map(|group| group.size);
            let processes = it.collectives.processes.values();
            groups.chain(processes.filter_map(|process| process.world_size))
        });
        (self.processes.devices() as u64).max(ranks.max().map_or(0, u64::from))
    }

    /// True if decode steps speculate: a step may make several tokens, and a draft model runs too.
    pub(crate) fn speculates(&self) -> bool {
        self.step_batches.iter().any(StepBatch::is_speculative)
    }

    /// The work of one repeat; none of a stated model on several GPUs or in several processes,
    /// whose shares of it are not stated.
    pub(super) fn model_work<'a>(
        &mut self,
        trace: &Trace,
        known: Option<KnownModel<'a>>,
        baseline: &Events<'a>,
    ) -> Option<ModelWork<'a>> {
        if let Some(KnownModel::Stated(stated)) = known {
            self.stated = Some(stated.clone());
            if self.sharing_gpus(trace) > 1 {
                return None;
            }
        }
        let work = ModelWork::of(known?, baseline, &self.stages)?;
        Some(work.with_speculation(self.speculates()))
    }

    pub(super) fn add_ledger(
        &mut self,
        trace: &Trace,
        work: Option<&ModelWork>,
        baseline: &Events,
        (splits, peaks): (&WindowSplits, Option<&DevicePeaks>),
    ) {
        let ceilings = DeviceCeilings::of(baseline, peaks, self.power.as_ref());
        let input = LedgerInput {
            nsys: trace.timeline.as_ref(),
            splits,
            work: work.and_then(|work| ledger::work(self, work)),
            dtype: work.map(|work| work.dtype),
            ceilings: &ceilings,
            waits: &self.collectives.waits,
            tile_fill: ledger::tile_fills(&self.gemms.records),
            launch_ns: trace.timeline.as_ref().map_or(0, ledger::launch_ns),
        };
        self.host_copies = ledger::host_copies::host_copies(splits);
        self.ledger = ledger::ledger(self, &input).recorded_by(self.tool);
        self.step_batches = ledger::step_floors(self, work, &input);
    }

    /// Adds power, and the utilisation of the device's ceilings.
    pub(super) fn add_utilisation(
        &mut self,
        trace: &Trace,
        baseline: &Events,
        (work, peaks): (Option<&ModelWork>, Option<&DevicePeaks>),
    ) {
        // The sampler ran during the unprofiled pass: derived events are of another pass.
        let sampled = Events::of(&trace.baseline);
        self.power = trace.power.as_ref().map(|log| power::power(log, &sampled, &self.stages));
        self.power.iter_mut().for_each(|power| self.violations.clocks(power));
        let ceilings = DeviceCeilings::of(baseline, peaks, self.power.as_ref());
        let on_cpu = baseline.start.is_some_and(Start::is_on_cpu);
        let dtype = work.map(|work| work.dtype.to_string());
        let dtype = dtype.or_else(|| Some(baseline.start?.dtype.clone()));
        let dtype = dtype.or_else(|| self.operators.main_dtype());
        let modelled = work.and_then(ModelWork::flops);
        let times = (&self.stages, &self.stage_gpu);
        let mut mfu = dtype
            .map(|it| mfu::mfu(&it, times, &self.operators, modelled, &ceilings))
            .unwrap_or_default();
        mfu.operators = mfu::operator_mfu(&self.operators, &ceilings, on_cpu, &mut mfu.findings);
        self.gemms.add_ceilings(&ceilings);
        self.roofline = roofline::roofline(&self.counters, &self.kernels, &ceilings);
        self.mfu = mfu;
        self.removed_rates = limits::remove(self, peaks.filter(|_| !on_cpu));
    }

    /// Adds the proofs that another model ran than the stated one.
    pub(super) fn add_refutations(
        &mut self,
        trace: &Trace,
        baseline: &Events,
        stated: &StatedModel,
        (work, peaks): (&ModelWork, Option<&DevicePeaks>),
    ) {
        let ceilings = DeviceCeilings::of(baseline, peaks, self.power.as_ref());
        self.refutations = refutation::refutations(self, stated, work, trace, &ceilings);
    }
}
