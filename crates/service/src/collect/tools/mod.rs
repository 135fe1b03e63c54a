//! Programs that collection starts: their paths, versions and features.
//!
//! A configured path is used as is; otherwise PATH and the usual folders are searched.

pub mod gpu_metrics;
pub mod ncu;
pub mod nsys;
pub mod nsys_report;
pub mod nsys_session;
pub mod nsys_window;
pub mod permission;
pub mod slurm;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use llmprof_core::domain::{
    finding::catalogue::{self, FindingId},
    runner::Features,
};

use crate::{
    collect::process::{
        argv::Argv,
        child::{ExitReason, ProcessLimits, run},
        output::{Logs, last_lines},
    },
    config::environment,
};

/// Folder of NVIDIA's packages, with one folder per product and version.
const VENDOR: &str = "/opt/nvidia";
const CUDA: &str = "/usr/local/cuda/bin";
/// Time limit of `--version` and `features`.
const VERSION_LIMIT: Duration = Duration::from_secs(20);

/// A known reason why a tool read no counters, with the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterRefusal {
    /// Id of its finding.
    pub id: FindingId,
    pub why: &'static str,
    pub remedy: &'static str,
}

/// The driver refuses counters to this user.
pub const COUNTERS_FORBIDDEN: CounterRefusal = CounterRefusal {
    id: catalogue::COUNTERS_FORBIDDEN,
    why: "this user may not read the GPU's performance counters",
    remedy: "load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0, or give the \
             service CAP_SYS_ADMIN",
};

/// Another program uses the counters.
pub const COUNTERS_HELD: CounterRefusal = CounterRefusal {
    id: catalogue::COUNTERS_HELD,
    why: "another program holds the GPU's performance counters",
    remedy: "pause DCGM's profiling metrics (dcgmi profile --pause), and stop other profilers",
};

/// Finds model-runner: the configured one, the one of the environment, the one next to this
/// program, or one on PATH.
pub fn find_runner(configured: Option<&Path>) -> PathBuf {
    const NAME: &str = "model-runner";
    configured
        .map(Path::to_owned)
        .or_else(environment::model_runner)
        .or_else(|| next_to_executable(NAME))
        .unwrap_or_else(|| NAME.into())
}

fn next_to_executable(name: &str) -> Option<PathBuf> {
    let path = environment::executable().ok()?.with_file_name(name);
    Some(path).filter(|path| is_program(path))
}

/// Finds a tool of NVIDIA: the configured path, else the first on PATH, else the newest in the
/// usual folders.
pub fn find_tool(name: &str, configured: Option<&Path>) -> Option<PathBuf> {
    match configured {
        Some(path) => Some(path.to_owned()),
        None => on_path(name, &environment::search_path()).or_else(|| {
            let cuda = [Path::new(CUDA).join(name)];
            cuda.into_iter()
                .find(|path| is_program(path))
                .or_else(|| newest(Path::new(VENDOR), name))
        }),
    }
}

/// Finds a program of the operator: an absolute path, or a name next to this program or on PATH.
pub fn find_program(program: &Path) -> Option<PathBuf> {
    if program.is_absolute() {
        return Some(program.to_owned()).filter(|path| is_program(path));
    }
    let name = program.to_str()?;
    next_to_executable(name).or_else(|| on_path(name, &environment::search_path()))
}

fn on_path(name: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    folders
        .iter()
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|path| is_program(path))
}

/// Finds `ROOT/<product>/<version>/{bin/,}NAME` with the highest version.
fn newest(root: &Path, name: &str) -> Option<PathBuf> {
    let folders = |path: &Path| {
        fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect::<Vec<_>>()
    };
    let mut found: Vec<_> = folders(root)
        .iter()
        .flat_map(|product| folders(product))
        .flat_map(|version| {
            ["bin", ""].map(|bin| (version_key(&version), version.join(bin).join(name)))
        })
        .filter(|(_, path)| is_program(path))
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path)
}

