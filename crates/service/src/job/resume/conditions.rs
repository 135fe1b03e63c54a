//! The conditions of this attempt's passes, read from the host and from the files of the job.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use llmprof_core::{
    domain::{device::Device, pass_conditions::PassConditions, runner::RunnerRequest},
    layout,
    trace::environment::Environment,
};

use super::super::{RunningJob, timeline::TimelineTarget};
use crate::{
    artifact::{manifest, packed::open_named},
    collect::{CommandRun, process::argv, tools},
    config::environment,
    runtime::{self, work::SlicedWork},
};

/// Variables that do not affect a measurement, or that the device covers.
const IGNORED: &[&str] = &["RUST_LOG", "RUST_BACKTRACE", "CUDA_VISIBLE_DEVICES"];

/// Files and texts that are hashed together.
#[derive(Debug, Default)]
struct Hashed {
    /// Files with their contents.
    files: Vec<PathBuf>,
    /// Folders with the names, sizes and times of their files.
    folders: Vec<PathBuf>,
    texts: Vec<Vec<u8>>,
}

impl Hashed {
    /// The hash; `None` if a file cannot be read.
    fn sha256(self, work: &SlicedWork) -> Option<String> {
        let mut parts = self.texts;
        for path in &self.files {
            let (bytes, sha256) = manifest::hash(open_named(path).ok()?, work).ok()?;
            parts.push(format!("{} {bytes} {sha256}", path.display()).into_bytes());
        }
        for folder in &self.folders {
            parts.push(listing(folder).ok()?.into_bytes());
        }
        let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
        let all = [format!("{lengths:?}").into_bytes(), parts.concat()].concat();
        manifest::hash(all.as_slice(), work).ok().map(|(_, sha256)| sha256)
    }
}

impl RunningJob<'_> {
    /// The conditions of this attempt.
    pub(super) async fn conditions(&self, target: TimelineTarget<'_>) -> PassConditions {
        let (program, inputs) = match target {
            TimelineTarget::Runner(request) => (self.runner_files(), self.input_files(request)),
            TimelineTarget::Command(run) => (command_files(run), Hashed::default()),
        };
        let hash = |work: &SlicedWork| Ok((program.sha256(work), inputs.sha256(work)));
        let hashes = runtime::stoppable(&SlicedWork::new(self.stop), hash).await;
        let (program, inputs) = hashes.unwrap_or_default();
        let environment = &self.environment;
        PassConditions {
            program,
            inputs,
            settings: self.settings(target),
            devices: devices(self.device, &self.spec.other_gpus),
            host: Some(host(environment, self.device)),
            driver: environment.driver.clone(),
            nsys: environment.nsys.clone(),
            ncu: environment.ncu.clone(),
            llmprof: Some(build(environment)),
        }
    }

    fn runner_files(&self) -> Hashed {
        let runner = &self.host.collector.runner;
        let is_path = runner.components().count() > 1;
        let found = if is_path { Some(runner.clone()) } else { tools::find_program(runner) };
        // An unknown program cannot be read.
        Hashed { files: vec![found.unwrap_or_default()], ..Hashed::default() }
    }

    fn input_files(&self, request: &RunnerRequest) -> Hashed {
        Hashed {
            files: [layout::INPUTS, layout::INPUT_MANIFEST].map(|name| self.dir.join(name)).into(),
            folders: request.model.weights.clone().into_iter().collect(),
            texts: vec![request.prompt.clone().into_bytes()],
        }
    }

    /// Hash of the subject with its settings, and of the variables that the programs get.
    fn settings(&self, target: TimelineTarget<'_>) -> Option<String> {
        let own = match target {
            TimelineTarget::Runner(_) => &[],
            TimelineTarget::Command(run) => run.plan.pass_env.as_slice(),
        };
        let passed: Vec<&str> = argv::PASSED
            .iter()
            .copied()
            .chain(self.host.collector.pass.iter().chain(own).map(String::as_str))
            .filter(|name| !IGNORED.contains(name))
            .collect();
        let mut variables: Vec<(OsString, OsString)> = environment::variables()
            .filter(|(name, _)| passed.iter().any(|passed| name == passed))
            .collect();
        variables.sort();
        let assigned = |(name, value): (OsString, OsString)| {
            [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat()
        };
        let settings = serde_json::to_vec(&(&self.spec.spec.subject, &self.spec.subject)).ok()?;
        let texts = [settings].into_iter().chain(variables.into_iter().map(assigned)).collect();
        Hashed { texts, ..Hashed::default() }.sha256(&SlicedWork::default())
    }
}

