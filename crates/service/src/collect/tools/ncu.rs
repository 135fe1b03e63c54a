//! Commands of Nsight Compute 2025.3: query metrics, profile all stages, print the report; and its
//! known errors.
//!
//! Pure values. One process profiles all stages, selected by the names of their ranges; kernels are
//! selected by their symbols, and of each one's launch configurations the first launch is profiled.

use std::path::Path;

use llmprof_core::{
    domain::{
        finding::catalogue,
        profiling::{NcuSettings, ReplayMode, ToolWord},
    },
    trace::event::STAGE_DOMAIN,
};

use crate::collect::{
    process::{argv::Argv, orphans::TARGET},
    tools::{COUNTERS_FORBIDDEN, COUNTERS_HELD, CounterRefusal},
};

/// Launches that one ncu process profiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchSelection {
    /// Name of the process in paths of the run.
    pub process: String,
    /// Ranges of the launches in ncu's syntax, one for each stage; empty to profile launches of the
    /// whole program.
    pub ranges: Vec<String>,
    /// Function names without scope and arguments.
    pub kernels: Vec<String>,
    /// Linker symbols, which differ between the instantiations of a template; empty to select by
    /// function names.
    pub symbols: Vec<String>,
    /// Tokens to generate in this pass.
    pub max_new_tokens: u32,
}

/// The range of a stage in model-runner, in ncu's syntax.
pub fn runner_range(stage: &str) -> String {
    format!("{STAGE_DOMAIN}@{stage}/")
}

/// Prefix of the counters of tensor core operations, by dtype of their operands. Integer operations
/// are not FLOPs.
const TENSOR_OPS: &str = "sm__ops_path_tensor_src_";
const SPARSITY: [&str; 2] = ["_sparsity_off", "_sparsity_on"];

/// Lists the metrics of this host's devices.
pub fn query(ncu: &Path) -> Argv {
    Argv::new(ncu).arg("--query-metrics")
}

/// Selects the `wanted` metrics from ncu's list: an unknown name would fail the whole pass.
pub fn metrics(listed: &str, wanted: &[ToolWord]) -> Vec<String> {
    let names: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|it| it.contains("__"))
        .collect();
    let mut metrics: Vec<String> = Vec::new();
    for ToolWord(wanted) in wanted {
        // A name with a dot contains its aggregation.
        let (name, of) = wanted.split_once('.').unwrap_or((wanted, "sum"));
        let found: Vec<String> = match name.strip_suffix('*') {
            Some(start) => {
                let matches = |name: &&&str| name.starts_with(start) && is_useful(name, &names);
                names.iter().filter(matches).map(|name| format!("{name}.{of}")).collect()
            }
            None => names.contains(&name).then(|| format!("{name}.{of}")).into_iter().collect(),
        };
        for metric in found {
            if !metrics.contains(&metric) {
                metrics.push(metric);
            }
        }
    }
    metrics
}

/// False for tensor core operations on integers, and for parts of a listed total.
fn is_useful(name: &str, names: &[&str]) -> bool {
    let has_total = |name: &str| {
        SPARSITY
            .iter()
            .find_map(|kind| name.strip_suffix(kind))
            .is_some_and(|name| names.contains(&name))
    };
    name.strip_prefix(TENSOR_OPS).is_none_or(|dtype| !dtype.starts_with("int") && !has_total(name))
}

