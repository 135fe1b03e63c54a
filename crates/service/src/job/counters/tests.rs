//! Counters and GEMM logs of a deep run.

use std::{fs, time::Duration};

use llmprof_core::domain::{
    finding::Finding,
    state::{Step, StepRecord, StepState},
};

use crate::job::tests::{Bench, LIMIT, NCU, RUNNER, events, failure, ids, results};

/// State, exit code and message of the ncu step with this script as ncu. The steps around it
/// succeed.
async fn ncu_step(script: &str, limit: Duration) -> (StepState, Option<i32>, String) {
    ncu_step_of(&Bench::new(script), limit).await
}

async fn ncu_step_of(bench: &Bench, limit: Duration) -> (StepState, Option<i32>, String) {
    let (steps, _) = bench.deep(limit).await;
    assert_eq!(results(&steps)[0], (Step::Nsys, StepState::Succeeded, Some(0)), "{steps:?}");
    assert_eq!(results(&steps)[2], (Step::GemmLog, StepState::Succeeded, Some(0)), "{steps:?}");
    let ncu = steps.into_iter().nth(1).unwrap();
    (ncu.state, ncu.exit_code, ncu.message.unwrap_or_default())
}

/// An ncu that profiles one launch of each requested kernel, all with the same geometry, in decode.
const NCU_BY_NAME: &str = r#"
case $1 in
--query-metrics) echo 'dram__bytes_read  Counter  byte';;
--import) head -n 2 "$HERE/raw.csv"
    row=$(sed -n 9p "$HERE/raw.csv")
    sed 's/^regex:^(//; s/)\$$//' "$2" | tr '|' '\n' | sed 's/_pad.*//' | while read -r name; do
        echo "$row" | sed "s/nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT/$name/
            s/(4, 8, 1)/(1, 1, 1)/; s/(384, 1, 1)/(128, 1, 1)/"
    done;;
*) while [ "$1" != --export ]; do case $1 in regex:*) names=$1;; esac; shift; done
    report=$2; shift 2; "$@" || exit $?
    echo "$names" > "$report";;
esac"#;

/// A host whose kernels have long symbols; an argument holds only one.
fn bench_of_long_symbols(ncu: &str) -> Bench {
    let bench = Bench::new(ncu);
    let sql = include_str!("../../../../../tests/fixtures/long-symbols.sql");
    export(&bench).execute_batch(sql).unwrap();
    bench
}

fn export(bench: &Bench) -> rusqlite::Connection {
    rusqlite::Connection::open(bench.dir.path().join("run.sqlite")).unwrap()
}

/// The same, whose kernels have no template arguments, and equal grids, blocks and shared memory.
fn bench_of_equal_geometries(ncu: &str) -> Bench {
    let bench = bench_of_long_symbols(ncu);
    let equal = "update CUPTI_ACTIVITY_KIND_KERNEL set gridX = 1, gridY = 1, gridZ = 1, \
                 blockX = 128, blockY = 1, blockZ = 1, dynamicSharedMemory = 0, \
                 demangledName = shortName";
    export(&bench).execute(equal, []).unwrap();
    bench
}

/// Findings with this id.
fn finding<'a>(findings: &'a [Finding], id: &str) -> Vec<&'a Finding> {
    findings.iter().filter(|it| it.id == id).collect()
}

#[tokio::test]
async fn kernels_whose_symbols_are_too_long_for_one_argument_are_profiled_in_several_processes() {
    let bench = bench_of_equal_geometries(NCU_BY_NAME);
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(results(&steps)[1], (Step::Ncu, StepState::Succeeded, Some(0)), "{steps:?}");
    for process in 1..=4 {
        assert!(bench.run_dir().join(format!("ncu/process-{process}/raw.csv")).is_file());
    }
    assert!(!bench.run_dir().join("ncu/process-5").exists(), "max_processes");
    assert!(finding(&findings, "ncu_kernels_missing").is_empty(), "{findings:?}");
    let covered = finding(&findings, "counters_cover_little");
    assert!(!covered.is_empty(), "four kernels are less than the target");
}

