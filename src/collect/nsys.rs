//! The commands of Nsight Systems, for 2022.4 to 2025.3: profile, import, export.
//!
//! Pure values. The whole process is captured and stages are cut out of the export: gating by ranges catches the first match only
//! and disturbs the stage that is timed.

use std::path::{Path, PathBuf};

use super::argv::Argv;
use crate::run::Mode;

/// What a CUDA graph looks like in the trace: one row a launch, or one a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphTrace {
    Graph,
    Node,
}

/// What a timeline records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub trace: &'static str,
    /// Absent where there are no CUDA graphs.
    pub graphs: Option<GraphTrace>,
}

impl Options {
    /// The settings of a run on `device`. The light ones cost a decode by CUDA graph next to nothing.
    pub fn of(device: &str, mode: Mode) -> Self {
        match (device.starts_with("cuda"), mode) {
            (false, _) => Self { trace: "nvtx,osrt", graphs: None },
            (true, Mode::Deep) => Self { trace: "cuda,nvtx,osrt", graphs: Some(GraphTrace::Node) },
            (true, _) => Self { trace: "cuda,nvtx", graphs: Some(GraphTrace::Graph) },
        }
    }
}

/// Profiles `target` into `stem.nsys-rep`. Unless told otherwise nsys samples the CPU, and that costs: it is told otherwise.
pub fn profile(nsys: &Path, options: &Options, stem: &Path, target: &Argv) -> Argv {
    let mut argv = Argv::new(nsys).args(["profile", "--trace", options.trace, "--sample=none", "--cpuctxsw=none"]);
    argv = match options.graphs {
        Some(GraphTrace::Graph) => argv.arg("--cuda-graph-trace=graph"),
        Some(GraphTrace::Node) => argv.arg("--cuda-graph-trace=node"),
        None => argv,
    };
    argv = argv.args(["--wait=primary", "--stats=false", "--force-overwrite=true", "--output"]).arg(stem);
    argv = argv.arg(&target.program).args(&target.args);
    Argv { env: target.env.clone(), pass: target.pass.clone(), cwd: target.cwd.clone(), ..argv }
}

/// How a command gets a process tree of its own: as root, and as a user who may make namespaces.
pub const ISOLATIONS: [&[&str]; 2] = [
    &["--fork", "--kill-child", "--pid", "--mount-proc"],
    &["--map-root-user", "--fork", "--kill-child", "--pid", "--mount-proc"],
];

/// In the new tree process ids begin again at 1, and nsys names its shared memory by them: each tree has its own.
const OWN_SHARED_MEMORY: &str = "mount -t tmpfs llmprof /dev/shm && exec \"$@\"";

/// Runs `command` where it sees no process but its own.
///
/// nsys copies the environment of every process that it may read into its report, a service's secrets included, and the report is
/// handed out. Its format is compressed, so nothing can be taken out afterwards.
pub fn isolated(isolation: &[&str], command: Argv) -> Argv {
    let argv =
        Argv::new("unshare").args(isolation).args(["sh", "-c", OWN_SHARED_MEMORY, "sh"]).arg(&command.program).args(command.args);
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

    fn command(device: &str, mode: Mode) -> String {
        let target = Argv::new("/opt/model-runner").args(["run", "--out", "/data/a run"]).env("X", "1");
        profile(Path::new("nsys"), &Options::of(device, mode), Path::new("/data/a run/nsys/run"), &target).shell()
    }

    #[test]
    fn a_cpu_run_traces_ranges_and_the_os_runtime() {
        let expected = "X=1 nsys profile --trace nvtx,osrt --sample=none --cpuctxsw=none --wait=primary --stats=false \
                        --force-overwrite=true --output '/data/a run/nsys/run' /opt/model-runner run --out '/data/a run'";
        assert_eq!(command("cpu", Mode::Deep), expected);
        assert_eq!(command("cpu", Mode::Light), expected);
    }

    #[test]
    fn a_gpu_run_traces_graphs_by_node_when_deep_and_whole_when_light() {
        let deep = command("cuda:0", Mode::Deep);
        assert!(deep.contains("--trace cuda,nvtx,osrt ") && deep.contains("--cuda-graph-trace=node"), "{deep}");
        let light = command("cuda:0", Mode::Light);
        assert!(light.contains("--trace cuda,nvtx ") && light.contains("--cuda-graph-trace=graph"), "{light}");
    }

    #[test]
    fn cublas_is_never_traced_and_sampling_is_always_off() {
        for command in [command("cuda:0", Mode::Deep), command("cuda:1", Mode::Light), command("cpu", Mode::Deep)] {
            assert!(!command.contains("cublas") && command.contains("--sample=none --cpuctxsw=none"), "{command}");
        }
    }

    #[test]
    fn an_isolated_command_keeps_its_words_and_variables() {
        let argv = isolated(ISOLATIONS[0], Argv::new("nsys").arg("profile").env("X", "1"));
        assert!(argv.shell().starts_with("X=1 unshare --fork --kill-child --pid --mount-proc sh -c "));
        assert!(argv.shell().ends_with(" nsys profile"));
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
