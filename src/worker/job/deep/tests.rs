//! The deep steps of a job, over real captures that shell scripts hand out in the place of the tools.

use std::{path::PathBuf, sync::Arc};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    artifact::journal::Journal,
    collect::Collector,
    config::{self, Config, Limits},
    profiling::Profiling,
    run::{Mode, RunId, RunSpec, StepRecord},
    trace::device::Device,
    worker::{
        job::Host,
        order::{Order, OrderedSubject},
        steps::Steps,
    },
};

const RUNNER: &str = r#"
while [ $# -gt 0 ]; do case $1 in --out) out=$2; shift;; esac; shift; done
cat "$HERE/events.jsonl" > "$out/events.jsonl"
[ -z "$CUBLAS_LOGDEST_DBG" ] || cat "$HERE/cublas.log" > "$CUBLAS_LOGDEST_DBG""#;
const NSYS: &str = r#"
case $1 in
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?; echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; cat "$HERE/run.sqlite" > "$2";;
esac"#;
const NCU: &str = r#"
case $1 in
--query-metrics) echo 'dram__bytes_read  Counter  byte';;
--import) cat "$HERE/raw.csv";;
*) while [ "$1" != --export ]; do shift; done; report=$2; shift 2; "$@" || exit $?; echo report > "$report";;
esac"#;

const START: &str = concat!(
    r#"{"kind":"start","schema":1,"t_ns":1,"unix_ns":2,"pid":3,"model":"m","weights":"synthetic","parameters":4,"weight_bytes":16,"#,
    r#""dtype":"f32","device":"cuda:0","threads":2,"prompt_tokens":5,"image_tokens":0,"images":[],"decode_graph":false,"load_ns":6}"#
);

/// The events of a runner that made these tokens.
fn events(tokens: &str) -> String {
    let output = format!(r#"{{"kind":"output","warmup":false,"repeat":0,"tokens":[{tokens}],"logits_sha256":"ab"}}"#);
    format!("{START}\n{output}\n{}\n", r#"{"kind":"end","t_ns":10,"peak_rss_bytes":1}"#)
}

/// A shell writes it: a file that a fork holds open for writing cannot be executed.
fn write_program(folder: &Path, name: &str, lines: &str) -> PathBuf {
    let path = folder.join(name);
    let lines = format!("HERE='{}'\n{lines}", folder.display());
    let write = r#"rm -f "$1" && printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
    assert!(std::process::Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(lines).status().unwrap().success());
    path
}

/// A host with these tools, and what they hand out.
struct Bench {
    dir: tempfile::TempDir,
    cx: Host,
    limits: Limits,
}

impl Bench {
    async fn new(ncu: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, fixture) in [
            ("run.sqlite", "hf-llama-e2e.sqlite"),
            ("raw.csv", "hf-llama-decode.ncu-raw.csv"),
            ("cublas.log", "candle-probe.cublas.log"),
        ] {
            let packed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(format!("{fixture}.zst"));
            fs::write(dir.path().join(name), zstd::stream::decode_all(fs::File::open(packed).unwrap()).unwrap()).unwrap();
        }
        fs::write(dir.path().join("events.jsonl"), events("7,8")).unwrap();
        let program = |name: &str, lines: &str| write_program(dir.path(), name, lines);
        let collector = Collector {
            nsys: Some(program("nsys", NSYS)),
            ncu: Some(program("ncu", ncu)),
            isolate: false,
            ..Collector::new(program("runner", RUNNER))
        };
        let cx = Host { collector: Arc::new(collector), devices: Arc::new(config::devices().unwrap()) };
        let limits = Config::load(None, std::iter::empty()).unwrap().limits;
        Self { dir, cx, limits }
    }

    /// Takes the timeline and the deep steps of a run on a GPU; its steps and findings.
    async fn deep(&self, limit: Duration) -> (Vec<StepRecord>, Vec<Finding>) {
        let spec = RunSpec::tiny(Mode::Deep, 0, &[]).on("cuda:0");
        let model = config::models(None).unwrap().models["deepseek-ocr-tiny"].clone();
        let order_model = model.clone();
        let request = RunnerRequest {
            dtype: model.dtype,
            model,
            weights: None,
            seed: 0,
            prompt: String::new(),
            images: vec![],
            device: "cuda:0".into(),
            warmup: 1,
            repeats: 1,
            max_new_tokens: 8,
            decode_graph: true,
            steady_ms: 0,
            ceilings: true,
            gpu: None,
            target: None,
            prompt_tokens: None,
            extracted: false,
            cold_cache: false,
        };
        let settings = Profiling::bundled(Mode::Deep).unwrap();
        let order = Order {
            id: RunId::now(),
            attempt: 1,
            spec,
            subject: OrderedSubject::Model { model: order_model, profiling: settings.clone() },
            inputs: self.dir.path().to_owned(),
            devices: vec![],
            gpus: 0,
            tools: Config::load(None, std::iter::empty()).unwrap().tools,
            limits: self.limits.clone(),
            grace_s: 10,
            beside: vec![],
        };
        let dir = self.run_dir();
        fs::create_dir_all(dir.join(layout::BASELINE)).unwrap();
        fs::write(dir.join(layout::BASELINE).join(runner::EVENTS), events("7,8,9")).unwrap();
        let (journal, halt) = (Journal::open(&dir).unwrap(), CancellationToken::new());
        let mut job = Job {
            order: &order,
            device: &Device::unknown("cuda:0"),
            cx: &self.cx,
            halt: &halt,
            dir: &dir,
            deadline: Instant::now() + Duration::from_secs(60),
            steps: Steps::new(journal.clone(), Vec::new()),
            journal,
            lost_kernels: false,
            findings: Vec::new(),
        };
        let chosen = job.nsys(&request, &settings).await;
        job.deadline = Instant::now() + limit;
        job.counters(&request, &chosen, &settings).await;
        job.deadline = Instant::now() + Duration::from_secs(60);
        job.products(&request, &settings).await;
        (job.steps.records().to_vec(), job.findings)
    }

    /// Puts another program in the place of one.
    fn replace(&mut self, name: &str, lines: &str) {
        write_program(self.dir.path(), name, lines);
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }
}

const LIMIT: Duration = Duration::from_secs(60);

fn told(steps: &[StepRecord]) -> Vec<(Step, StepState, Option<i32>)> {
    steps.iter().map(|it| (it.step, it.state, it.exit_code)).collect()
}

fn ids(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|it| it.id.as_str()).collect()
}