/// Profiles the selected launches of `target` into `report`. The target is marked: it can be ended
/// before ncu, which then writes the report.
pub fn profile(
    ncu: &Path,
    selection: &LaunchSelection,
    settings: &NcuSettings,
    metrics: &[String],
    report: &Path,
    target: &Argv,
) -> Argv {
    let (base, names) = match &selection.symbols[..] {
        [] => ("function", &selection.kernels),
        _ => ("mangled", &selection.symbols),
    };
    let names: Vec<String> = names.iter().map(|name| escaped(name)).collect();
    let mut argv = Argv::new(ncu)
        .args(["--target-processes", "all", "--graph-profiling", "node"])
        .args(["--clock-control", settings.clock_control.as_str()]);
    if settings.replay_mode != ReplayMode::Kernel {
        argv = argv.args(["--replay-mode", settings.replay_mode.as_str()]);
    }
    argv = argv.arg("--nvtx");
    // A launch in any of these ranges is profiled.
    for range in &selection.ranges {
        argv = argv.args(["--nvtx-include", range]);
    }
    argv = argv
        .args(["--kernel-name-base", base, "--kernel-name"])
        .arg(format!("regex:^({})$", names.join("|")))
        .args(["--filter-mode", "per-launch-config", "--launch-count"])
        .arg(settings.launches_per_config.to_string());
    for ToolWord(section) in &settings.sections {
        argv = argv.args(["--section", section]);
    }
    if !metrics.is_empty() {
        argv = argv.args(["--metrics".to_owned(), metrics.join(",")]);
    }
    argv = argv
        .args(["--force-overwrite", "--export"])
        .arg(report)
        .args(["env".to_owned(), format!("{}={}", TARGET.0, TARGET.1)])
        .arg(&target.program)
        .args(&target.args);
    Argv { env: target.env.clone(), pass: target.pass.clone(), cwd: target.cwd.clone(), ..argv }
}

/// Escapes a name for a regular expression.
fn escaped(name: &str) -> String {
    let literal = |c: char| c.is_alphanumeric() || c == '_';
    name.chars()
        .flat_map(|c| [(!literal(c)).then_some('\\'), Some(c)].into_iter().flatten())
        .collect()
}

/// Prints every metric of a report, one row per launch.
pub fn raw_page(ncu: &Path, report: &Path) -> Argv {
    Argv::new(ncu).arg("--import").arg(report).args([
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
    ])
}

/// Prints the sections of a report with ncu's advice, one row per launch and value.
pub fn details_page(ncu: &Path, report: &Path) -> Argv {
    let page = ["--csv", "--page", "details", "--print-details", "all", "--print-units", "base"];
    Argv::new(ncu).arg("--import").arg(report).args(page)
}

/// Texts of known failures. ncu exits with 0 after some of these.
const FAILURES: &[(&str, CounterRefusal)] = &[
    ("ERR_NVGPUCTRPERM", COUNTERS_FORBIDDEN),
    ("driver resource was unavailable", COUNTERS_HELD),
    (
        "No kernels were profiled",
        CounterRefusal {
            id: catalogue::NOTHING_PROFILED,
            why: "no selected kernel ran",
            remedy: "check the process's ncu log: the ranges or the kernels have other names in \
                     this pass",
        },
    ),
];

