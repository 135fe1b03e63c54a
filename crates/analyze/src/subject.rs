//! Texts that depend on the subject of a run: the timed pass, and reasons for missing data.
//!
//! Each kind of subject has its own texts, so that no report mentions a pass, a log or a request
//! that the run does not have.

use llmprof_core::{
    domain::{finding::catalogue, subject::SubjectKind},
    trace::framework::TimelineTool,
};

use super::Analysis;

/// Reason for missing figures of captures of graphs, and advice.
const CAPTURE_ALONE: (&str, &str) = (
    "The trace is the capture of a graph, which runs nothing.",
    "Add the trace of a window in which the graph is replayed.",
);

impl Analysis {
    /// The pass that was timed.
    pub fn times_of(&self) -> &'static str {
        match (self.only_traced, self.subject) {
            (false, _) => "the unprofiled pass",
            (true, SubjectKind::Command) => {
                "the traced pass, since the unprofiled one reports no stages"
            }
            (true, SubjectKind::Model | SubjectKind::Part) => {
                "the traced pass, since there is no unprofiled one"
            }
            (true, SubjectKind::Import) => "the capture, without an unprofiled pass",
        }
    }

    /// True for an import of captures of graphs without a window that replays them.
    pub(crate) fn is_graph_capture(&self) -> bool {
        self.findings.iter().any(|it| it.id == catalogue::GRAPH_CAPTURE_ALONE)
    }

    /// Reason for missing stage times, and advice.
    pub fn why_no_stages(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Model | SubjectKind::Part => (
                "The unprofiled pass completed no measured stage.",
                "Read the baseline step's log: the runner exited before its first measured repeat \
                 was complete.",
            ),
            SubjectKind::Command => (
                "No range of the command is a stage, so no stage was timed.",
                "Name its NVTX ranges in the command's stages (targets.toml), or have it open \
                 ranges called prefill and decode_all; steps of vLLM, SGLang and TensorRT-LLM are \
                 known by their names.",
            ),
            SubjectKind::Import if self.is_graph_capture() => CAPTURE_ALONE,
            SubjectKind::Import => (
                "No range of the capture is a stage, so no stage was timed.",
                "Name the ranges that are stages: `--stage prefill=RANGE`, or `stage` of an \
                 import; steps of vLLM, SGLang and TensorRT-LLM are known by their names.",
            ),
        }
    }

    /// Reason for missing utilisation figures, and advice.
    pub fn why_no_utilisation(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Import if self.stages.rows.is_empty() => self.why_no_stages(),
            SubjectKind::Model | SubjectKind::Part => (
                "No stage has both a time and a count of FLOPs.",
                "Read the baseline step's log: the runner records both.",
            ),
            SubjectKind::Command => (
                "The FLOPs of the command are unknown: it reports no operators.",
                "State its model in the command's `computes` (targets.toml), or have it write \
                 operators to standard output as events.",
            ),
            SubjectKind::Import if self.is_of_pytorch() => (
                "The FLOPs of no stage are complete: products or attention ran outside operators \
                 with known shapes.",
                "Record with record_shapes=True. Kernels of graphs have the operators of their \
                 captures: add the traces of these. Kernels of other libraries have no operator.",
            ),
            SubjectKind::Import if self.speculates() => (
                "No FLOPs are computed for speculative decoding, whose draft model cannot be \
                 stated.",
                "Compare tokens per second with and without speculation.",
            ),
            SubjectKind::Import if self.stated.is_some() => (
                "The FLOPs of the stated model are unknown in every stage.",
                "Read the findings on the stated model, and the reasons of the gap ledger.",
            ),
            SubjectKind::Import => (
                "The FLOPs are unknown: a capture of another program has no operator shapes.",
                "State the model with `model_config` and `prompt_tokens`, or import ncu pages for \
                 a roofline.",
            ),
        }
    }

    /// The largest operators of a framework whose FLOPs are not counted though their shapes are
    /// recorded, as the reason for missing utilisation figures, and advice.
    pub fn why_uncounted(&self) -> Option<(String, &'static str)> {
        let is_of_import = self.subject == SubjectKind::Import && self.is_of_pytorch();
        let named = &self.operators.uncounted[..self.operators.uncounted.len().min(2)];
        if !is_of_import || self.stages.rows.is_empty() || named.is_empty() {
            return None;
        }
        let why = format!(
            "The FLOPs of no stage are complete: the FLOPs of {} are not counted.",
            named.join(" and ")
        );
        let remedy = match self.stated {
            Some(_) => "Read the findings on the stated model, and the reasons of the gap ledger.",
            None => "State the model with `model_config` and `prompt_tokens`.",
        };
        Some((why, remedy))
    }

    /// Reason for missing kernels, and advice.
    pub fn why_no_kernels(&self, captured: bool) -> (&'static str, &'static str) {
        match (self.subject, captured) {
            (SubjectKind::Import, true) if self.is_graph_capture() => CAPTURE_ALONE,
            (SubjectKind::Import, true) if self.is_of_pytorch() => (
                "There is no kernel data: the imported traces contain no kernels.",
                "Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] on a host \
                 with a GPU.",
            ),
            (SubjectKind::Import, true) => (
                "There is no kernel data: the imported timeline contains no kernels.",
                "Record the CUDA API (nsys profile -t cuda,nvtx) on a host with a GPU.",
            ),
            (SubjectKind::Import, false) => (
                "There is no kernel data: no timeline was imported.",
                "Import the SQLite export of an nsys report, or a trace by the profiler of \
                 PyTorch, next to the ncu pages.",
            ),
            (_, false) => (
                "There is no kernel data: the run has no nsys capture.",
                "If the step nsys failed, its message has the reason. Otherwise submit with mode \
                 light or deep on a host with nsys installed (Debian package nsight-systems).",
            ),
            (SubjectKind::Command, true) => (
                "There is no kernel data: the nsys capture of the command contains no kernels.",
                "A command on the CPU has none. For one on a GPU, read the nsys step's log and \
                 check that the versions of driver and nsys match.",
            ),
            (SubjectKind::Model | SubjectKind::Part, true) => (
                "There is no kernel data: the nsys capture contains no kernels.",
                "Check that the versions of driver and nsys match, and read the nsys step's log.",
            ),
        }
    }

    /// Reason for missing operator calls, and advice.
    pub const fn why_no_operators(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Model | SubjectKind::Part => (
                "The runner recorded no operator calls.",
                "Record them in the unprofiled pass: profiling.runner.operators of the request.",
            ),
            SubjectKind::Command => (
                "The command reports no operators, and no range inside its stages is one.",
                "Have it open an NVTX range around each module, or write operators to standard \
                 output as events.",
            ),
            SubjectKind::Import if self.is_of_pytorch() => (
                "No operator was recorded.",
                "Record with ProfilerActivity.CPU. Operators of replayed graphs ran when the graph \
                 was captured: add the traces of the captures.",
            ),
            SubjectKind::Import => (
                "No range inside a stage of the capture is an operator.",
                "Open an NVTX range around each module of the program (as \
                 torch.autograd.profiler.emit_nvtx does).",
            ),
        }
    }

    /// Reason for a missing tracing overhead, and advice.
    pub const fn why_no_overhead(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Import => (
                "The capture has no unprofiled pass to compare with.",
                "Time the program without a profiler to measure the tracing overhead.",
            ),
            _ if self.has_cold_pass => (
                "One of the two passes made a single repeat without a warm-up: it was cold, and \
                 the other was not.",
                "Give both a warm-up (warmup, profiling.nsys.warmup) or a second repeat.",
            ),
            _ => (
                "The run has no traced pass to compare with.",
                "Submit with mode light or deep where nsys is installed.",
            ),
        }
    }

    /// Reason for missing static costs, and advice.
    pub const fn why_no_costs(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Model | SubjectKind::Part => (
                "The model's dimensions or the inputs' sizes are unknown.",
                "Read the baseline step's log: the runner reports both when it starts.",
            ),
            SubjectKind::Command => (
                "llmprof does not know the dimensions of the model.",
                "State the model in the command's `computes` (targets.toml).",
            ),
            SubjectKind::Import => (
                "llmprof does not know the dimensions of the model.",
                "State the model with `model_config` and `prompt_tokens`.",
            ),
        }
    }

    /// Reason why no figure of the stated model is given; `None` without a proof that another ran.
    pub fn why_refuted(&self) -> Option<String> {
        let (stated, proof) = self.stated.as_ref().zip(self.refutations.first())?;
        let batch = match stated.batch {
            1 => String::new(),
            batch => format!(", batch {batch}"),
        };
        Some(format!(
            "The stated model ({}, {}, {} prompt tokens{batch}) cannot be the model of the \
             capture: {}. Its floors, costs and MFU are absent.",
            stated.model.name, stated.dtype, stated.prompt_tokens, proof.0
        ))
    }

    /// Returns true for a timeline by the profiler of PyTorch.
    pub const fn is_of_pytorch(&self) -> bool {
        matches!(self.tool, TimelineTool::Pytorch)
    }

    /// Advice on measuring more repeats.
    pub const fn more_repeats(&self) -> &'static str {
        match self.subject {
            SubjectKind::Import => "Record at least 3 instances of each stage after a warm-up.",
            _ => "Submit with 3 repeats or more.",
        }
    }
}