/// The ncu step of a run whose ncu is this script: its state, its exit code and its message. The steps around it went well.
async fn ncu_step(script: &str, limit: Duration) -> (StepState, Option<i32>, String) {
    let bench = Bench::new(script).await;
    let (steps, _) = bench.deep(limit).await;
    assert_eq!(told(&steps)[0], (Step::Nsys, StepState::Succeeded, Some(0)), "{steps:?}");
    assert_eq!(told(&steps)[2], (Step::GemmLog, StepState::Succeeded, Some(0)), "{steps:?}");
    let ncu = steps.into_iter().nth(1).unwrap();
    (ncu.state, ncu.exit_code, ncu.message.unwrap_or_default())
}

#[tokio::test]
async fn a_deep_run_leaves_counters_of_both_stages_and_products() {
    let bench = Bench::new(NCU).await;
    let (steps, findings) = bench.deep(LIMIT).await;
    let well = |step| (step, StepState::Succeeded, Some(0));
    assert_eq!(told(&steps), [well(Step::Nsys), well(Step::Ncu), well(Step::GemmLog)], "{steps:?}");
    assert!(ids(&findings).iter().all(|id| matches!(*id, "ncu_kernels_missing" | "counters_cover_little")), "{findings:?}");
    for file in ["ncu/prefill/raw.csv", "ncu/decode_all/choice.json", "gemm_log/prefill/cublas.log", "gemm_log/all/cublas.log"] {
        assert!(bench.run_dir().join(file).is_file(), "{file}");
    }
    let command = fs::read_to_string(bench.run_dir().join("ncu/decode_all/cmd.txt")).unwrap();
    assert!(
        command.contains("--nvtx-include LLM@decode_all/") && command.contains("--metrics dram__bytes_read.sum"),
        "{command}"
    );
}