#[tokio::test]
async fn a_process_that_hangs_leaves_time_for_the_next_and_what_the_others_delivered_counts() {
    let hang = NCU_BY_NAME
        .replace("*) while", "*) case \"$*\" in *ncu/process-2/*) exec sleep 1000;; esac; while");
    let bench = bench_of_equal_geometries(&hang);
    let (steps, findings) = bench.deep(Duration::from_secs(12)).await;
    assert_eq!(results(&steps)[1], (Step::Ncu, StepState::Failed, None), "{steps:?}");
    let message = steps[1].message.as_deref();
    assert_eq!(message, Some("process-2: ncu ran past its deadline and was ended"));
    let raw = |process: &str| bench.run_dir().join("ncu").join(process).join("raw.csv").is_file();
    assert_eq!(["process-1", "process-2", "process-3"].map(raw), [true, false, true]);
    let missing = finding(&findings, "ncu_kernels_missing");
    assert_eq!(missing.len(), 1, "{findings:?}");
    assert_eq!(missing[0].evidence["reason"], "ncu ran past its deadline and was ended");
    assert_eq!(missing[0].message, "ncu profiled 0 of 1 selected kernels and geometries");
    assert_eq!(results(&steps)[2], (Step::GemmLog, StepState::Succeeded, Some(0)));
}

/// A runner that hangs under ncu in the first process, after these lines.
fn hanging_runner(lines: &str) -> String {
    let hang = format!("case $out in */ncu/process-1) {lines} exec sleep 1000;; esac");
    RUNNER.replace("done\n", &format!("done\n{hang}\n"))
}

/// The steps and findings of a bench whose target hangs in the first process, and where ncu then
/// writes the report.
async fn cut(lines: &str) -> (Bench, Vec<StepRecord>, Vec<Finding>) {
    let mut bench = bench_of_equal_geometries(&NCU_BY_NAME.replace("|| exit $?", ";"));
    bench.replace("runner", &hanging_runner(lines));
    let (steps, findings) = bench.deep(Duration::from_secs(12)).await;
    (bench, steps, findings)
}

#[tokio::test]
async fn launches_profiled_before_the_deadline_count_and_the_step_is_named_incomplete() {
    for (lines, output) in [
        ("cat \"$HERE/events.jsonl\" > \"$out/events.jsonl\";", "compared"),
        ("", "none: the program was ended before it"),
    ] {
        let (bench, steps, findings) = cut(lines).await;
        assert_eq!(results(&steps)[1], (Step::Ncu, StepState::Failed, None), "{steps:?}");
        let message = steps[1].message.as_deref().unwrap();
        let ended = "process-1: ncu ran past its deadline and was ended";
        assert!(message.starts_with(ended) && !message.contains("process-2"), "{message}");
        assert!(bench.run_dir().join("ncu/process-1/raw.csv").is_file());
        let found = finding(&findings, "ncu_cut");
        assert_eq!(found.len(), 1, "{findings:?}");
        assert_eq!(found[0].evidence["output of the program"], output);
        assert!(found[0].advice.as_deref().unwrap().contains("timeout_s"), "{found:?}");
        assert!(finding(&findings, "ncu_kernels_missing").is_empty(), "{findings:?}");
    }
}

#[tokio::test]
async fn launches_of_a_cut_pass_with_other_tokens_are_set_aside() {
    let other = "sed 's/7,8/9,8/' \"$HERE/events.jsonl\" > \"$out/events.jsonl\";";
    let (bench, steps, findings) = cut(other).await;
    assert!(steps[1].message.as_ref().unwrap().contains("other tokens"), "{steps:?}");
    assert!(!bench.run_dir().join("ncu/process-1/raw.csv").exists());
    assert!(finding(&findings, "ncu_cut").is_empty(), "{findings:?}");
}

