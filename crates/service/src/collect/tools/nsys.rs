//! Commands of Nsight Systems 2022.4 to 2025.3: profile, import, export.
//!
//! Pure values. nsys captures the whole process, and stages are cut out of the export: a capture
//! range records only its first match and disturbs the timed stage.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        profiling::{CaptureRange, CpuScope, NsysSettings},
    },
    layout,
    trace::event::STAGE_DOMAIN,
};

use crate::collect::process::{argv::Argv, orphans::TARGET};

/// Profiles `target` into `stem.nsys-rep`, and samples the metrics of its GPUs at a rate if one is
/// given.
pub fn profile(
    nsys: &Path,
    settings: &NsysSettings,
    metrics_hz: Option<u32>,
    on_gpu: bool,
    stem: &Path,
    target: &Argv,
) -> Argv {
    let apis: Vec<&str> = settings.trace_apis(on_gpu).iter().map(|api| api.as_str()).collect();
    let mut argv = Argv::new(nsys).args(["profile".to_owned(), "--trace".into(), apis.join(",")]);
    argv = argv.args(cpu_options(settings, metrics_hz));
    if on_gpu {
        argv = argv.arg(format!("--cuda-graph-trace={}", settings.cuda_graph_trace));
    }
    if let Some(rate) = metrics_hz {
        // The GPUs of CUDA_VISIBLE_DEVICES, which nsys gets with the target's variables.
        argv = argv.arg("--gpu-metrics-devices=cuda-visible");
        argv = argv.arg(format!("--gpu-metrics-frequency={rate}"));
    }
    for (option, seconds) in [("delay", settings.delay_s), ("duration", settings.duration_s)] {
        if seconds > 0 {
            argv = argv.arg(format!("--{option}={seconds}"));
        }
    }
    if settings.capture_range != CaptureRange::None {
        argv = argv.args(["--capture-range=nvtx".to_owned(), "--capture-range-end=stop".into()]);
        argv = argv.arg(format!("--nvtx-capture={}@{STAGE_DOMAIN}", settings.capture_range));
    }
    if !settings.records_all() {
        argv = argv.arg("--kill=none");
    }
    // The mark that distinguishes the target from its profiler is set for the target only.
    let (marks, env): (Vec<_>, Vec<_>) =
        target.env.iter().cloned().partition(|(name, _)| name == TARGET.0);
    argv = argv.args(
        marks.iter().map(|(name, value)| format!("--env-var={name}={}", value.to_string_lossy())),
    );
    argv = argv
        .args(["--wait=primary", "--stats=false", "--force-overwrite=true", "--output"])
        .arg(stem);
    if !settings.records_all() {
        argv = argv.args(["sh", "-c", RECORD_PID, "sh"]);
    }
    argv = argv.arg(&target.program).args(&target.args);
    if !settings.records_all() {
        argv =
            Argv::new("sh").args(["-c", WAIT_FOR_TARGET, "sh"]).arg(&argv.program).args(argv.args);
    }
    Argv { env, pass: target.pass.clone(), cwd: target.cwd.clone(), ..argv }
}

/// Options of CPU sampling. They are always set, because nsys samples by default and it is
/// expensive. A pass that samples the GPU's metrics does not sample the CPU: the timeline pass has
/// those samples.
pub fn cpu_options(settings: &NsysSettings, metrics_hz: Option<u32>) -> [String; 2] {
    let (sample, cpuctxsw) = match metrics_hz {
        None => (settings.sample, settings.cpuctxsw),
        Some(_) => (CpuScope::None, CpuScope::None),
    };
    [format!("--sample={sample}"), format!("--cpuctxsw={cpuctxsw}")]
}

/// Waits for the target after nsys has exited.
///
/// The target continues after its recording, because its output is compared with the unprofiled
/// pass's. nsys exits when the recording ends, whatever `--wait` is, and a child's processes are
/// ended with it.
const WAIT_FOR_TARGET: &str = r#""$@"; ended=$?
while kill -0 "$(cat "$TMPDIR/target" 2>/dev/null)" 2>/dev/null; do sleep 0.1; done
exit $ended"#;
/// Records the process id of the target for [`WAIT_FOR_TARGET`].
const RECORD_PID: &str = r#"echo $$ >"$TMPDIR/target"; exec "$@""#;

