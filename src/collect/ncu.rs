//! The commands of Nsight Compute, 2025.3: ask for metrics, profile a stage, print the report; and what its messages mean.
//!
//! Pure values. One process profiles one stage: the range of the stage is told by name, its kernels by their functions' names,
//! and the launches of each geometry are counted apart.

use std::path::Path;

use super::argv::Argv;
use crate::{
    profiling::{NcuSettings, ReplayMode, ToolWord},
    trace::event::STAGE_DOMAIN,
};

/// What one ncu process profiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Range that its kernels are launched in.
    pub stage: String,
    /// The same as ncu names it; the range of that name of a runner of ours when absent.
    pub range: Option<String>,
    /// Functions' names, without scope and arguments.
    pub kernels: Vec<String>,
    /// Launches of each geometry that are passed over, and how many are profiled after them.
    pub skip: usize,
    pub count: usize,
    /// Tokens to generate in this pass.
    pub max_new_tokens: u32,
}

/// Operations of the tensor cores, by the number format of their operands. Integers are no FLOPs.
const TENSOR_OPS: &str = "sm__ops_path_tensor_src_";
const SPARSITY: [&str; 2] = ["_sparsity_off", "_sparsity_on"];

/// Asks which metrics the devices of this host have.
pub fn query(ncu: &Path) -> Argv {
    Argv::new(ncu).arg("--query-metrics")
}

/// Which of the metrics that ncu listed are `wanted`: a name that the device lacks would fail the whole pass.
pub fn metrics(listed: &str, wanted: &[ToolWord]) -> Vec<String> {
    let names: Vec<&str> =
        listed.lines().filter_map(|line| line.split_whitespace().next()).filter(|it| it.contains("__")).collect();
    let mut metrics: Vec<String> = Vec::new();
    for ToolWord(wanted) in wanted {
        let found: Vec<String> = match wanted.strip_suffix('*') {
            Some(start) => {
                let fits = |name: &&&str| name.starts_with(start) && is_worth_reading(name, &names);
                names.iter().filter(fits).map(|name| format!("{name}.sum")).collect()
            }
            // A name with a dot says itself what it is the sum, the mean or the share of.
            None => {
                let (name, of) = wanted.split_once('.').unwrap_or((wanted, "sum"));
                names.contains(&name).then(|| format!("{name}.{of}")).into_iter().collect()
            }
        };
        for metric in found {
            if !metrics.contains(&metric) {
                metrics.push(metric);
            }
        }
    }
    metrics
}

/// Of the tensor cores' operations none over integers, and none whose whole is there too.
fn is_worth_reading(name: &str, names: &[&str]) -> bool {
    let whole = |name: &str| SPARSITY.iter().find_map(|kind| name.strip_suffix(kind)).is_some_and(|name| names.contains(&name));
    name.strip_prefix(TENSOR_OPS).is_none_or(|format| !format.starts_with("int") && !whole(name))
}

/// Profiles the selected launches of `target` into `report`.
pub fn profile(
    ncu: &Path,
    selection: &Selection,
    settings: &NcuSettings,
    metrics: &[String],
    report: &Path,
    target: &Argv,
) -> Argv {
    let names: Vec<String> = selection.kernels.iter().map(|name| escaped(name)).collect();
    let mut argv = Argv::new(ncu)
        .args(["--target-processes", "all", "--graph-profiling", "node"])
        .args(["--clock-control", settings.clock_control.as_str()]);
    if settings.replay_mode != ReplayMode::Kernel {
        argv = argv.args(["--replay-mode", settings.replay_mode.as_str()]);
    }
    argv = argv
        .arg("--nvtx")
        .args([
            "--nvtx-include".to_owned(),
            selection.range.clone().unwrap_or_else(|| format!("{STAGE_DOMAIN}@{}/", selection.stage)),
        ])
        .args(["--kernel-name-base", "function", "--kernel-name"])
        .arg(format!("regex:^({})$", names.join("|")))
        .args(["--filter-mode", "per-launch-config", "--launch-skip"])
        .args([selection.skip.to_string(), "--launch-count".into(), selection.count.to_string()]);
    for ToolWord(section) in &settings.sections {
        argv = argv.args(["--section", section]);
    }
    if !metrics.is_empty() {
        argv = argv.args(["--metrics".to_owned(), metrics.join(",")]);
    }
    argv = argv.args(["--force-overwrite", "--export"]).arg(report).arg(&target.program).args(&target.args);
    Argv { env: target.env.clone(), pass: target.pass.clone(), cwd: target.cwd.clone(), ..argv }
}

/// A name as a regular expression takes it literally.
fn escaped(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || c == '_';
    name.chars().flat_map(|c| [(!plain(c)).then_some('\\'), Some(c)].into_iter().flatten()).collect()
}

/// Prints every metric of a report, a row per launch.
pub fn raw_page(ncu: &Path, report: &Path) -> Argv {
    Argv::new(ncu).arg("--import").arg(report).args(["--csv", "--page", "raw", "--print-units", "base"])
}

/// Prints the sections of a report with the tool's own advice, a row per launch and figure.
pub fn details_page(ncu: &Path, report: &Path) -> Argv {
    let page = ["--csv", "--page", "details", "--print-details", "all", "--print-units", "base"];
    Argv::new(ncu).arg("--import").arg(report).args(page)
}

/// What ncu says when it read no counters, and what to do about it. It exits with 0 after some of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Complaint {
    /// Name of the finding that tells it.
    pub id: &'static str,
    pub why: &'static str,
    pub remedy: &'static str,
}