/// The numbers of a folder's version, so that 2025.10 sorts after 2025.3.
fn version_key(folder: &Path) -> Vec<u64> {
    version_numbers(&folder.file_name().unwrap_or_default().to_string_lossy())
}

/// The numbers of a version.
pub fn version_numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// True if the path is an executable file.
pub fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Runs `tool --version` and returns the version, or the failure in one line. The output is in
/// `logs`.
pub async fn version(tool: &Path, logs: &Logs, limits: &ProcessLimits) -> Result<String, String> {
    let argv = Argv::new(tool).arg("--version");
    match run(&argv, logs, &limits.short(VERSION_LIMIT)).await {
        Ok(ExitReason::Exited(0)) => parse_version(&last_lines(&logs.stdout, 20))
            .ok_or_else(|| "its output contains no version".to_owned()),
        Ok(reason) => Err(exit_message(reason, logs)),
        Err(error) => Err(format!("cannot start it: {error}")),
    }
}

/// Runs `model-runner features` and returns its output, or the failure in one line. The output is
/// in `logs`.
pub async fn features(
    runner: &Path,
    logs: &Logs,
    limits: &ProcessLimits,
) -> Result<Features, String> {
    let argv = Argv::new(runner).arg("features");
    match run(&argv, logs, &limits.short(VERSION_LIMIT)).await {
        Ok(ExitReason::Exited(0)) => {
            let output = last_lines(&logs.stdout, 1);
            serde_json::from_str(output.first().map_or("", String::as_str))
                .map_err(|_| "its output contains no features".to_owned())
        }
        Ok(reason) => Err(exit_message(reason, logs)),
        Err(error) => Err(format!("cannot start it: {error}")),
    }
}

fn exit_message(reason: ExitReason, logs: &Logs) -> String {
    let exit = std::iter::once(format!("it {reason}"));
    exit.chain(logs.last_output(1)).collect::<Vec<_>>().join(": ")
}

/// Returns the word after the last "version": `NVIDIA Nsight Systems version 2022.4.2.1`, `Version
/// 2025.3.1.0 (build 36398880)`.
fn parse_version(lines: &[String]) -> Option<String> {
    let mut words = lines.iter().rev().flat_map(|line| line.split_whitespace().collect::<Vec<_>>());
    words.find(|word| word.eq_ignore_ascii_case("version"))?;
    words.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::tests::program;

    #[test]
    fn the_first_program_on_the_path_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::write(a.join("nsys"), "not a program").unwrap();
        program(&b.join("nsys"), "");
        let path = [PathBuf::from("."), a, b.clone()];
        assert_eq!(on_path("nsys", &path), Some(b.join("nsys")));
        assert_eq!(on_path("ncu", &path), None);
    }

    #[test]
    fn the_newest_of_the_vendors_versions_is_found() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["2024.6.2", "2025.10.1", "2025.3.2"] {
            program(&dir.path().join("nsight-systems").join(version).join("bin/nsys"), "");
        }
        assert_eq!(
            newest(dir.path(), "nsys"),
            Some(dir.path().join("nsight-systems/2025.10.1/bin/nsys"))
        );
    }

    #[test]
    fn versions_are_read_from_the_tools_output() {
        let nsys = ["NVIDIA Nsight Systems version 2022.4.2.1-df9881f".to_owned()];
        assert_eq!(parse_version(&nsys).as_deref(), Some("2022.4.2.1-df9881f"));
        let ncu = [
            "NVIDIA (R) Nsight Compute Command Line Profiler",
            "Copyright (c) 2018-2025",
            "Version 2025.3.1.0 (build 36398880)",
        ];
        assert_eq!(parse_version(&ncu.map(str::to_owned)).as_deref(), Some("2025.3.1.0"));
        assert_eq!(parse_version(&[]), None);
    }
}