#[tokio::test]
async fn a_dropped_launch_is_not_covered_and_is_named_and_a_repeated_one_counts_once() {
    let covered = |findings: &[Finding]| {
        let found = finding(findings, "counters_cover_little");
        found.iter().map(|it| it.message.clone()).collect::<Vec<_>>()
    };
    let (_, whole) = Bench::new(NCU).deep(LIMIT).await;
    let repeated = NCU.replace(
        "cat \"$HERE/raw.csv\"",
        "cat \"$HERE/raw.csv\"; sed -n '9p;9p' \"$HERE/raw.csv\"",
    );
    let (steps, twice) = Bench::new(&repeated).deep(LIMIT).await;
    assert_eq!(results(&steps)[1], (Step::Ncu, StepState::Succeeded, Some(0)), "{steps:?}");
    assert_eq!(covered(&twice), covered(&whole));
    let dropped = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT";
    let without =
        NCU.replace("cat \"$HERE/raw.csv\"", &format!("grep -v '{dropped}' \"$HERE/raw.csv\""));
    let (steps, less) = Bench::new(&without).deep(LIMIT).await;
    assert_eq!(results(&steps)[1], (Step::Ncu, StepState::Succeeded, Some(0)), "{steps:?}");
    assert_ne!(covered(&less), covered(&whole));
    let missing = finding(&less, "ncu_kernels_missing")[0].evidence["missing"].as_str();
    assert!(missing.contains(dropped), "{missing}");
}

#[tokio::test]
async fn decimal_commas_are_read_as_the_same_values_and_an_undecided_page_is_refused() {
    let point = Bench::new(NCU);
    point.deep(LIMIT).await;
    let bench = Bench::new(NCU);
    let page = fs::read_to_string(bench.dir.path().join("raw.csv")).unwrap();
    let swapped: Vec<String> = page.split('"').map(with_decimal_comma).collect();
    fs::write(bench.dir.path().join("raw.csv"), swapped.join("\"")).unwrap();
    let (steps, _) = bench.deep(LIMIT).await;
    assert_eq!(results(&steps)[1], (Step::Ncu, StepState::Succeeded, Some(0)), "{steps:?}");
    let read = |bench: &Bench| {
        llmprof_analyze::parse::ncu::read(&bench.run_dir(), "process-1").unwrap().unwrap().launches
    };
    assert_eq!(read(&bench), read(&point));

    let mixed =
        NCU.replace("cat \"$HERE/raw.csv\"", "sed '9s/\\.\\([0-9]\\)/,\\1/g' \"$HERE/raw.csv\"");
    let (state, _, message) = ncu_step(&mixed, LIMIT).await;
    assert_eq!(state, StepState::Failed);
    assert!(message.contains("ncu's page cannot be read"), "{message}");
}

/// A number of a page with a decimal comma; other text as it is.
fn with_decimal_comma(cell: &str) -> String {
    let is_number = cell.contains(|c: char| c.is_ascii_digit())
        && cell.len() > 1
        && cell.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ',' | '-'));
    if is_number {
        cell.replace(',', "#").replace('.', ",").replace('#', ".")
    } else {
        cell.to_owned()
    }
}

#[tokio::test]
async fn a_deep_run_leaves_counters_of_both_stages_and_gemm_logs() {
    let bench = Bench::new(NCU);
    let (steps, findings) = bench.deep(LIMIT).await;
    let succeeded = |step| (step, StepState::Succeeded, Some(0));
    assert_eq!(
        results(&steps),
        [succeeded(Step::Nsys), succeeded(Step::Ncu), succeeded(Step::GemmLog)],
        "{steps:?}"
    );
    assert!(
        ids(&findings)
            .iter()
            .all(|id| matches!(*id, "ncu_kernels_missing" | "counters_cover_little")),
        "{findings:?}"
    );
    for file in [
        "ncu/process-1/raw.csv",
        "ncu/choice.json",
        "gemm_log/prefill/cublas.log",
        "gemm_log/all/cublas.log",
    ] {
        assert!(bench.run_dir().join(file).is_file(), "{file}");
    }
    let command = fs::read_to_string(bench.run_dir().join("ncu/process-1/cmd.txt")).unwrap();
    assert!(
        command.contains("--nvtx-include LLM@prefill/ --nvtx-include LLM@decode_all/")
            && command.contains("--metrics dram__bytes_read.sum"),
        "{command}"
    );
}

