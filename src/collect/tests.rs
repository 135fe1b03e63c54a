//! Passes with shell scripts in the place of the runner and of nsys: the real commands, and tools that fail in known ways.

use std::{fs, path::PathBuf, time::Duration};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    model::ModelSpec,
    profiling::Profiling,
    run::{Dtype, Mode, RunId},
};

/// Writes a program. A shell does it: a file that this process holds open for writing, as a child that is just being forked by
/// another test would, cannot be executed.
pub fn program(path: &Path, script: &str) {
    let write = r#"mkdir -p "${1%/*}" && printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
    let status = std::process::Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(script).status();
    assert!(status.unwrap().success());
}

/// A runner that does its work: one event, one line of progress.
pub const RUNNER: &str = r#"
while [ $# -gt 0 ]; do case $1 in --out) out=$2; shift;; --request) request=$2; shift;; esac; shift; done
[ -s "$request" ] || exit 9
echo '{"phase":"measure","done":1,"total":1}'
echo '{}' > "$out/events.jsonl""#;

/// An nsys that does its work: runs the target, writes a report, exports it.
const NSYS: &str = r#"
case $1 in
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?; echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; cat "$3" > "$2";;
esac"#;

/// What mode deep means.
pub fn settings() -> Profiling {
    Profiling::bundled(Mode::Deep).unwrap()
}

pub struct Host {
    pub dir: tempfile::TempDir,
    pub collector: Collector,
    pub leash: Leash,
}

impl Host {
    pub fn new(runner: &str, nsys: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        program(&bin.join("model-runner"), runner);
        let nsys = nsys.map(|script| {
            program(&bin.join("nsys"), script);
            bin.join("nsys")
        });
        let collector = Collector { nsys, isolate: false, ..Collector::new(bin.join("model-runner")) };
        let leash = Leash::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
        Self { dir, collector, leash }
    }

    pub fn request(&self) -> RunnerRequest {
        RunnerRequest {
            model: toml::from_str::<ModelSpec>(include_str!("../../conf/models/deepseek-ocr-tiny.toml")).unwrap(),
            weights: None,
            seed: 0,
            prompt: "p".into(),
            images: vec![],
            dtype: Dtype::F32,
            device: "cpu".into(),
            gpu: None,
            warmup: 5,
            repeats: 7,
            max_new_tokens: 1,
            decode_graph: false,
            steady_ms: 0,
            ceilings: true,
            target: None,
            prompt_tokens: None,
            extracted: false,
            cold_cache: false,
        }
    }

    pub fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    async fn baseline(&self) -> Result<Pass, CollectError> {
        self.collector.baseline(&self.run(), &self.request(), &settings().nvml, &self.leash).await
    }

    async fn timeline(&self) -> Result<Pass, CollectError> {
        self.collector.nsys(&self.run(), &self.request(), &settings().nsys, &self.leash).await
    }

    /// The request that the runner was handed in a pass.
    pub fn handed(&self, pass: &str) -> RunnerRequest {
        serde_json::from_slice(&fs::read(self.run().join(pass).join(layout::REQUEST)).unwrap()).unwrap()
    }
}

#[tokio::test]
async fn the_plain_pass_leaves_request_command_events_and_output() {
    let mut host = Host::new(RUNNER, None);
    let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
    host.leash.lines = Some(to);
    host.baseline().await.unwrap();
    assert_eq!(host.handed(layout::BASELINE), host.request());
    for file in ["baseline/events.jsonl", "baseline/cmd.txt", "logs/baseline.stdout.log", "logs/baseline.stderr.log"] {
        assert!(host.run().join(file).is_file(), "{file}");
    }
    assert!(matches!(from.try_recv(), Ok(ChildLine::Progress(progress)) if progress.phase == "measure"));
}

#[tokio::test]
async fn a_runner_that_fails_is_quoted() {
    let host = Host::new("echo loading; echo image x.png is corrupt >&2; exit 2", None);
    let error = host.baseline().await.unwrap_err();
    assert_eq!(error.to_string(), "the model runner exited with code 2: image x.png is corrupt");
    assert_eq!(error.ended(), Some(Ended::Exited(2)));
    assert!(host.run().join("logs/baseline.stdout.log").is_file(), "the logs are kept");
}

#[tokio::test]
async fn a_runner_whose_library_is_missing_is_told_by_the_library_and_the_remedy() {
    let loader = "error while loading shared libraries: libcuda.so.1: cannot open shared object file: No such file or directory";
    let host = Host::new(&format!("echo \"$0: {loader}\" >&2; exit 127"), None);
    let error = host.baseline().await.unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with("the model runner cannot start: libcuda.so.1 is missing: "), "{said}");
    assert!(said.contains("install the driver") && said.lines().count() == 1, "{said}");
    assert_eq!(error.ended(), Some(Ended::Exited(127)));
    assert!(error.last_words()[0].ends_with(loader));
}

