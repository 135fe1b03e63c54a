//! Counters and GEMM logs of a deep run.

use std::{fs, time::Duration};

use crate::{
    domain::state::{Step, StepState},
    job::tests::{Bench, LIMIT, NCU, events, failure, ids, results},
};

/// State, exit code and message of the ncu step with this script as ncu. The steps around it
/// succeed.
async fn ncu_step(script: &str, limit: Duration) -> (StepState, Option<i32>, String) {
    let bench = Bench::new(script);
    let (steps, _) = bench.deep(limit).await;
    assert_eq!(results(&steps)[0], (Step::Nsys, StepState::Succeeded, Some(0)), "{steps:?}");
    assert_eq!(results(&steps)[2], (Step::GemmLog, StepState::Succeeded, Some(0)), "{steps:?}");
    let ncu = steps.into_iter().nth(1).unwrap();
    (ncu.state, ncu.exit_code, ncu.message.unwrap_or_default())
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
        "ncu/prefill/raw.csv",
        "ncu/decode_all/choice.json",
        "gemm_log/prefill/cublas.log",
        "gemm_log/all/cublas.log",
    ] {
        assert!(bench.run_dir().join(file).is_file(), "{file}");
    }
    let command = fs::read_to_string(bench.run_dir().join("ncu/decode_all/cmd.txt")).unwrap();
    assert!(
        command.contains("--nvtx-include LLM@decode_all/")
            && command.contains("--metrics dram__bytes_read.sum"),
        "{command}"
    );
}

#[tokio::test]
async fn an_ncu_that_exits_0_and_leaves_nothing_fails_its_step_alone() {
    let (state, code, message) = ncu_step("exit 0", LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(
        message.starts_with("prefill: ncu exited with code 0 but left no run.ncu-rep"),
        "{message}"
    );
    assert!(message.contains("; decode_all: ncu exited"), "{message}");
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
    let (state, code, message) = ncu_step(&hang, Duration::from_millis(900)).await;
    assert_eq!((state, code), (StepState::Failed, None));
    assert_eq!(message, "prefill: ncu ran past its deadline and was ended");
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
    let bench = Bench::new(&NCU.replace(
        "*) while",
        &format!("*) cat {}; exit 0; while", failure("ncu-filter-matched-nothing.log")),
    ));
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(results(&steps)[1], (Step::Ncu, StepState::Failed, Some(0)));
    assert_eq!(ids(&findings), ["nothing_profiled"; 2], "one for each stage");
}

#[tokio::test]
async fn counters_of_a_stage_with_other_tokens_are_set_aside() {
    let swap = r#"sed -i 's/7,8/9,8/' "${report%/*}/events.jsonl"; echo report > "$report""#;
    let other = NCU.replace(r#"echo report > "$report""#, swap);
    let (state, code, message) = ncu_step(&other, LIMIT).await;
    assert_eq!((state, code), (StepState::Failed, Some(0)));
    assert!(message.contains("ncu/prefill: the pass generated other tokens"), "{message}");
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