#[tokio::test]
async fn an_ncu_that_exits_0_and_leaves_nothing_fails_its_step_alone() {
    let (state, code, message) = ncu_step_of(&bench_of_long_symbols("exit 0"), LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(
        message.starts_with("process-1: ncu exited with code 0 but left no run.ncu-rep"),
        "{message}"
    );
    assert!(message.contains("; process-2: ncu exited"), "{message}");
}

#[tokio::test]
async fn no_kernel_profiled_and_no_permission_have_different_messages() {
    let (state, code, message) =
        ncu_step("echo '==WARNING== No kernels were profiled.'", LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(message.contains("no selected kernel ran"), "{message}");
    let (state, code, message) =
        ncu_step("echo '==ERROR== ERR_NVGPUCTRPERM - no'; exit 1", LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(1)));
    assert!(message.contains("NVreg_RestrictProfilingToAdminUsers=0"), "{message}");
}

#[tokio::test]
async fn an_ncu_that_hangs_is_ended_and_the_next_step_runs() {
    let hang = NCU.replace("*) while", "*) exec sleep 1000; while");
    let bench = bench_of_long_symbols(&hang);
    let (state, code, message) = ncu_step_of(&bench, Duration::from_millis(900)).await;
    assert_eq!((state, code), (StepState::Failed, None));
    let ended = "ncu ran past its deadline and was ended";
    let each: Vec<String> = (1..=4).map(|it| format!("process-{it}: {ended}")).collect();
    assert_eq!(message, each.join("; "));
}

#[tokio::test]
async fn counters_that_are_not_numbers_fail_the_step() {
    let (state, code, message) = ncu_step(
        &NCU.replace("cat \"$HERE/raw.csv\"", "sed 's/\"3.488000\"/\"nan\"/g' \"$HERE/raw.csv\""),
        LIMIT,
    )
    .await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(
        message
            .contains("counters are not numbers; the first is reduce_kernel: gpu__time_duration."),
        "{message}"
    );
}

#[tokio::test]
async fn an_nvtx_filter_that_matched_nothing_is_a_named_failure() {
    let bench = bench_of_long_symbols(&NCU.replace(
        "*) while",
        &format!("*) cat {}; exit 0; while", failure("ncu-filter-matched-nothing.log")),
    ));
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(results(&steps)[1], (Step::Ncu, StepState::Failed, Some(0)));
    assert_eq!(ids(&findings), ["nothing_profiled"; 4], "one for each process");
}

#[tokio::test]
async fn counters_of_a_stage_with_other_tokens_are_set_aside() {
    let swap = r#"sed -i 's/7,8/9,8/' "${report%/*}/events.jsonl"; echo report > "$report""#;
    let other = NCU.replace(r#"echo report > "$report""#, swap);
    let (state, code, message) = ncu_step(&other, LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(message.contains("ncu/process-1: the pass generated other tokens"), "{message}");
}

#[tokio::test]
async fn a_log_without_gemms_fails_its_step() {
    let bench = Bench::new(NCU);
    fs::write(bench.dir.path().join("cublas.log"), "rubbish\n").unwrap();
    let (steps, _) = bench.deep(LIMIT).await;
    assert_eq!(results(&steps)[2], (Step::GemmLog, StepState::Failed, Some(0)));
    assert_eq!(steps[2].message.as_deref(), Some("the libraries' logs contain no complete GEMM"));
}

#[tokio::test]
async fn a_pass_with_other_tokens_than_the_unprofiled_pass_fails_its_step() {
    for made in ["7,9", "7,8,9,10"] {
        let bench = Bench::new(NCU);
        fs::write(bench.dir.path().join("events.jsonl"), events(made)).unwrap();
        let (steps, findings) = bench.deep(LIMIT).await;
        assert_eq!(results(&steps)[0], (Step::Nsys, StepState::Failed, Some(0)), "{made}");
        assert!(
            steps[0].message.as_ref().unwrap().contains("other tokens than the unprofiled pass"),
            "{steps:?}"
        );
        assert!(
            results(&steps)[2] == (Step::GemmLog, StepState::Failed, Some(0))
                && ids(&findings).contains(&"pass_not_proven")
        );
        assert!(bench.run_dir().join("gemm_log/all/cublas.rejected.log").is_file());
    }
}