#[tokio::test]
async fn exit_0_and_empty_is_a_failure() {
    let error = Host::new("exit 0", None).baseline().await.unwrap_err();
    assert_eq!(error.to_string(), "the model runner exited with code 0 but left no events.jsonl");
}

#[tokio::test]
async fn a_runner_that_is_missing_is_named() {
    let mut host = Host::new(RUNNER, None);
    host.collector.runner = "/nowhere/model-runner".into();
    let error = anyhow::Error::from(host.baseline().await.unwrap_err());
    assert_eq!(format!("{error:#}"), "cannot run /nowhere/model-runner: No such file or directory (os error 2)");
}

#[tokio::test]
async fn a_second_attempt_begins_with_an_empty_folder() {
    let host = Host::new("exit 0", None);
    fs::create_dir_all(host.run().join("baseline")).unwrap();
    fs::write(host.run().join("baseline/events.jsonl"), "of the first attempt").unwrap();
    host.baseline().await.unwrap_err();
}

#[tokio::test]
async fn the_timeline_pass_runs_once_and_leaves_report_export_and_commands() {
    let host = Host::new(RUNNER, Some(NSYS));
    assert_eq!(host.timeline().await.unwrap().findings, []);
    let handed = host.handed(layout::NSYS);
    assert_eq!((handed.repeats, handed.warmup, handed.ceilings), (1, 1, false));
    for file in
        [layout::NSYS_REPORT, layout::NSYS_EXPORT, "nsys/events.jsonl", "logs/nsys.stdout.log", "logs/nsys-export.stderr.log"]
    {
        assert!(host.run().join(file).is_file(), "{file}");
    }
    let commands = fs::read_to_string(host.run().join(layout::NSYS_COMMAND)).unwrap();
    let commands: Vec<_> = commands.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(commands, ["profile", "export"]);
}

#[tokio::test]
async fn without_nsys_there_is_no_timeline() {
    let error = Host::new(RUNNER, None).timeline().await.unwrap_err();
    assert!(matches!(error, CollectError::NotInstalled { tool: "nsys" }));
}

#[tokio::test]
async fn an_nsys_that_exits_0_and_leaves_nothing_is_quoted() {
    let host = Host::new(RUNNER, Some("echo 'Importer error status: broken' >&2"));
    let error = host.timeline().await.unwrap_err();
    assert_eq!(error.to_string(), "nsys profile exited with code 0 but left no nsys/run.nsys-rep: Importer error status: broken");
}

/// An nsys that loses its helper the first `times` times that it profiles.
fn forgetful(times: u32) -> Host {
    let lose = format!(
        "if [ $1 = profile ]; then echo try >> \"${{0%/*}}/tries\"; if [ $(wc -l < \"${{0%/*}}/tries\") -le {times} ]; then \
         echo 'Connection to the Agent lost.' >&2; exit 0; fi; fi\n{NSYS}"
    );
    Host::new(RUNNER, Some(&lose))
}

#[tokio::test]
async fn an_nsys_that_lost_its_helper_is_begun_again_and_says_so() {
    let pass = forgetful(2).timeline().await.unwrap();
    let found: Vec<_> = pass.findings.iter().map(|it| (it.id.as_str(), it.evidence["times begun"].as_str())).collect();
    assert_eq!(found, [("nsys_started_again", "3")]);
}

#[tokio::test]
async fn an_nsys_that_loses_its_helper_each_time_fails_after_three() {
    let host = forgetful(99);
    let error = host.timeline().await.unwrap_err();
    assert_eq!(error.to_string(), "nsys profile exited with code 0 but left no nsys/run.nsys-rep: Connection to the Agent lost.");
    assert_eq!(fs::read_to_string(host.dir.path().join("bin/tries")).unwrap().lines().count(), 3);
}

