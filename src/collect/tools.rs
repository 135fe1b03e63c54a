//! Where the programs are that collection starts, and which versions they say they are.
//!
//! A path that was configured is taken as it is; else the search path and the usual places are looked through.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    argv::Argv,
    child::{Ended, Leash, run},
    output::{Logs, last_lines},
};
use crate::runner::Features;

/// Names another `model-runner` than the one beside the service.
pub const RUNNER_VARIABLE: &str = "LLMPROF_MODEL_RUNNER";
/// Where NVIDIA's packages put tools that nobody put on the search path: each version in a folder of its own.
const VENDOR: &str = "/opt/nvidia";
const CUDA: &str = "/usr/local/cuda/bin";
/// Longest that a tool may take to say its version.
const VERSION_LIMIT: Duration = Duration::from_secs(20);

/// The model runner: the configured one, the one that the environment names, the one beside this program, or one on the path.
pub fn find_runner(configured: Option<&Path>) -> PathBuf {
    const NAME: &str = "model-runner";
    let named = || env::var_os(RUNNER_VARIABLE).map(PathBuf::from);
    let beside = || env::current_exe().ok().map(|exe| exe.with_file_name(NAME)).filter(|path| is_program(path));
    configured.map(Path::to_owned).or_else(named).or_else(beside).unwrap_or_else(|| NAME.into())
}

/// A tool of NVIDIA's: the configured path, else the first on the search path, else the newest of the usual places.
pub fn find_tool(name: &str, configured: Option<&Path>) -> Option<PathBuf> {
    match configured {
        Some(path) => Some(path.to_owned()),
        None => on_path(name, env::var_os("PATH").as_deref()).or_else(|| {
            let cuda = [Path::new(CUDA).join(name)];
            cuda.into_iter().find(|path| is_program(path)).or_else(|| newest(Path::new(VENDOR), name))
        }),
    }
}

/// A program of the operator's: a path as it is, a name beside this program or on the search path.
pub fn find_program(program: &Path) -> Option<PathBuf> {
    if program.is_absolute() {
        return Some(program.to_owned()).filter(|path| is_program(path));
    }
    let name = program.to_str()?;
    let beside = env::current_exe().ok().map(|exe| exe.with_file_name(name)).filter(|path| is_program(path));
    beside.or_else(|| on_path(name, env::var_os("PATH").as_deref()))
}

fn on_path(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    env::split_paths(path?).filter(|folder| folder.is_absolute()).map(|folder| folder.join(name)).find(|path| is_program(path))
}

/// `ROOT/<product>/<version>/{bin/,}NAME` with the highest version.
fn newest(root: &Path, name: &str) -> Option<PathBuf> {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let mut found: Vec<_> = folders(root)
        .iter()
        .flat_map(|product| folders(product))
        .flat_map(|version| ["bin", ""].map(|bin| (version_key(&version), version.join(bin).join(name))))
        .filter(|(_, path)| is_program(path))
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path)
}

/// The numbers of a folder's version in order, so that 2025.10 comes after 2025.3.
fn version_key(folder: &Path) -> Vec<u64> {
    version_numbers(&folder.file_name().unwrap_or_default().to_string_lossy())
}

/// The numbers of a version in order.
pub fn version_numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Says whether there is a file that may be executed.
pub fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Asks a tool for its version, or says in one line why it gave none. Its output stays in `logs`.
pub async fn version(tool: &Path, logs: &Logs, leash: &Leash) -> Result<String, String> {
    let argv = Argv::new(tool).arg("--version");
    match run(&argv, logs, &leash.short(VERSION_LIMIT)).await {
        Ok(Ended::Exited(0)) => parse_version(&last_lines(&logs.stdout, 20)).ok_or_else(|| "it said no version".to_owned()),
        Ok(ended) => Err(ended_badly(ended, logs)),
        Err(error) => Err(format!("it cannot be started: {error}")),
    }
}

/// Asks the model runner what it can do, or says in one line why it did not tell. Its output stays in `logs`.
pub async fn features(runner: &Path, logs: &Logs, leash: &Leash) -> Result<Features, String> {
    let argv = Argv::new(runner).arg("features");
    match run(&argv, logs, &leash.short(VERSION_LIMIT)).await {
        Ok(Ended::Exited(0)) => {
            let said = last_lines(&logs.stdout, 1);
            serde_json::from_str(said.first().map_or("", String::as_str)).map_err(|_| "it did not say its features".to_owned())
        }
        Ok(ended) => Err(ended_badly(ended, logs)),
        Err(error) => Err(format!("it cannot be started: {error}")),
    }
}

fn ended_badly(ended: Ended, logs: &Logs) -> String {
    std::iter::once(format!("it {ended}")).chain(logs.last_words(1)).collect::<Vec<_>>().join(": ")
}

/// The word after the last "version": `NVIDIA Nsight Systems version 2022.4.2.1-df9881f`, `Version 2025.3.1.0 (build 36398880)`.
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
    fn the_first_program_on_the_path_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::write(a.join("nsys"), "no program").unwrap();
        program(&b.join("nsys"), "");
        let path = env::join_paths([&PathBuf::from("."), &a, &b]).unwrap();
        assert_eq!(on_path("nsys", Some(&path)), Some(b.join("nsys")));
        assert_eq!(on_path("ncu", Some(&path)), None);
    }

    #[test]
    fn the_newest_of_the_vendors_versions_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["2024.6.2", "2025.10.1", "2025.3.2"] {
            program(&dir.path().join("nsight-systems").join(version).join("bin/nsys"), "");
        }
        assert_eq!(newest(dir.path(), "nsys"), Some(dir.path().join("nsight-systems/2025.10.1/bin/nsys")));
    }

    #[test]
    fn versions_are_read_from_what_the_tools_print() {
        let nsys = ["NVIDIA Nsight Systems version 2022.4.2.1-df9881f".to_owned()];
        assert_eq!(parse_version(&nsys).as_deref(), Some("2022.4.2.1-df9881f"));
        let ncu =
            ["NVIDIA (R) Nsight Compute Command Line Profiler", "Copyright (c) 2018-2025", "Version 2025.3.1.0 (build 36398880)"];
        assert_eq!(parse_version(&ncu.map(str::to_owned)).as_deref(), Some("2025.3.1.0"));
        assert_eq!(parse_version(&[]), None);
    }
}
