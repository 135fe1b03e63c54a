//! Windows of Nsight Systems on a running program: `nsys launch`, `start` and `stop`.
//!
//! Pure values. The commands of a session run in one shell, because nsys finds its sessions in the
//! shared memory of its process tree. Files in the folder for temporary files start and stop the
//! recording.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use llmprof_core::domain::profiling::NsysSettings;

use super::nsys::cpu_options;
use crate::collect::process::{argv::Argv, orphans::TARGET};

/// Seconds until `nsys start` or `nsys stop` is ended: both may hang.
pub const START_LIMIT_S: u32 = 60;
pub const STOP_LIMIT_S: u32 = 180;

/// Files that control a session, in its folder for temporary files.
#[derive(Debug, Clone)]
pub struct WindowFiles {
    folder: PathBuf,
}

impl WindowFiles {
    pub fn of(scratch: &Path) -> Self {
        Self { folder: scratch.to_owned() }
    }

    /// Created to start the recording.
    pub fn start(&self) -> PathBuf {
        self.folder.join("window-start")
    }

    /// Contains the exit code of `nsys start`.
    pub fn started(&self) -> PathBuf {
        self.folder.join("window-started")
    }

    /// Created to stop the recording.
    pub fn stop(&self) -> PathBuf {
        self.folder.join("window-stop")
    }

    /// Contains the exit code of `nsys stop`.
    pub fn stopped(&self) -> PathBuf {
        self.folder.join("window-stopped")
    }
}

/// Arguments: nsys, stem of the report, session, options of `nsys start`, and the words of `nsys
/// launch`. A recording is also stopped when the program has ended, which keeps its report.
const SESSION: &str = r#"nsys=$1 stem=$2 session=$3 options=$4; shift 4
ended="$TMPDIR/launch-ended"
{ "$@"; echo $? >"$ended.new"; mv "$ended.new" "$ended"; } &
runs() { [ ! -e "$ended" ]; }
requested() { until [ -e "$TMPDIR/$1" ]; do runs || return 1; sleep 0.05; done; }
report() { echo $? >"$TMPDIR/$1.new"; mv "$TMPDIR/$1.new" "$TMPDIR/$1"; }
if requested window-start; then
    set -- --session="$session" --force-overwrite=true --output="$stem"
    timeout -k 5 START "$nsys" start "$@" $options
    report window-started
    requested window-stop || :
    timeout -k 5 STOP "$nsys" stop --session="$session"
    report window-stopped
fi
wait
exit "$(cat "$ended")""#;

/// Starts `target` in a session and records a window of it into `stem.nsys-rep`.
pub fn session(
    nsys: &Path,
    settings: &NsysSettings,
    metrics_hz: Option<u32>,
    on_gpu: bool,
    (stem, name): (&Path, String),
    target: &Argv,
) -> Argv {
    let (launch, env) = launch_of(nsys, settings, on_gpu, &name, target);
    let script = SESSION
        .replace("START", &START_LIMIT_S.to_string())
        .replace("STOP", &STOP_LIMIT_S.to_string());
    let argv = Argv::new("sh")
        .args(["-c", &script, "sh"])
        .arg(nsys)
        .arg(stem)
        .arg(&name)
        .arg(start_options(settings, metrics_hz))
        .arg(&launch.program)
        .args(launch.args);
    Argv { env, pass: target.pass.clone(), cwd: target.cwd.clone(), ..argv }
}

/// The command that starts `target` in a session of this name, and the environment that the target
/// inherits from it.
pub fn launch_of(
    nsys: &Path,
    settings: &NsysSettings,
    on_gpu: bool,
    name: &str,
    target: &Argv,
) -> (Argv, Vec<(String, OsString)>) {
    let apis: Vec<&str> = settings.trace_apis(on_gpu).iter().map(|api| api.as_str()).collect();
    let mut launch = Argv::new(nsys).args([
        "launch".to_owned(),
        format!("--session-new={name}"),
        "--trace".into(),
        apis.join(","),
        "--wait=primary".into(),
    ]);
    if on_gpu {
        launch = launch.arg(format!("--cuda-graph-trace={}", settings.cuda_graph_trace));
    }
    let (marks, env): (Vec<_>, Vec<_>) =
        target.env.iter().cloned().partition(|(name, _)| name == TARGET.0);
    launch = launch.args(
        marks.iter().map(|(name, value)| format!("--env-var={name}={}", value.to_string_lossy())),
    );
    (launch.arg(&target.program).args(&target.args), env)
}

/// Options of `nsys start`, with the samples of a GPU's metrics if a rate is given.
pub fn start_options(settings: &NsysSettings, metrics_hz: Option<u32>) -> String {
    let mut options = cpu_options(settings, metrics_hz).to_vec();
    if let Some(rate) = metrics_hz {
        options.push("--gpu-metrics-devices=cuda-visible".into());
        options.push(format!("--gpu-metrics-frequency={rate}"));
    }
    options.join(" ")
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::{mode::Mode, profiling::Profiling};

    use super::*;

    #[test]
    fn apis_and_graphs_belong_to_the_launch_and_samples_to_the_start() {
        let settings = Profiling::bundled(&Mode::DEEP).unwrap().nsys;
        let target = Argv::new("/opt/serve").arg("a b").env("X", "1").env(TARGET.0, TARGET.1);
        let stem = (Path::new("nsys/run"), "llmprof-1".to_owned());
        let argv = session(Path::new("nsys"), &settings, Some(10_000), true, stem, &target);
        let words: Vec<String> =
            argv.args.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(
            words[3..],
            [
                "nsys",
                "nsys/run",
                "llmprof-1",
                "--sample=none --cpuctxsw=none --gpu-metrics-devices=cuda-visible \
                 --gpu-metrics-frequency=10000",
                "nsys",
                "launch",
                "--session-new=llmprof-1",
                "--trace",
                "cuda,nvtx",
                "--wait=primary",
                "--cuda-graph-trace=node",
                "--env-var=LLMPROF_TARGET=1",
                "/opt/serve",
                "a b",
            ]
        );
        assert_eq!(argv.env, [("X".to_owned(), "1".into())]);
    }
}