/// An nsys whose command `command` ends with `words` the first time.
fn once(command: &str, words: &str) -> Host {
    let lose =
        format!("if [ $1 = {command} ] && mkdir \"${{0%/*}}/tried\" 2>/dev/null; then echo '{words}' >&2; exit 1; fi\n{NSYS}");
    Host::new(RUNNER, Some(&lose))
}

#[tokio::test]
async fn an_end_of_file_between_the_halves_of_nsys_is_tried_again() {
    for command in ["profile", "export"] {
        let pass = once(command, "Error: End of file").timeline().await.unwrap();
        let found: Vec<_> = pass.findings.iter().map(|it| (it.id.as_str(), it.evidence["nsys"].as_str())).collect();
        assert_eq!(found, [("nsys_started_again", "Error: End of file")], "{command}");
        let error = once(command, "no space left").timeline().await.unwrap_err();
        assert!(error.to_string().contains("no space left"), "{error}");
    }
}

#[tokio::test]
async fn a_report_of_a_newer_nsys_names_both_versions_and_the_way_by_hand() {
    let host = Host::new(
        RUNNER,
        Some(
            "case $1 in --version) echo 'NVIDIA Nsight Systems version 2022.4.2.1-df9881f';; export) echo 'Version number is invalid: 2025@6@1' >&2; exit 1;; esac",
        ),
    );
    fs::create_dir_all(host.run().join("nsys")).unwrap();
    let error = host.collector.export(&host.run(), &host.leash).await.unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("nsys 2025.6.1") && said.contains("(2022.4.2.1-df9881f)") && said.contains("nsys export --type sqlite"),
        "{said}"
    );
    assert_eq!(error.finding().unwrap().id, "nsys_report_newer");
}

/// An nsys whose importer fails: raw data only. NVIDIA's layout, with the importer where nsys itself does not find it.
fn unlinked(importer: &str) -> Host {
    let mut host = Host::new(
        RUNNER,
        Some(&NSYS.replace("nsys-rep;;", "qdstrm; echo 'importer not found' >&2;;").replace(".nsys-rep", ".qdstrm")),
    );
    let root = host.dir.path().join("nsight");
    program(&root.join("host-linux-x64/QdstrmImporter"), importer);
    fs::create_dir(root.join("target-linux-x64")).unwrap();
    let nsys = root.join("target-linux-x64/nsys");
    fs::rename(host.dir.path().join("bin/nsys"), &nsys).unwrap();
    host.collector.nsys = Some(nsys);
    host
}

