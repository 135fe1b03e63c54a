//! Test host with shell scripts as model-runner and nsys, started by the real commands.

use std::{fs, path::PathBuf, time::Duration};

use llmprof_core::domain::{
    dtype::Dtype, ids::RunId, mode::Mode, model::ModelSpec, profiling::Profiling,
};
use tokio_util::sync::CancellationToken;

use super::*;

/// Writes a program. A shell writes it, because a file that is open for writing cannot be executed,
/// and a child that another test is forking would hold it open.
pub fn program(path: &Path, script: &str) {
    let write = r#"mkdir -p "${1%/*}" && printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
    let status =
        std::process::Command::new("sh").args(["-c", write, "sh"]).arg(path).arg(script).status();
    assert!(status.unwrap().success());
}

/// A working runner: one event, one line of progress.
pub const RUNNER: &str = r#"
while [ $# -gt 0 ]; do
  case $1 in --out) out=$2; shift;; --request) request=$2; shift;; esac; shift
done
[ -s "$request" ] || exit 9
echo '{"phase":"measure","done":1,"total":1}'
echo '{}' > "$out/events.jsonl""#;

/// A working nsys: runs the target, writes a report, exports it.
pub const NSYS: &str = r#"
case $1 in
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
  echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; cat "$3" > "$2";;
esac"#;

/// Settings of the mode deep.
pub fn settings() -> Profiling {
    Profiling::bundled(&Mode::DEEP).unwrap()
}

pub struct TestHost {
    pub dir: tempfile::TempDir,
    pub collector: Collector,
    pub limits: ProcessLimits,
}

impl TestHost {
    pub fn new(runner: &str, nsys: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        program(&bin.join("model-runner"), runner);
        let nsys = nsys.map(|script| {
            program(&bin.join("nsys"), script);
            bin.join("nsys")
        });
        let collector =
            Collector { nsys, isolate: false, ..Collector::new(bin.join("model-runner")) };
        let limits =
            ProcessLimits::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
        Self { dir, collector, limits }
    }

    pub fn request(&self) -> RunnerRequest {
        RunnerRequest {
            model: toml::from_str::<ModelSpec>(include_str!(
                "../../../../conf/models/deepseek-ocr-tiny.toml"
            ))
            .unwrap(),
            weights: None,
            seed: 0,
            prompt: "p".into(),
            images: vec![],
            further_samples: vec![],
            batch: 1,
            dtype: Dtype::F32,
            device: "cpu".into(),
            gpu: None,
            warmup: 5,
            repeats: 7,
            max_new_tokens: 1,
            cache_tokens: None,
            decode_graph: false,
            steady_ms: 0,
            ceilings: true,
            target: None,
            prompt_tokens: None,
            extracted: false,
            cold_cache: false,
            operators: true,
            operator_ranges: true,
            predictions: true,
            memory: false,
        }
    }

    pub fn run(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub async fn baseline(&self) -> Result<Pass, CollectError> {
        self.collector.baseline(&self.run(), &self.request(), &settings().nvml, &self.limits).await
    }

    pub async fn timeline(&self) -> Result<Pass, CollectError> {
        let settings = &settings().nsys;
        let pass = NsysPass::timeline(settings);
        self.collector.nsys(&self.run(), &self.request(), &pass, &self.limits).await
    }

    /// Request of the runner in a pass.
    pub fn runner_request(&self, pass: &str) -> RunnerRequest {
        serde_json::from_slice(&fs::read(self.run().join(pass).join(layout::REQUEST)).unwrap())
            .unwrap()
    }
}