/// The programs of a command, and the files that its arguments name: a script is an argument of
/// its interpreter.
fn command_files(run: &CommandRun) -> Hashed {
    let plan = &run.plan;
    let client = plan.client.as_ref().map(|it| (&it.program, &it.args));
    let mut files = Vec::new();
    for (program, args) in std::iter::once((&plan.program, &plan.args)).chain(client) {
        // An unknown program cannot be read.
        files.push(tools::find_program(program).unwrap_or_default());
        let args = args.iter().map(|arg| arg.argument(Path::new(""), 0));
        files.extend(args.filter_map(|arg| named_file(arg.as_ref(), plan.folder.as_deref())));
    }
    Hashed { files, ..Hashed::default() }
}

/// The file that an argument names, also as `--option=FILE`.
fn named_file(argument: &OsStr, folder: Option<&Path>) -> Option<PathBuf> {
    let bytes = argument.as_bytes();
    let value = bytes.iter().position(|byte| *byte == b'=').map(|at| &bytes[at + 1..]);
    let names = std::iter::once(bytes).chain(value).map(OsStr::from_bytes).map(Path::new);
    let mut paths = names.filter_map(|name| match folder {
        _ if name.is_absolute() => Some(name.to_owned()),
        Some(folder) => Some(folder.join(name)),
        None => None,
    });
    paths.find(|path| fs::metadata(path).is_ok_and(|meta| meta.is_file()))
}

/// UUIDs of the GPUs; `None` if one is unknown.
fn devices(device: &Device, others: &[Device]) -> Option<String> {
    if device.is_cpu() {
        return Some(device.name.clone());
    }
    let gpus = std::iter::once(device).chain(others.iter().filter(|it| !it.is_cpu()));
    let mut uuids = gpus.map(|gpu| gpu.uuid.clone()).collect::<Option<Vec<_>>>()?;
    uuids.sort();
    Some(uuids.join(", "))
}

/// The host of the timings. A GPU identifies it; a container gets another name at each start.
fn host(environment: &Environment, device: &Device) -> String {
    let name = environment.hostname.as_deref().filter(|_| device.is_cpu());
    let cpus = environment.cpus.map(|cpus| format!("{cpus} CPUs"));
    [environment.cpu.as_deref(), cpus.as_deref(), environment.kernel.as_deref(), name]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

fn build(environment: &Environment) -> String {
    let commit = environment.git_commit.as_deref();
    [Some(environment.llmprof.as_str()), commit].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Names, sizes and times of the files in `folder`: weights have gigabytes.
fn listing(folder: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let meta = fs::metadata(&path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push(format!("{name} {} {} {}\n", meta.len(), meta.mtime(), meta.mtime_nsec()));
    }
    files.sort();
    Ok(files.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_changes_with_any_file_text_and_name_and_is_unknown_without_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        fs::write(&file, "1").unwrap();
        let hashed = |texts: &[&str]| {
            let texts = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
            let folders = vec![dir.path().to_owned()];
            Hashed { files: vec![file.clone()], folders, texts }
                .sha256(&SlicedWork::default())
                .unwrap()
        };
        let first = hashed(&["ab", "c"]);
        assert_eq!(first, hashed(&["ab", "c"]));
        assert_ne!(first, hashed(&["a", "bc"]));
        fs::write(&file, "2").unwrap();
        let second = hashed(&["ab", "c"]);
        assert_ne!(first, second);
        fs::write(dir.path().join("other"), "").unwrap();
        assert_ne!(second, hashed(&["ab", "c"]));
        let missing = Hashed { files: vec![PathBuf::new()], ..Hashed::default() };
        assert_eq!(missing.sha256(&SlicedWork::default()), None);
    }

    #[test]
    fn files_named_by_arguments_are_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("train.py"), "").unwrap();
        let found = |argument: &str| named_file(argument.as_ref(), Some(dir.path()));
        let script = Some(dir.path().join("train.py"));
        assert_eq!((found("train.py"), found("--script=train.py")), (script.clone(), script));
        assert_eq!((found("missing.py"), found("--steps=3")), (None, None));
        assert_eq!(named_file("train.py".as_ref(), None), None);
    }

    #[test]
    fn a_gpu_without_a_uuid_is_unknown() {
        let gpu =
            |name: &str, uuid: &str| Device { uuid: Some(uuid.into()), ..Device::unknown(name) };
        assert_eq!(devices(&Device::cpu(), &[]).as_deref(), Some("cpu"));
        assert_eq!(devices(&Device::unknown("cuda:0"), &[]), None);
        let both = devices(&gpu("cuda:1", "GPU-b"), &[gpu("cuda:0", "GPU-a")]);
        assert_eq!(both.as_deref(), Some("GPU-a, GPU-b"));
    }
}