#[tokio::test]
async fn raw_data_is_imported_where_the_importer_is_found() {
    let host = unlinked(r#"cat "$3" > "$5""#);
    let pass = host.timeline().await.unwrap();
    assert_eq!(pass.findings.iter().map(|f| f.id.as_str()).collect::<Vec<_>>(), ["nsys_importer_unlinked"]);
    assert!(host.run().join(layout::NSYS_EXPORT).is_file() && !host.run().join("nsys/run.qdstrm").exists());
}

#[tokio::test]
async fn an_importer_that_fails_is_a_failure_with_its_words() {
    let error = unlinked("echo incompatible stream >&2; exit 1").timeline().await.unwrap_err();
    assert_eq!(error.to_string(), "QdstrmImporter exited with code 1: incompatible stream");
    let error = unlinked("echo done").timeline().await.unwrap_err();
    assert_eq!(error.to_string(), "QdstrmImporter exited with code 0 but left no run.nsys-rep: done");
}

#[tokio::test]
async fn an_import_with_errors_is_not_taken_for_a_good_one() {
    let host = Host::new(RUNNER, Some(&NSYS.replace("report >", "Importation succeeded with non-fatal errors.; echo report >")));
    let pass = host.timeline().await.unwrap();
    assert_eq!(pass.findings.iter().map(|f| f.id.as_str()).collect::<Vec<_>>(), ["nsys_import_errors"]);
}

/// The leash of a run that may hold so many bytes.
fn narrow(host: &mut Host, most_bytes: u64) {
    host.leash.space = Some(space::Space { dir: host.run(), most_bytes, free_bytes: 0 });
    host.leash.grace = Duration::from_millis(100);
}

#[tokio::test]
async fn a_tool_that_writes_too_much_is_ended_and_its_raw_data_goes() {
    let endless = r#"while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
head -c 3000000 /dev/zero > "$stem.nsys-rep"; exec sleep 1000"#;
    let mut host = Host::new(RUNNER, Some(endless));
    narrow(&mut host, 2_000_000);
    let error = host.timeline().await.unwrap_err();
    assert_eq!(error.ended(), Some(Ended::SpacePassed));
    let said = "nsys profile wrote more than a run may hold and was ended; dropped: run.nsys-rep (3000000 bytes)";
    assert_eq!(error.to_string(), said);
    let finding = error.finding().unwrap();
    assert_eq!((finding.id.as_str(), finding.evidence["run.nsys-rep"].as_str()), ("run_too_large", "3000000 bytes, dropped"));
    assert!(!host.run().join(layout::NSYS_REPORT).exists() && host.run().join("nsys/events.jsonl").is_file());
    assert!(fs::read_to_string(host.run().join("nsys/dropped.txt")).unwrap().contains("run.nsys-rep: 3000000 bytes"));
}

#[tokio::test]
async fn a_tool_is_ended_when_the_disk_becomes_nearly_full_and_its_raw_data_makes_room() {
    let endless = r#"while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
head -c 3000000 /dev/zero > "$stem.nsys-rep"; exec sleep 1000"#;
    let mut host = Host::new(RUNNER, Some(endless));
    narrow(&mut host, 1 << 40);
    // Less is free than this at any time: the tool is ended at the first look.
    host.leash.space.as_mut().unwrap().free_bytes = u64::MAX;
    let error = host.timeline().await.unwrap_err();
    assert_eq!((error.ended(), error.finding().unwrap().id.as_str()), (Some(Ended::DiskFull), "disk_full"));
    assert!(error.to_string().starts_with("nsys profile was ended because the disk of the runs is nearly full"), "{error}");
    assert!(!host.run().join(layout::NSYS_REPORT).exists());
}

#[tokio::test]
async fn what_a_tool_keeps_in_its_temporary_folder_counts_and_so_does_an_export_that_ends_too_large() {
    let mut host = Host::new(RUNNER, Some(r#"head -c 3000000 /dev/zero > "$TMPDIR/raw"; exec sleep 1000"#));
    narrow(&mut host, 2_000_000);
    assert_eq!(host.timeline().await.unwrap_err().ended(), Some(Ended::SpacePassed));
    let mut host = Host::new(RUNNER, Some(&NSYS.replace(r#"cat "$3" > "$2""#, r#"head -c 3000000 /dev/zero > "$2""#)));
    narrow(&mut host, 2_000_000);
    let error = host.timeline().await.unwrap_err();
    assert!(error.to_string().starts_with("nsys export wrote more than a run may hold"), "{error}");
    assert!(!host.run().join(layout::NSYS_EXPORT).exists() && !host.run().join(layout::NSYS_REPORT).exists());
}

#[tokio::test]
async fn a_tool_that_never_ends_is_ended_at_its_deadline_and_that_has_a_name() {
    let mut host = Host::new(RUNNER, Some("exec sleep 1000"));
    host.leash.deadline = tokio::time::Instant::now() + Duration::from_millis(200);
    let error = host.timeline().await.unwrap_err();
    assert_eq!((error.ended(), error.finding().unwrap().id.as_str()), (Some(Ended::DeadlinePassed), "run_out_of_time"));
}

/// An nsys that profiles a program which leaves a child behind: it ends when nothing of that child is left, as the real one does.
const PATIENT: &str = r#"
case $1 in
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
  setsid sh -c 'sleep 0.1 & echo $! > "$0"' "$stem.left"; while [ -e "/proc/$(cat "$stem.left")" ]; do sleep 0.05; done
  echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; cat "$3" > "$2";;
esac"#;

#[tokio::test]
async fn a_process_that_lost_its_parent_is_taken_leave_of_in_a_tree_of_its_own() {
    let mut host = Host::new(RUNNER, Some(PATIENT));
    host.collector.isolate = true;
    host.timeline().await.unwrap();
}