#[tokio::test]
async fn an_ncu_that_exits_0_and_leaves_nothing_fails_its_step_alone() {
    let (state, code, message) = ncu_step("exit 0", LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(message.starts_with("prefill: ncu exited with code 0 but left no run.ncu-rep"), "{message}");
    assert!(message.contains("; decode_all: ncu exited"), "{message}");
}

#[tokio::test]
async fn no_kernel_profiled_and_no_permission_are_told_apart() {
    let (state, code, message) = ncu_step("echo '==WARNING== No kernels were profiled.'", LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(message.contains("no kernel ran that was asked for"), "{message}");
    let (state, code, message) = ncu_step("echo '==ERROR== ERR_NVGPUCTRPERM - no'; exit 1", LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(1)));
    assert!(message.contains("NVreg_RestrictProfilingToAdminUsers=0"), "{message}");
}

#[tokio::test]
async fn an_ncu_that_hangs_is_ended_and_the_rest_goes_on() {
    let hang = NCU.replace("*) while", "*) exec sleep 1000; while");
    let (state, code, message) = ncu_step(&hang, Duration::from_millis(900)).await;
    assert_eq!((state, code), (StepState::Failed, None));
    assert_eq!(message, "prefill: ncu ran past its deadline and was ended");
}

#[tokio::test]
async fn counters_that_are_no_numbers_fail_the_step() {
    let (state, code, message) =
        ncu_step(&NCU.replace("cat \"$HERE/raw.csv\"", "sed 's/\"3.488000\"/\"nan\"/g' \"$HERE/raw.csv\""), LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(message.contains("counters are not a number, the first is reduce_kernel: gpu__time_duration."), "{message}");
}

#[tokio::test]
async fn a_timeline_that_lost_its_kernels_fails_and_nothing_is_chosen_from_it() {
    let bench = Bench::new(NCU).await;
    let export = rusqlite::Connection::open(bench.dir.path().join("run.sqlite")).unwrap();
    export.execute_batch("delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid % 4 <> 0").unwrap();
    drop(export);
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(told(&steps)[..2], [(Step::Nsys, StepState::Failed, Some(0)), (Step::Ncu, StepState::Skipped, None)]);
    assert_eq!(ids(&findings), ["incomplete_capture"]);
    assert!(steps[0].message.as_ref().unwrap().contains("kernels that were launched are recorded (25.0 %)"), "{steps:?}");
}

#[tokio::test]
async fn a_log_without_products_fails_its_step() {
    let bench = Bench::new(NCU).await;
    fs::write(bench.dir.path().join("cublas.log"), "rubbish\n").unwrap();
    let (steps, _) = bench.deep(LIMIT).await;
    assert_eq!(told(&steps)[2], (Step::GemmLog, StepState::Failed, Some(0)));
    assert_eq!(steps[2].message.as_deref(), Some("the libraries' logs hold no whole matrix product"));
}

/// A failure fixture, as the arguments of a shell's `cat`.
fn failure(name: &str) -> String {
    format!("'{}/tests/fixtures/failures/{name}'", env!("CARGO_MANIFEST_DIR"))
}

#[tokio::test]
async fn an_import_that_succeeded_with_errors_and_left_three_kernels_is_a_named_failure_with_the_tools_own_words() {
    let mut bench = Bench::new(NCU).await;
    let nsys = NSYS.replace("profile) ", &format!("profile) cat {}; ", failure("nsys-import-nonfatal.log")));
    bench.replace("nsys", &nsys);
    let export = rusqlite::Connection::open(bench.dir.path().join("run.sqlite")).unwrap();
    let kernels =
        "delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid not in (select rowid from CUPTI_ACTIVITY_KIND_KERNEL limit 3)";
    export.execute_batch(kernels).unwrap();
    drop(export);
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(told(&steps)[0], (Step::Nsys, StepState::Failed, Some(0)));
    let lost = findings.iter().find(|it| it.id == "incomplete_capture").unwrap();
    assert_eq!(lost.evidence["kernels recorded"], "3");
    assert!(lost.evidence["nsys"].contains("Importation succeeded with non-fatal errors."), "{lost:?}");
    let kept = bench.run_dir();
    assert!(
        kept.join("nsys/run.rejected.sqlite").is_file() && !kept.join("nsys/run.sqlite").exists(),
        "no report is made from it"
    );
    let covered: serde_json::Value = serde_json::from_slice(&fs::read(kept.join(layout::NSYS_COVERAGE)).unwrap()).unwrap();
    assert!(covered["pct"].as_f64().unwrap() < 1.0 && covered["coverage"]["recorded"] == 3, "{covered}");
}

#[tokio::test]
async fn an_nvtx_filter_that_matched_nothing_is_a_named_failure() {
    let bench =
        Bench::new(&NCU.replace("*) while", &format!("*) cat {}; exit 0; while", failure("ncu-filter-matched-nothing.log"))))
            .await;
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(told(&steps)[1], (Step::Ncu, StepState::Failed, Some(0)));
    assert_eq!(ids(&findings), ["nothing_profiled"; 2], "one for each stage");
}

#[tokio::test]
async fn an_export_that_cannot_be_read_fails_its_step_and_leaves_the_rest_readable() {
    let bench = Bench::new(NCU).await;
    fs::write(bench.dir.path().join("run.sqlite"), "no database at all").unwrap();
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(
        told(&steps),
        [
            (Step::Nsys, StepState::Failed, Some(0)),
            (Step::Ncu, StepState::Skipped, None),
            (Step::GemmLog, StepState::Succeeded, Some(0))
        ]
    );
    assert_eq!(ids(&findings), ["nsys_export_unreadable"]);
    let trace = parse::read(&bench.run_dir()).unwrap();
    assert!(trace.nsys.is_none() && trace.gemms.is_some());
}

#[tokio::test]
async fn a_pass_that_made_other_tokens_than_the_plain_one_fails_its_step() {
    for made in ["7,9", "7,8,9,10"] {
        let bench = Bench::new(NCU).await;
        fs::write(bench.dir.path().join("events.jsonl"), events(made)).unwrap();
        let (steps, findings) = bench.deep(LIMIT).await;
        assert_eq!(told(&steps)[0], (Step::Nsys, StepState::Failed, Some(0)), "{made}");
        assert!(steps[0].message.as_ref().unwrap().contains("other tokens than the plain pass"), "{steps:?}");
        assert!(told(&steps)[2] == (Step::GemmLog, StepState::Failed, Some(0)) && ids(&findings).contains(&"pass_not_proven"));
        assert!(bench.run_dir().join("gemm_log/all/cublas.rejected.log").is_file());
    }
}

#[tokio::test]
async fn counters_of_a_stage_that_made_other_tokens_are_set_aside() {
    let swap = r#"sed -i 's/7,8/9,8/' "${report%/*}/events.jsonl"; echo report > "$report""#;
    let other = NCU.replace(r#"echo report > "$report""#, swap);
    let (state, code, message) = ncu_step(&other, LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(message.contains("ncu/prefill: the pass made other tokens"), "{message}");
}

#[tokio::test]
async fn a_timeline_without_one_of_its_stages_fails() {
    let bench = Bench::new(NCU).await;
    let export = rusqlite::Connection::open(bench.dir.path().join("run.sqlite")).unwrap();
    export.execute_batch("update StringIds set value = 'renamed' where value = 'decode_all'; update NVTX_EVENTS set text = 'renamed' where text = 'decode_all'").unwrap();
    drop(export);
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(told(&steps)[0], (Step::Nsys, StepState::Failed, Some(0)));
    assert!(ids(&findings) == ["incomplete_capture"] && findings[0].message.contains("no range decode_all"), "{findings:?}");
}

#[tokio::test]
async fn a_run_that_grows_too_large_loses_the_pass_that_did_it_and_no_other() {
    let mut bench = Bench::new(NCU).await;
    let nsys = NSYS.replace("echo report >", "head -c 40000000 /dev/zero >");
    bench.replace("nsys", &nsys);
    bench.limits.run_bytes = 30_000_000;
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(
        told(&steps),
        [
            (Step::Nsys, StepState::Failed, None),
            (Step::Ncu, StepState::Skipped, None),
            (Step::GemmLog, StepState::Succeeded, Some(0))
        ]
    );
    assert_eq!(ids(&findings), ["run_too_large"]);
    assert!(bench.run_dir().join("nsys/dropped.txt").is_file() && !bench.run_dir().join(layout::NSYS_REPORT).exists());
}
