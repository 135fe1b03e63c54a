//! The remedy for a run whose files exceeded its limit, by the files that were dropped: the process
//! that was running may have written none of them.

use llmprof_core::{domain::runner, layout};

/// Name of the files that are removed with their tool, among the dropped ones.
pub const TEMPORARY_FILES: &str = "temporary files of the tool";

/// Writer of dropped files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FileWriter {
    /// The profiled program, or the server or client of a command.
    Program,
    /// Model-runner: its events and predictions.
    Runner,
    Nsys,
    Ncu,
}

impl FileWriter {
    const ALL: [Self; 4] = [Self::Program, Self::Runner, Self::Nsys, Self::Ncu];

    /// The writer of files of a pass that are not known by their names.
    fn of_pass(pass: &str) -> Self {
        match pass.split('/').next() {
            Some(layout::NSYS | layout::GPU_METRICS) => Self::Nsys,
            Some(layout::NCU) => Self::Ncu,
            _ => Self::Program,
        }
    }

    /// The writer of a dropped file, which has its path in the run's folder, or of temporary files.
    fn of(pass: &str, path: &str) -> Self {
        if path == TEMPORARY_FILES {
            return Self::of_pass(pass);
        }
        let mut folders: Vec<&str> = path.split('/').collect();
        let name = folders.pop().unwrap_or_default();
        if folders.contains(&layout::OUT) {
            return Self::Program;
        }
        if [runner::EVENTS, layout::PREDICTIONS].contains(&name) {
            return Self::Runner;
        }
        match (name.rsplit_once('.').map(|(_, extension)| extension), folders.first()) {
            (Some("nsys-rep" | "qdstrm" | "sqlite" | "sqlite-journal"), _) => Self::Nsys,
            (Some("ncu-rep"), _) | (Some("csv"), Some(&layout::NCU)) => Self::Ncu,
            _ => Self::Program,
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Program => {
                "have the program write fewer or smaller files below {out}, or raise \
                 limits.run_bytes"
            }
            Self::Runner => {
                "request fewer repeats or tokens, record no operators \
                 (profiling.runner.operators=[]), or raise limits.run_bytes"
            }
            Self::Nsys => {
                "trace less (profiling.nsys: trace, sample, cpuctxsw, duration_s, \
                 cuda_graph_trace graph), generate fewer tokens, or raise limits.run_bytes"
            }
            Self::Ncu => {
                "profile fewer launches (profiling.ncu: max_launches, launches_per_config, \
                 details false), or raise limits.run_bytes"
            }
        }
    }
}

/// The remedy for the writer of most bytes among the files that were dropped, each with its size.
/// `pass`: folder of the pass that ended; empty for the whole run.
pub fn remedy<'a>(pass: &str, dropped: impl IntoIterator<Item = (&'a str, u64)>) -> &'static str {
    let mut bytes = FileWriter::ALL.map(|writer| (0_u64, writer));
    for (path, size) in dropped {
        let writer = FileWriter::of(pass, path);
        for (sum, of) in &mut bytes {
            *sum = sum.saturating_add(if *of == writer { size } else { 0 });
        }
    }
    match bytes.into_iter().max_by_key(|(sum, _)| *sum) {
        Some((1.., writer)) => writer.remedy(),
        _ => FileWriter::of_pass(pass).remedy(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_of_the_writer_of_most_dropped_bytes_in_any_pass() {
        use FileWriter::{Ncu, Nsys, Program, Runner};
        let tools = TEMPORARY_FILES;
        for (pass, dropped, expected) in [
            // The program's own files, whatever the process that was ended.
            ("nsys", &[("nsys/out/big.bin", 9), (tools, 2)][..], Program),
            ("ncu/process-1", &[("ncu/process-1/out/deep/x.csv", 9)], Program),
            ("baseline", &[("baseline/out/events.jsonl", 9)], Program),
            ("baseline", &[("baseline/out/run.sqlite", 9)], Program),
            // Temporary files: of the profiler of the pass.
            ("nsys", &[(tools, 9)], Nsys),
            ("gpu_metrics/rate-20000", &[(tools, 9)], Nsys),
            ("ncu/process-1", &[(tools, 9)], Ncu),
            ("baseline", &[(tools, 9)], Program),
            ("nsys", &[("nsys/out/big.bin", 2), (tools, 9)], Nsys),
            // Captures.
            ("nsys", &[("nsys/run.nsys-rep", 9)], Nsys),
            ("nsys", &[("nsys/run.sqlite", 9)], Nsys),
            ("baseline", &[("nsys/profile.qdstrm", 9)], Nsys),
            ("ncu/process-1", &[("ncu/process-1/run.ncu-rep", 9)], Ncu),
            ("", &[("ncu/process-1/raw.csv", 9)], Ncu),
            // Files of the runner.
            ("baseline", &[("baseline/events.jsonl", 9)], Runner),
            ("nsys", &[("nsys/events.jsonl", 9), ("nsys/run.nsys-rep", 3)], Runner),
            ("baseline", &[("predictions.jsonl", 9)], Runner),
            ("", &[("stray", 9)], Program),
            // Small files are not dropped.
            ("nsys", &[], Nsys),
            ("baseline", &[], Program),
        ] {
            let advice = remedy(pass, dropped.iter().copied());
            assert_eq!(advice, expected.remedy(), "{pass}: {dropped:?}");
            assert!(advice.contains("limits.run_bytes"));
        }
    }
}