/// Errors of a race between nsys and its helper process, which leaves no report. It is most
/// frequent with programs that exit at once and on busy machines, and is independent of the
/// program. 2022.4 prints `End of file` for the same lost connection.
const RACES: [&str; 4] =
    ["Connection to the Agent lost", "Local Endpoint is not available", "sem_open", "End of file"];
/// The same race as a whole line; a server may print it within a line of its own.
const RESET: &str = "Connection reset by peer";
/// Maximum number of retries after such a race.
pub const MAX_RETRIES: usize = 2;
/// Time before the first retry, twice of it before the second: the other process of the race is
/// then through.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Returns the line of nsys' output that shows such a race.
pub fn find_race(output: &[String]) -> Option<&String> {
    let is_race =
        |line: &&String| RACES.iter().any(|text| line.contains(text)) || line.trim() == RESET;
    output.iter().find(is_race)
}

/// Returns the finding of a repeated profile; `errors` are from the failed starts.
pub fn started_again(errors: &[String]) -> Option<Finding> {
    let message = "nsys failed for a reason of its own and was started again";
    let finding =
        Finding::new(catalogue::NSYS_STARTED_AGAIN, message).with("starts", errors.len() + 1);
    errors.last().map(|error| finding.with("nsys", error))
}

/// Returns the nsys version that a report needs, from the error of an older nsys: `Version number
/// is invalid: 2025@6@1@190-256136895201v0`; without its build.
pub fn required_version(output: &[String]) -> Option<String> {
    let version = |line: &String| {
        let (_, rest) = line.split_once("Version number is invalid:")?;
        let numbers = rest.split_whitespace().next()?.split('-').next()?;
        let numbers = numbers.trim_matches(|c: char| !c.is_ascii_digit());
        let parts: Vec<&str> = numbers.split(['@', '.']).collect();
        let fits = parts.len() >= 2
            && parts
                .iter()
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        fits.then(|| parts.join("."))
    };
    output.iter().find_map(version)
}

/// Options of unshare for a separate process tree: as root, and as a user who may create
/// namespaces.
pub const ISOLATIONS: [&[&str]; 2] = [
    &["--fork", "--kill-child", "--pid", "--mount-proc"],
    &["--map-root-user", "--fork", "--kill-child", "--pid", "--mount-proc"],
];

/// First process of the new tree. Process ids start at 1 there, and nsys names its shared memory by
/// them, so each tree has its own /dev/shm. The shell reaps orphans; nsys does not, and would wait
/// 30 s for them.
const FIRST_PROCESS: &str = "mount -t tmpfs llmprof /dev/shm || exit; \"$@\"; exit $?";

/// Returns `command` in a process tree of its own.
///
/// nsys copies the environment of every readable process into its report, including secrets of
/// services, and users share reports. The format is compressed, so they cannot be removed
/// afterwards.
pub fn isolated(isolation: &[&str], command: Argv) -> Argv {
    let argv = Argv::new("unshare")
        .args(isolation)
        .args(["sh", "-c", FIRST_PROCESS, "sh"])
        .arg(&command.program)
        .args(command.args);
    Argv { env: command.env, pass: command.pass, cwd: command.cwd, ..argv }
}

/// Files that llmprof writes with the names of sampled processes and functions.
const FILES_WITH_NAMES: [&str; 6] = [
    layout::REPORT_JSON,
    layout::REPORT_HTML,
    layout::REPORT_MD,
    layout::SUMMARY_MD,
    layout::TABLES,
    layout::TIMELINE,
];

/// Finding of a recording outside a process tree of its own, which samples all processes.
/// [`super::nsys_report::with_recorded_files`] adds the files.
pub fn sees_all_processes() -> Finding {
    let message = "the request asked for samples of all processes: the run's files may contain \
                   names, functions and environments of other processes of this host";
    Finding::new(catalogue::NSYS_SEES_ENVIRONMENTS, message).advise(format!(
        "do not share the run or its bundle: environments are in the files of nsys, names of \
         processes and functions also in {}; or set profiling.nsys.sample and \
         profiling.nsys.cpuctxsw to process-tree",
        FILES_WITH_NAMES.join(", ")
    ))
}