/// Returns the known failure in ncu's output, most severe first.
pub fn find_failure(lines: &[String]) -> Option<CounterRefusal> {
    let contains = |text: &str| lines.iter().any(|line| line.contains(text));
    FAILURES.iter().find(|(text, _)| contains(text)).map(|(_, failure)| *failure)
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::{
        mode::Mode,
        profiling::{ClockControl, Profiling},
    };

    use super::*;

    fn settings() -> NcuSettings {
        Profiling::bundled(&Mode::DEEP).unwrap().ncu
    }

    fn selection() -> LaunchSelection {
        let kernels = vec!["nvjet_tst".to_owned(), "operator+".to_owned()];
        LaunchSelection {
            process: "process-1".into(),
            ranges: vec![runner_range("prefill"), "my@decode step/".into()],
            kernels,
            symbols: vec![],
            max_new_tokens: 8,
        }
    }

    #[test]
    fn one_process_profiles_the_first_launch_of_each_configuration_in_all_stages() {
        let target = Argv::new("model-runner").arg("run").env("X", "1");
        let metrics = ["dram__bytes_read.sum".to_owned(), "dram__bytes_write.sum".to_owned()];
        let argv = profile(
            Path::new("ncu"),
            &selection(),
            &settings(),
            &metrics,
            Path::new("run.ncu-rep"),
            &target,
        );
        let expected = "X=1 ncu --target-processes all --graph-profiling node \
            --clock-control none --nvtx --nvtx-include LLM@prefill/ \
            --nvtx-include 'my@decode step/' \
            --kernel-name-base function --kernel-name 'regex:^(nvjet_tst|operator\\+)$' \
            --filter-mode per-launch-config --launch-count 1 \
            --section Occupancy --section LaunchStats \
            --metrics dram__bytes_read.sum,dram__bytes_write.sum \
            --force-overwrite --export run.ncu-rep env LLMPROF_TARGET=1 model-runner run";
        assert_eq!(argv.shell(), expected);
    }

    #[test]
    fn kernels_with_symbols_are_selected_by_them() {
        let symbols = vec!["_Z3addIfEvPT_".to_owned(), "nvjet_tst".to_owned()];
        let selection = LaunchSelection { symbols, ..selection() };
        let target = Argv::new("x");
        let argv = profile(Path::new("ncu"), &selection, &settings(), &[], Path::new("r"), &target);
        let expected =
            "--kernel-name-base mangled --kernel-name 'regex:^(_Z3addIfEvPT_|nvjet_tst)$'";
        assert!(argv.shell().contains(expected), "{}", argv.shell());
    }

    #[test]
    fn without_metrics_only_sections_are_collected() {
        let argv = profile(
            Path::new("ncu"),
            &selection(),
            &settings(),
            &[],
            Path::new("r"),
            &Argv::new("x"),
        );
        assert!(!argv.shell().contains("--metrics"));
    }

    #[test]
    fn launches_sections_replay_and_clocks_follow_the_settings() {
        let settings = NcuSettings {
            launches_per_config: 8,
            sections: vec![ToolWord("LaunchStats".into())],
            replay_mode: ReplayMode::Application,
            clock_control: ClockControl::Base,
            ..settings()
        };
        let shell = profile(
            Path::new("ncu"),
            &selection(),
            &settings,
            &[],
            Path::new("r"),
            &Argv::new("x"),
        )
        .shell();
        assert!(shell.contains("--clock-control base --replay-mode application --nvtx"), "{shell}");
        assert!(
            shell.contains("--launch-count 8 --section LaunchStats --force-overwrite"),
            "{shell}"
        );
    }

    #[test]
    fn only_available_metrics_are_requested_and_no_operation_twice() {
        let listed = "Device NVIDIA H200 (GH100)\n\nMetric Name   Metric Type\n-----\n\
            dram__bytes_read   Counter  byte\n\
            sm__ops_path_tensor_src_bf16_dst_fp32  Counter\n\
            sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off  Counter\n\
            sm__ops_path_tensor_src_fp8_sparsity_off  Counter\n\
            sm__ops_path_tensor_src_fp8_sparsity_off  Counter\n\
            sm__ops_path_tensor_src_int8  Counter\nsm__odd  Counter";
        let expected = [
            "dram__bytes_read.sum",
            "dram__bytes_read.sum.pct_of_peak_sustained_elapsed",
            "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
            "sm__ops_path_tensor_src_fp8_sparsity_off.sum",
        ];
        assert_eq!(metrics(listed, &settings().metrics), expected);
        assert_eq!(metrics("==ERROR== no device\n", &settings().metrics), [""; 0]);
        let wanted = ["dram__bytes_read.avg", "sm__o*", "sm__od*.ratio", "lts__x"]
            .map(|it| ToolWord(it.into()));
        let chosen = metrics(listed, &wanted);
        assert!(
            chosen.starts_with(&["dram__bytes_read.avg".to_owned()])
                && chosen.contains(&"sm__odd.sum".to_owned())
                && chosen.contains(&"sm__odd.ratio".to_owned()),
            "{chosen:?}"
        );
    }

    #[test]
    fn pages_are_printed_completely_and_in_base_units() {
        let (ncu, report) = (Path::new("ncu"), Path::new("run.ncu-rep"));
        assert_eq!(
            raw_page(ncu, report).shell(),
            "ncu --import run.ncu-rep --csv --page raw --print-units base"
        );
        let details =
            "ncu --import run.ncu-rep --csv --page details --print-details all --print-units base";
        assert_eq!(details_page(ncu, report).shell(), details);
    }

    #[test]
    fn a_missing_permission_comes_before_its_consequences() {
        let lines = [
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission",
            "==WARNING== No kernels were profiled.",
        ];
        let failure = find_failure(&lines.map(str::to_owned)).unwrap();
        assert_eq!(failure.why, "this user may not read the GPU's performance counters");
        assert!(
            find_failure(&lines[1..].iter().map(|it| (*it).to_owned()).collect::<Vec<_>>())
                .unwrap()
                .why
                .starts_with("no selected kernel")
        );
        assert_eq!(find_failure(&["==PROF== Disconnected".to_owned()]), None);
    }
}
