//! The nsys step of a deep run, and timelines that fail its checks.

use std::fs;

use llmprof_analyze::parse;
use llmprof_core::{
    domain::state::{Step, StepState},
    layout,
};

use crate::job::tests::{Bench, LIMIT, NCU, NSYS, events, failure, ids, results};

#[tokio::test]
async fn a_timeline_that_lost_its_kernels_fails_and_selects_no_kernels() {
    let bench = Bench::new(NCU);
    let export = rusqlite::Connection::open(bench.dir.path().join("run.sqlite")).unwrap();
    export.execute_batch("delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid % 4 <> 0").unwrap();
    drop(export);
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(
        results(&steps)[..2],
        [(Step::Nsys, StepState::Failed, Some(0)), (Step::Ncu, StepState::Skipped, None)]
    );
    assert_eq!(ids(&findings), ["incomplete_capture"]);
    assert!(
        steps[0].message.as_ref().unwrap().contains("launched kernels are recorded (25.0 %)"),
        "{steps:?}"
    );
}

#[tokio::test]
async fn an_export_with_errors_and_three_kernels_fails_and_quotes_the_tool() {
    let mut bench = Bench::new(NCU);
    let nsys = NSYS
        .replace("profile) ", &format!("profile) cat {}; ", failure("nsys-import-nonfatal.log")));
    bench.replace("nsys", &nsys);
    let export = rusqlite::Connection::open(bench.dir.path().join("run.sqlite")).unwrap();
    let kernels = "delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid not in \
                   (select rowid from CUPTI_ACTIVITY_KIND_KERNEL limit 3)";
    export.execute_batch(kernels).unwrap();
    drop(export);
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(results(&steps)[0], (Step::Nsys, StepState::Failed, Some(0)));
    let lost = findings.iter().find(|it| it.id == "incomplete_capture").unwrap();
    assert_eq!(lost.evidence["kernels recorded"], "3");
    assert!(
        lost.evidence["nsys"].contains("Importation succeeded with non-fatal errors."),
        "{lost:?}"
    );
    let kept = bench.run_dir();
    assert!(
        kept.join("nsys/run.rejected.sqlite").is_file() && !kept.join("nsys/run.sqlite").exists(),
        "no report is made from it"
    );
    let covered: serde_json::Value =
        serde_json::from_slice(&fs::read(kept.join(layout::NSYS_COVERAGE)).unwrap()).unwrap();
    assert!(
        covered["pct"].as_f64().unwrap() < 1.0 && covered["coverage"]["recorded"] == 3,
        "{covered}"
    );
}

#[tokio::test]
async fn an_export_with_errors_and_all_kernels_counts() {
    let mut bench = Bench::new(NCU);
    let nsys = NSYS
        .replace("profile) ", &format!("profile) cat {}; ", failure("nsys-import-nonfatal.log")));
    bench.replace("nsys", &nsys);
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(results(&steps)[0], (Step::Nsys, StepState::Succeeded, Some(0)));
    let found = findings.iter().find(|it| it.id == "nsys_import_errors").unwrap();
    assert!(found.message.contains("launched kernels are recorded"), "{found:?}");
    assert!(found.evidence["nsys"].contains("non-fatal errors"), "{found:?}");
}

#[tokio::test]
async fn an_export_that_cannot_be_read_fails_its_step_and_leaves_the_rest_readable() {
    let bench = Bench::new(NCU);
    fs::write(bench.dir.path().join("run.sqlite"), "no database at all").unwrap();
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(
        results(&steps),
        [
            (Step::Nsys, StepState::Failed, Some(0)),
            (Step::Ncu, StepState::Skipped, None),
            (Step::GemmLog, StepState::Succeeded, Some(0))
        ]
    );
    assert_eq!(ids(&findings), ["nsys_export_unreadable"]);
    let trace = parse::read(&bench.run_dir()).unwrap();
    assert!(trace.timeline.is_none() && trace.gemms.is_some());
}

#[tokio::test]
async fn a_pass_whose_events_are_cut_fails_with_the_reason() {
    let whole = events("7,8");
    let without_end = whole.lines().take(2).map(|line| format!("{line}\n")).collect::<String>();
    for (text, id) in
        [(&whole[..whole.len() - 9], "events_cut"), (without_end.as_str(), "events_without_end")]
    {
        let bench = Bench::new(NCU);
        fs::write(bench.dir.path().join("events.jsonl"), text).unwrap();
        let (steps, findings) = bench.deep(LIMIT).await;
        assert_eq!(results(&steps)[0], (Step::Nsys, StepState::Failed, Some(0)), "{id}");
        let message = steps[0].message.as_deref().unwrap();
        assert!(message.starts_with("nsys: the pass is incomplete: "), "{message}");
        assert!(ids(&findings).contains(&id), "{findings:?}");
        assert!(!bench.run_dir().join("nsys/events.jsonl").exists(), "it is set aside");
    }
}

#[tokio::test]
async fn a_timeline_without_one_of_its_stages_fails() {
    let bench = Bench::new(NCU);
    let export = rusqlite::Connection::open(bench.dir.path().join("run.sqlite")).unwrap();
    let rename = "update StringIds set value = 'renamed' where value = 'decode_all';
                  update NVTX_EVENTS set text = 'renamed' where text = 'decode_all'";
    export.execute_batch(rename).unwrap();
    drop(export);
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(results(&steps)[0], (Step::Nsys, StepState::Failed, Some(0)));
    assert!(
        ids(&findings) == ["incomplete_capture"]
            && findings[0].message.contains("no range decode_all"),
        "{findings:?}"
    );
}

#[tokio::test]
async fn a_run_over_its_quota_loses_only_the_pass_that_exceeded_it() {
    let mut bench = Bench::new(NCU);
    let nsys = NSYS.replace("echo report >", "head -c 40000000 /dev/zero >");
    bench.replace("nsys", &nsys);
    bench.limits.run_bytes = 30_000_000;
    let (steps, findings) = bench.deep(LIMIT).await;
    assert_eq!(
        results(&steps),
        [
            (Step::Nsys, StepState::Failed, None),
            (Step::Ncu, StepState::Skipped, None),
            (Step::GemmLog, StepState::Succeeded, Some(0))
        ]
    );
    assert_eq!(ids(&findings), ["run_too_large"]);
    assert!(
        bench.run_dir().join("nsys/dropped.txt").is_file()
            && !bench.run_dir().join(layout::NSYS_REPORT).exists()
    );
}