const COMPLAINTS: &[(&str, Complaint)] = &[
    (
        "ERR_NVGPUCTRPERM",
        Complaint {
            id: "counters_forbidden",
            why: "this user may not read the GPU's performance counters",
            remedy: "load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0, or give the service CAP_SYS_ADMIN",
        },
    ),
    (
        "driver resource was unavailable",
        Complaint {
            id: "counters_held",
            why: "another program holds the GPU's performance counters",
            remedy: "pause DCGM's profiling metrics (dcgmi profiling --pause), and end other profilers",
        },
    ),
    (
        "No kernels were profiled",
        Complaint {
            id: "nothing_profiled",
            why: "no kernel ran that was asked for",
            remedy: "look at the stage's ncu log: the range or the kernels bear other names in this pass",
        },
    ),
];

/// The first complaint among lines of ncu's output, gravest first.
pub fn complaint(lines: &[String]) -> Option<Complaint> {
    let said = |needle: &str| lines.iter().any(|line| line.contains(needle));
    COMPLAINTS.iter().find(|(needle, _)| said(needle)).map(|(_, complaint)| *complaint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        profiling::{ClockControl, Profiling},
        run::Mode,
    };

    fn settings() -> NcuSettings {
        Profiling::bundled(Mode::Deep).unwrap().ncu
    }

    fn selection() -> Selection {
        let kernels = vec!["nvjet_tst".to_owned(), "operator+".to_owned()];
        Selection { stage: "decode_all".into(), range: None, kernels, skip: 4, count: 3, max_new_tokens: 8 }
    }

    #[test]
    fn one_process_profiles_the_chosen_kernels_of_one_stage() {
        let target = Argv::new("model-runner").arg("run").env("X", "1");
        let metrics = ["dram__bytes_read.sum".to_owned(), "dram__bytes_write.sum".to_owned()];
        let argv = profile(Path::new("ncu"), &selection(), &settings(), &metrics, Path::new("run.ncu-rep"), &target);
        let expected = "X=1 ncu --target-processes all --graph-profiling node --clock-control none --nvtx \
            --nvtx-include LLM@decode_all/ --kernel-name-base function --kernel-name 'regex:^(nvjet_tst|operator\\+)$' \
            --filter-mode per-launch-config --launch-skip 4 --launch-count 3 --section SpeedOfLight \
            --section SpeedOfLight_RooflineChart --section Occupancy --section MemoryWorkloadAnalysis --section WarpStateStats \
            --section SchedulerStats --section ComputeWorkloadAnalysis --section LaunchStats \
            --metrics dram__bytes_read.sum,dram__bytes_write.sum --force-overwrite --export run.ncu-rep model-runner run";
        assert_eq!(argv.shell(), expected);
    }

    #[test]
    fn without_metrics_the_sections_are_read_alone() {
        let argv = profile(Path::new("ncu"), &selection(), &settings(), &[], Path::new("r"), &Argv::new("x"));
        assert!(!argv.shell().contains("--metrics"));
    }

    #[test]
    fn sections_replay_and_clocks_are_as_they_were_asked_for() {
        let settings = NcuSettings {
            sections: vec![ToolWord("LaunchStats".into())],
            replay_mode: ReplayMode::Application,
            clock_control: ClockControl::Base,
            ..settings()
        };
        let shell = profile(Path::new("ncu"), &selection(), &settings, &[], Path::new("r"), &Argv::new("x")).shell();
        assert!(shell.contains("--clock-control base --replay-mode application --nvtx"), "{shell}");
        assert!(shell.contains("--launch-count 3 --section LaunchStats --force-overwrite"), "{shell}");
    }

    #[test]
    fn only_metrics_that_the_device_has_are_asked_for_and_no_operation_twice() {
        let listed = "Device NVIDIA H200 (GH100)\n\nMetric Name   Metric Type\n-----\ndram__bytes_read   Counter  byte\n\
            sm__ops_path_tensor_src_bf16_dst_fp32  Counter\nsm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off  Counter\n\
            sm__ops_path_tensor_src_fp8_sparsity_off  Counter\nsm__ops_path_tensor_src_fp8_sparsity_off  Counter\n\
            sm__ops_path_tensor_src_int8  Counter\nsm__odd  Counter";
        let expected =
            ["dram__bytes_read.sum", "sm__ops_path_tensor_src_bf16_dst_fp32.sum", "sm__ops_path_tensor_src_fp8_sparsity_off.sum"];
        assert_eq!(metrics(listed, &settings().metrics), expected);
        assert_eq!(metrics("==ERROR== no device\n", &settings().metrics), [""; 0]);
        let wanted = ["dram__bytes_read.avg", "sm__o*", "lts__x"].map(|it| ToolWord(it.into()));
        let chosen = metrics(listed, &wanted);
        assert!(
            chosen.starts_with(&["dram__bytes_read.avg".to_owned()]) && chosen.contains(&"sm__odd.sum".to_owned()),
            "{chosen:?}"
        );
    }

    #[test]
    fn pages_are_printed_whole_and_in_base_units() {
        let (ncu, report) = (Path::new("ncu"), Path::new("run.ncu-rep"));
        assert_eq!(raw_page(ncu, report).shell(), "ncu --import run.ncu-rep --csv --page raw --print-units base");
        let details = "ncu --import run.ncu-rep --csv --page details --print-details all --print-units base";
        assert_eq!(details_page(ncu, report).shell(), details);
    }

    #[test]
    fn a_lack_of_permission_is_said_before_what_follows_from_it() {
        let lines = ["==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "==WARNING== No kernels were profiled."];
        let said = complaint(&lines.map(str::to_owned)).unwrap();
        assert_eq!(said.why, "this user may not read the GPU's performance counters");
        assert!(
            complaint(&lines[1..].iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()).unwrap().why.starts_with("no kernel")
        );
        assert_eq!(complaint(&["==PROF== Disconnected".to_owned()]), None);
    }
}
