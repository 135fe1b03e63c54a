//! The commands of Nsight Systems, for 2022.4 to 2025.3: profile, import, export.
//!
//! Pure values. The whole process is captured and stages are cut out of the export: gating by ranges catches the first match only
//! and disturbs the stage that is timed.

use std::path::{Path, PathBuf};

use super::{argv::Argv, sweep::TARGET};
use crate::{
    profiling::{CaptureRange, NsysSettings},
    run::{Finding, Severity},
    trace::event::STAGE_DOMAIN,
};

/// Profiles `target` into `stem.nsys-rep`. Unless told otherwise nsys samples the CPU, and that costs: it is always told.
pub fn profile(nsys: &Path, settings: &NsysSettings, on_gpu: bool, stem: &Path, target: &Argv) -> Argv {
    let apis: Vec<&str> = settings.traced(on_gpu).iter().map(|api| api.as_str()).collect();
    let mut argv = Argv::new(nsys).args(["profile".to_owned(), "--trace".into(), apis.join(",")]);
    argv = argv.args([format!("--sample={}", settings.sample), format!("--cpuctxsw={}", settings.cpuctxsw)]);
    if on_gpu {
        argv = argv.arg(format!("--cuda-graph-trace={}", settings.cuda_graph_trace));
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
    if !settings.is_whole() {
        argv = argv.arg("--kill=none");
    }
    // What tells the target from its profiler is for the target alone.
    let (marks, env): (Vec<_>, Vec<_>) = target.env.iter().cloned().partition(|(name, _)| name == TARGET.0);
    argv = argv.args(marks.iter().map(|(name, value)| format!("--env-var={name}={}", value.to_string_lossy())));
    argv = argv.args(["--wait=primary", "--stats=false", "--force-overwrite=true", "--output"]).arg(stem);
    if !settings.is_whole() {
        argv = argv.args(["sh", "-c", FOUND_AGAIN, "sh"]);
    }
    argv = argv.arg(&target.program).args(&target.args);
    if !settings.is_whole() {
        argv = Argv::new("sh").args(["-c", TO_THE_END, "sh"]).arg(&argv.program).args(argv.args);
    }
    Argv { env, pass: target.pass.clone(), cwd: target.cwd.clone(), ..argv }
}

/// A run goes on after its recording ended: what it computes is compared with the plain pass. nsys leaves then, whatever it is told to wait for,
/// and what a child of ours started ends with it. So somebody stays until the program has ended, whose number it leaves itself.
const TO_THE_END: &str = r#""$@"; ended=$?
while kill -0 "$(cat "$TMPDIR/target" 2>/dev/null)" 2>/dev/null; do sleep 0.1; done
exit $ended"#;
const FOUND_AGAIN: &str = r#"echo $$ >"$TMPDIR/target"; exec "$@""#;

/// What nsys says, leaving nothing, when it and its own helper process missed each other. It is a race inside of nsys, most often lost with
/// programs that end at once and on busy machines, and says nothing of the program.
/// `End of file` is the end of the same connection, as 2022.4 prints it.
pub const RACES: [&str; 3] = ["Connection to the Agent lost", "sem_open", "End of file"];
/// How often a profile that lost such a race is begun again.
pub const MOST_AGAIN: usize = 2;

/// What a person should know of a profile that was begun more than once: what nsys said each time before.
pub fn begun_again(said: &[String]) -> Option<Finding> {
    let message = "nsys and its own helper process missed each other, and it was started again";
    let finding = Finding::new("nsys_started_again", Severity::Info, message).with("times begun", said.len() + 1);
    said.last().map(|words| finding.with("nsys", words))
}

/// The version that a report needs, as an older nsys prints it when it refuses one: `Version number is invalid: 2025@6@1`.
pub fn required_version(output: &[String]) -> Option<String> {
    let version = |line: &String| {
        let (_, said) = line.split_once("Version number is invalid:")?;
        let numbers = said.split_whitespace().next()?.trim_matches(|c: char| !c.is_ascii_digit());
        let parts: Vec<&str> = numbers.split(['@', '.']).collect();
        let fits =
            parts.len() >= 2 && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        fits.then(|| parts.join("."))
    };
    output.iter().find_map(version)
}

/// How a command gets a process tree of its own: as root, and as a user who may make namespaces.
pub const ISOLATIONS: [&[&str]; 2] = [
    &["--fork", "--kill-child", "--pid", "--mount-proc"],
    &["--map-root-user", "--fork", "--kill-child", "--pid", "--mount-proc"],
];

/// In the new tree process ids begin again at 1, and nsys names its shared memory by them: each tree has its own. The shell stays, as the
/// first process of the tree, which takes leave of those that lost their parents: nsys does not, and waits half a minute for their end.
const FIRST_PROCESS: &str = "mount -t tmpfs llmprof /dev/shm || exit; \"$@\"; exit $?";

/// Runs `command` where it sees no process but its own.
///
/// nsys copies the environment of every process that it may read into its report, a service's secrets included, and the report is
/// handed out. Its format is compressed, so nothing can be taken out afterwards.
pub fn isolated(isolation: &[&str], command: Argv) -> Argv {
    let argv =
        Argv::new("unshare").args(isolation).args(["sh", "-c", FIRST_PROCESS, "sh"]).arg(&command.program).args(command.args);
    Argv { env: command.env, pass: command.pass, cwd: command.cwd, ..argv }
}

/// Exports a report to SQLite, over an older one.
pub fn export(nsys: &Path, report: &Path, sqlite: &Path) -> Argv {
    Argv::new(nsys)
        .args(["export", "--type", "sqlite", "--quiet=true", "--force-overwrite=true", "--output"])
        .arg(sqlite)
        .arg(report)
}

/// Imports what the collector left when nsys itself could not.
pub fn import(importer: &Path, qdstrm: &Path, report: &Path) -> Argv {
    Argv::new(importer).arg("--force-overwrite").arg("--input-file").arg(qdstrm).arg("--output-file").arg(report)
}

/// Where the importer of the `nsys` at this path may be, its links followed: NVIDIA's packages keep both halves in one folder,
/// Debian's in two.
pub fn importers(nsys: &Path) -> Vec<PathBuf> {
    let root = nsys.parent().and_then(Path::parent);
    let debian = Path::new("/usr/lib/nsight-systems");
    [root, Some(debian)].into_iter().flatten().map(|root| root.join("host-linux-x64/QdstrmImporter")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        profiling::{CpuScope, Profiling, TraceApi},
        run::Mode,
    };

    fn command(on_gpu: bool, mode: Mode, change: impl Fn(&mut NsysSettings)) -> String {
        let target = Argv::new("/opt/model-runner").args(["run", "--out", "/data/a run"]).env("X", "1");
        let mut settings = Profiling::bundled(mode).unwrap().nsys;
        change(&mut settings);
        profile(Path::new("nsys"), &settings, on_gpu, Path::new("/data/a run/nsys/run"), &target).shell()
    }

    #[test]
    fn a_cpu_run_traces_ranges_and_the_os_runtime() {
        let expected = "X=1 nsys profile --trace nvtx,osrt --sample=none --cpuctxsw=none --wait=primary --stats=false \
                        --force-overwrite=true --output '/data/a run/nsys/run' /opt/model-runner run --out '/data/a run'";
        assert_eq!(command(false, Mode::Deep, |_| {}), expected);
        assert_eq!(command(false, Mode::Light, |_| {}), expected);
    }

    #[test]
    fn a_gpu_run_traces_graphs_by_node_when_deep_and_whole_when_light() {
        let deep = command(true, Mode::Deep, |_| {});
        assert!(deep.contains("--trace cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=node --wait"), "{deep}");
        let light = command(true, Mode::Light, |_| {});
        assert!(light.contains("--trace cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=graph --wait"), "{light}");
    }

    #[test]
    fn every_setting_reaches_the_command_and_a_part_of_a_run_does_not_end_it() {
        let command = command(true, Mode::Deep, |it| {
            (it.trace, it.sample) = (vec![TraceApi::Nvtx, TraceApi::Osrt], CpuScope::ProcessTree);
            (it.cpuctxsw, it.capture_range) = (CpuScope::SystemWide, CaptureRange::DecodeAll);
            (it.delay_s, it.duration_s) = (2, 30);
        });
        let expected = "--trace nvtx,osrt --sample=process-tree --cpuctxsw=system-wide --cuda-graph-trace=node --delay=2 \
                        --duration=30 --capture-range=nvtx --capture-range-end=stop --nvtx-capture=decode_all@LLM --kill=none --wait";
        assert!(command.contains(expected), "{command}");
    }

    #[test]
    fn an_isolated_command_keeps_its_words_and_variables() {
        let argv = isolated(ISOLATIONS[0], Argv::new("nsys").arg("profile").env("X", "1"));
        assert!(argv.shell().starts_with("X=1 unshare --fork --kill-child --pid --mount-proc sh -c "));
        assert!(argv.shell().ends_with(" nsys profile"));
    }

    #[test]
    fn the_version_that_a_report_needs_is_read_from_the_refusal() {
        let of = |line: &str| required_version(&["Processing events...".into(), line.into()]);
        assert_eq!(of("Error: Version number is invalid: 2025@6@1").as_deref(), Some("2025.6.1"));
        assert_eq!(of("Version number is invalid: \"2025@6@1\".").as_deref(), Some("2025.6.1"));
        assert_eq!((of("Version number is invalid:"), of("no such file")), (None, None));
    }

    #[test]
    fn an_export_replaces_what_is_there() {
        let argv = export(Path::new("nsys"), Path::new("run.nsys-rep"), Path::new("run.sqlite"));
        assert_eq!(
            argv.shell(),
            "nsys export --type sqlite --quiet=true --force-overwrite=true --output run.sqlite run.nsys-rep"
        );
    }

    #[test]
    fn the_importer_is_looked_for_in_both_packagings() {
        let candidates = importers(Path::new("/opt/nvidia/nsight-systems/2025.3.2/target-linux-x64/nsys"));
        let expected = [
            "/opt/nvidia/nsight-systems/2025.3.2/host-linux-x64/QdstrmImporter",
            "/usr/lib/nsight-systems/host-linux-x64/QdstrmImporter",
        ];
        assert_eq!(candidates, expected.map(PathBuf::from));
    }
}
