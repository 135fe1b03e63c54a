//! Sentences that depend on the subject of a run: which pass its times are of, and why there are none.
//!
//! Each kind of subject is answered for here, so that no report speaks of a pass, a log or a request that its run never had.

use super::Analysis;
use crate::run::SubjectKind;

impl Analysis {
    /// The pass that times are of.
    pub fn times_of(&self) -> &'static str {
        match (self.only_traced, self.subject) {
            (false, _) => "the unprofiled pass",
            (true, SubjectKind::Command) => "the traced pass, since the unprofiled one reports no stages",
            (true, SubjectKind::Model | SubjectKind::Part) => "the traced pass, since there is no unprofiled one",
            (true, SubjectKind::Import) => "the capture, which has no unprofiled baseline",
        }
    }

    /// Why there are no times of stages, and what to do.
    pub const fn why_no_stages(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Model | SubjectKind::Part => (
                "The unprofiled pass closed no measured stage, so nothing was timed.",
                "Read the baseline step's log: the runner ended before its first measured repeat did.",
            ),
            SubjectKind::Command => (
                "No range of the command is a stage, so no stage was timed.",
                "Name its NVTX ranges in the command's stages (targets.toml), or have it open ranges called prefill and decode_all.",
            ),
            SubjectKind::Import => (
                "No range of the capture is a stage, so no stage was timed.",
                "Name the ranges that are stages: `--stage prefill=RANGE`, or `stage` of an import.",
            ),
        }
    }

    /// Why there are no utilisation figures, and what to do.
    pub const fn why_no_utilisation(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Model | SubjectKind::Part => {
                ("No stage has both a time and a count of FLOPs.", "Read the baseline step's log: the runner records both.")
            }
            SubjectKind::Command => (
                "FLOPs of a command are not known: it reports no operators.",
                "Have it write operators to standard output as events, or profile a configured model.",
            ),
            SubjectKind::Import => (
                "FLOPs are not known: a capture of another program has no operator shapes.",
                "Profile a configured model, or import ncu pages for a roofline.",
            ),
        }
    }

    /// Why there are no kernels, and what to do; `None` of a run on the CPU, which launches none.
    pub const fn why_no_kernels(&self, captured: bool) -> (&'static str, &'static str) {
        match (self.subject, captured) {
            (SubjectKind::Import, true) => (
                "There is no kernel data: the imported timeline contains no kernels.",
                "Record the CUDA API (nsys profile -t cuda,nvtx) on a host with a GPU.",
            ),
            (SubjectKind::Import, false) => (
                "There is no kernel data: no timeline was imported.",
                "Import the SQLite export of an nsys report next to the ncu pages.",
            ),
            (_, false) => (
                "There is no kernel data: the run has no nsys capture.",
                "Submit with mode light or deep on a host with nsys installed (Debian package nsight-systems).",
            ),
            (SubjectKind::Command, true) => (
                "There is no kernel data: the nsys capture of the command contains no kernels.",
                "A command that works on the CPU has none; for one that uses a GPU, read the nsys step's log and check that driver and nsys fit.",
            ),
            (SubjectKind::Model | SubjectKind::Part, true) => (
                "There is no kernel data: the nsys capture contains no kernels.",
                "Check that the driver and nsys are of matching versions, and read the nsys step's log.",
            ),
        }
    }

    /// Why there are no operator calls, and what to do.
    pub const fn why_no_operators(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Model | SubjectKind::Part => {
                ("The runner recorded no operator calls.", "Use a runner that writes operator events.")
            }
            SubjectKind::Command => (
                "The command reports no operators, and no range inside its stages is one.",
                "Have it open an NVTX range around each module, or write operators to standard output as events.",
            ),
            SubjectKind::Import => (
                "No range inside a stage of the capture is an operator.",
                "Open an NVTX range around each module of the program (torch.autograd.profiler.emit_nvtx does).",
            ),
        }
    }

    /// Why there is no comparison of a traced with an unprofiled pass, and what to do.
    pub const fn why_no_overhead(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Import => (
                "The capture has no unprofiled pass to compare with.",
                "Time the program without a profiler to know what tracing costs it.",
            ),
            _ => ("There was no traced pass to compare with.", "Submit with mode light or deep where nsys is installed."),
        }
    }

    /// Why there are no static costs, and what to do.
    pub const fn why_no_costs(&self) -> (&'static str, &'static str) {
        match self.subject {
            SubjectKind::Model | SubjectKind::Part => (
                "The model's dimensions or the inputs' sizes are not known.",
                "Read the baseline step's log: the runner reports both when it starts.",
            ),
            SubjectKind::Command | SubjectKind::Import => (
                "The dimensions of the model are not known to llmprof.",
                "`llmprof cost` counts a configured model's FLOPs and bytes.",
            ),
        }
    }

    /// How to measure more repeats.
    pub const fn more_repeats(&self) -> &'static str {
        match self.subject {
            SubjectKind::Import => "Record at least 3 instances of each stage after a warm-up.",
            _ => "Submit with 3 repeats or more.",
        }
    }
}