/// Finding of a recording outside a process tree of its own, which the system does not permit.
/// [`super::nsys_report::with_recorded_files`] adds the files.
pub fn sees_environments() -> Finding {
    let message = "nsys could read the environments of this user's other processes: its reports \
                   may contain their secrets";
    Finding::new(catalogue::NSYS_SEES_ENVIRONMENTS, message).advise(
        "do not share the files of nsys in any folder of the run, nor its bundle; or allow the \
         service to create namespaces (unshare of util-linux, and CAP_SYS_ADMIN or unprivileged \
         user namespaces)",
    )
}

/// Exports a report to SQLite; replaces an older export.
pub fn export(nsys: &Path, report: &Path, sqlite: &Path) -> Argv {
    Argv::new(nsys)
        .args(["export", "--type", "sqlite", "--quiet=true", "--force-overwrite=true", "--output"])
        .arg(sqlite)
        .arg(report)
}

/// Imports raw data that nsys did not import.
pub fn import(importer: &Path, qdstrm: &Path, report: &Path) -> Argv {
    Argv::new(importer)
        .arg("--force-overwrite")
        .arg("--input-file")
        .arg(qdstrm)
        .arg("--output-file")
        .arg(report)
}

/// Possible paths of the importer of `nsys`, whose links are resolved: next to it in NVIDIA's
/// packages, in another folder in Debian's.
pub fn importers(nsys: &Path) -> Vec<PathBuf> {
    let root = nsys.parent().and_then(Path::parent);
    let debian = Path::new("/usr/lib/nsight-systems");
    [root, Some(debian)]
        .into_iter()
        .flatten()
        .map(|root| root.join("host-linux-x64/QdstrmImporter"))
        .collect()
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::{
        mode::Mode,
        profiling::{Profiling, TraceApi},
    };

    use super::*;

    fn command(on_gpu: bool, mode: Mode, change: impl Fn(&mut NsysSettings)) -> String {
        let target =
            Argv::new("/opt/model-runner").args(["run", "--out", "/data/a run"]).env("X", "1");
        let mut settings = Profiling::bundled(&mode).unwrap().nsys;
        change(&mut settings);
        let stem = Path::new("/data/a run/nsys/run");
        profile(Path::new("nsys"), &settings, None, on_gpu, stem, &target).shell()
    }

    #[test]
    fn metrics_are_sampled_of_the_visible_gpus_at_the_rate() {
        let settings = Profiling::bundled(&Mode::DEEP).unwrap().nsys;
        let target = Argv::new("runner").env("CUDA_VISIBLE_DEVICES", "GPU-1");
        let command =
            profile(Path::new("nsys"), &settings, Some(20_000), true, Path::new("run"), &target);
        let shell = command.shell();
        assert!(shell.starts_with("CUDA_VISIBLE_DEVICES=GPU-1 nsys profile "), "{shell}");
        let expected = "--cuda-graph-trace=node --gpu-metrics-devices=cuda-visible \
                        --gpu-metrics-frequency=20000 --wait";
        assert!(shell.contains(expected), "{shell}");
    }

    #[test]
    fn a_pass_that_samples_metrics_does_not_sample_the_cpu() {
        let mut settings = Profiling::bundled(&Mode::DEEP).unwrap().nsys;
        (settings.sample, settings.cpuctxsw) = (CpuScope::SystemWide, CpuScope::ProcessTree);
        let timeline = ["--sample=system-wide", "--cpuctxsw=process-tree"];
        assert_eq!(cpu_options(&settings, None), timeline);
        assert_eq!(cpu_options(&settings, Some(20_000)), ["--sample=none", "--cpuctxsw=none"]);
    }

    #[test]
    fn a_cpu_run_traces_ranges_and_the_os_runtime() {
        let expected = "X=1 nsys profile --trace nvtx,osrt --sample=none --cpuctxsw=none \
                        --wait=primary --stats=false --force-overwrite=true \
                        --output '/data/a run/nsys/run' /opt/model-runner run --out '/data/a run'";
        assert_eq!(command(false, Mode::DEEP, |_| {}), expected);
        assert_eq!(command(false, Mode::LIGHT, |_| {}), expected);
    }

    #[test]
    fn a_gpu_run_traces_graph_nodes_when_deep_and_whole_graphs_when_light() {
        let deep = command(true, Mode::DEEP, |_| {});
        assert!(
            deep.contains(
                "--trace cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=node --wait"
            ),
            "{deep}"
        );
        let light = command(true, Mode::LIGHT, |_| {});
        assert!(
            light.contains(
                "--trace cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=graph --wait"
            ),
            "{light}"
        );
    }

    #[test]
    fn every_setting_is_in_the_command_and_a_partial_recording_does_not_end_the_run() {
        let command = command(true, Mode::DEEP, |it| {
            (it.trace, it.sample) = (vec![TraceApi::Nvtx, TraceApi::Osrt], CpuScope::ProcessTree);
            (it.cpuctxsw, it.capture_range) = (CpuScope::SystemWide, CaptureRange::DecodeAll);
            (it.delay_s, it.duration_s) = (2, 30);
        });
        let expected = "--trace nvtx,osrt --sample=process-tree --cpuctxsw=system-wide \
                        --cuda-graph-trace=node --delay=2 --duration=30 --capture-range=nvtx \
                        --capture-range-end=stop --nvtx-capture=decode_all@LLM --kill=none --wait";
        assert!(command.contains(expected), "{command}");
    }

    #[test]
    fn an_isolated_command_keeps_its_arguments_and_variables() {
        let argv = isolated(ISOLATIONS[0], Argv::new("nsys").arg("profile").env("X", "1"));
        assert!(
            argv.shell().starts_with("X=1 unshare --fork --kill-child --pid --mount-proc sh -c ")
        );
        assert!(argv.shell().ends_with(" nsys profile"));
    }

    #[test]
    fn the_version_that_a_report_needs_is_read_from_the_error() {
        let of = |line: &str| required_version(&["Processing events...".into(), line.into()]);
        assert_eq!(of("Error: Version number is invalid: 2025@6@1").as_deref(), Some("2025.6.1"));
        assert_eq!(of("Version number is invalid: \"2025@6@1\".").as_deref(), Some("2025.6.1"));
        let with_build = "Exportation error: Version number is invalid: 2026@1@2@63-261237296639v0";
        assert_eq!(of(with_build).as_deref(), Some("2026.1.2.63"));
        assert_eq!((of("Version number is invalid:"), of("no such file")), (None, None));
    }

    #[test]
    fn a_race_of_nsys_is_not_an_error_of_a_server() {
        let of = |line: &str| find_race(&["Generating".into(), line.into()]).cloned();
        let races = [
            "Error: End of file",
            "Connection reset by peer",
            "[QuadDCommon::tag_message*] = Local Endpoint is not available.",
        ];
        assert_eq!(races.map(of), races.map(|line| Some(line.to_owned())));
        assert_eq!(of("ConnectionResetError: [Errno 104] Connection reset by peer"), None);
    }

    #[test]
    fn an_export_replaces_an_older_one() {
        let argv = export(Path::new("nsys"), Path::new("run.nsys-rep"), Path::new("run.sqlite"));
        assert_eq!(
            argv.shell(),
            "nsys export --type sqlite --quiet=true --force-overwrite=true --output run.sqlite \
             run.nsys-rep"
        );
    }

    #[test]
    fn the_importer_is_searched_in_the_folders_of_both_packages() {
        let candidates =
            importers(Path::new("/opt/nvidia/nsight-systems/2025.3.2/target-linux-x64/nsys"));
        let expected = [
            "/opt/nvidia/nsight-systems/2025.3.2/host-linux-x64/QdstrmImporter",
            "/usr/lib/nsight-systems/host-linux-x64/QdstrmImporter",
        ];
        assert_eq!(candidates, expected.map(PathBuf::from));
    }
}
