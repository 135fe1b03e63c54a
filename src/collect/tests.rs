//! Passes with shell scripts in the place of the runner and of nsys: the real commands, and tools that fail in known ways.

use std::{fs, path::PathBuf, time::Duration};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    model::ModelSpec,
    run::{Dtype, RunId},
};

/// Writes a program. A shell does it: a file that this process holds open for writing, as a child that is just being forked by
/// another test would, cannot be executed.
pub fn program(path: &Path, script: &str) {
    let write = r#"mkdir -p "${1%/*}" && printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
    let status = std::process::Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(script).status();
    assert!(status.unwrap().success());
}

/// A runner that does its work: one event, one line of progress.
const RUNNER: &str = r#"
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

struct Host {
    dir: tempfile::TempDir,
    collector: Collector,
    leash: Leash,
}

impl Host {
    fn new(runner: &str, nsys: Option<&str>) -> Self {
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

    fn request(&self) -> RunnerRequest {
        RunnerRequest {
            model: toml::from_str::<ModelSpec>(include_str!("../../conf/models/deepseek-ocr-tiny.toml")).unwrap(),
            weights: None,
            seed: 0,
            prompt: "p".into(),
            images: vec![],
            dtype: Dtype::F32,
            device: "cpu".into(),
            warmup: 5,
            repeats: 7,
            max_new_tokens: 1,
            decode_graph: false,
            ceilings: true,
        }
    }

    fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    async fn baseline(&self) -> Result<Pass, CollectError> {
        self.collector.baseline(&self.run(), &self.request(), &self.leash).await
    }

    async fn timeline(&self) -> Result<Pass, CollectError> {
        self.collector.nsys(&self.run(), &self.request(), Mode::Deep, &self.leash).await
    }

    /// The request that the runner was handed in a pass.
    fn handed(&self, pass: &str) -> RunnerRequest {
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
