//! Times of a device on another clock than the host's: figures of real captures stay, or are
//! withheld with the reason.

use llmprof_analyze::{Analysis, analyze, parse, stages::NO_STAGE};
use llmprof_core::{
    domain::{
        finding::{Finding, Severity},
        subject::SubjectKind,
    },
    trace::Trace,
};

use crate::parse::sums::OpenCapture;

const CAPTURES: [&str; 4] =
    ["hf-llama-e2e", "jax-steps", "h200-whole-graphs", "engine-batching-graphs"];
const TABLES: [&str; 4] = [
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
];
/// Max error of a time of one stage instance, milliseconds: the tolerance of clocks that count as
/// equal, at both ends.
const ERROR_MS: f64 = 0.02;
/// Max error of a corrected drift over a whole recording, as a part of its length: 50 us a second.
const SLOPE_ERROR: f64 = 5e-5;

/// The analysis of a capture that is changed by plain SQL.
fn changed(name: &str, change: impl Fn(&[String]) -> String) -> Analysis {
    let capture = OpenCapture::open(name);
    let tables = {
        let mut query = capture.sql.prepare("select name from sqlite_master").unwrap();
        let names = query.query_map([], |row| row.get(0)).unwrap();
        names.map(Result::unwrap).collect::<Vec<String>>()
    };
    capture.sql.execute_batch(&change(&tables)).unwrap();
    let nsys = parse::timeline(&[capture.dir.path().join("run.sqlite")]).unwrap();
    let subject = SubjectKind::Import;
    analyze(&Trace { subject, timeline: Some(nsys), ..Trace::default() }, None, None)
}

/// The analysis with an expression added to all times of the device; `AT` is the time.
fn with_clock(name: &str, by: &str) -> Analysis {
    let update = |table: &&str| {
        let (start, end) = (by.replace("AT", "start"), by.replace("AT", "\"end\""));
        format!("update {table} set start = start + ({start}), \"end\" = \"end\" + ({end});")
    };
    changed(name, |tables| {
        let has = |table: &&&str| tables.iter().any(|it| it == **table);
        TABLES.iter().filter(has).map(update).collect()
    })
}

fn original(name: &str) -> Analysis {
    changed(name, |_| String::new())
}

/// Times that need the clock of the host and the clock of the device, with their max error.
fn mixed_times(analysis: &Analysis) -> Vec<(String, f64, Option<f64>)> {
    let gpus = analysis.stage_gpu.totals.iter().flat_map(|it| {
        let name = |figure: &str| format!("{figure} of {}", it.stage);
        let whole_ms = it.window_ms.filter(|_| it.stage == NO_STAGE).unwrap_or(0.0);
        let error_ms = ERROR_MS * it.instances as f64 + SLOPE_ERROR * whole_ms;
        [
            (name("window"), error_ms, it.window_ms),
            (name("busy time"), error_ms, it.busy_ms),
            (name("idle time"), error_ms, it.idle_ms),
        ]
    });
    gpus.collect()
}

fn on_clock(analysis: &Analysis) -> Option<&Finding> {
    analysis.findings.iter().find(|it| it.id == "device_clock_differs")
}

/// Kernel time of each stage, which is of one clock.
fn kernel_times(analysis: &Analysis) -> Vec<(String, Option<f64>)> {
    analysis.kernels.stages.iter().map(|it| (it.stage.clone(), it.kernel_ms)).collect()
}

/// Compares a capture with its original; `is_named` if a finding names the offset.
fn check(original: &Analysis, (name, by): (&str, &str), is_named: bool) {
    let shifted = with_clock(name, by);
    let what = format!("{name}, {by}");
    assert_eq!(on_clock(original), None, "{what}");
    let found = on_clock(&shifted);
    assert_eq!(found.is_some(), is_named, "{what}: {found:?}");
    assert_eq!(kernel_times(&shifted).len(), kernel_times(original).len(), "{what}");
    for ((stage, ms), (_, was)) in kernel_times(&shifted).iter().zip(kernel_times(original)) {
        let error = ms.zip(was).map_or(0.0, |(ms, was)| (ms - was).abs() / was.max(1e-9));
        assert!(error < 2e-3, "{what}: kernel time of {stage}, {ms:?} instead of {was:?}");
    }
    let is_withheld = found.is_some_and(|it| it.severity == Severity::Critical);
    for ((figure, error_ms, ms), (_, _, was)) in
        mixed_times(&shifted).into_iter().zip(mixed_times(original))
    {
        let Some((ms, was)) = ms.zip(was) else {
            assert!(is_withheld || was.is_none(), "{what}: no {figure}, without a reason");
            continue;
        };
        assert!((ms - was).abs() <= error_ms, "{what}: {figure}, {ms} instead of {was}");
    }
}

#[test]
fn an_offset_or_drift_of_the_devices_clock_is_corrected_or_withheld_or_tolerated() {
    // 2 ms early or late, 50 us late, 3 us late, and 2 ms more in each second.
    let changes = [
        ("2000000", true),
        ("-2000000", true),
        ("50000", true),
        ("3000", false),
        ("(AT - 1000000000) / 500", true),
    ];
    for name in CAPTURES {
        let original = original(name);
        changes.iter().for_each(|(by, is_named)| check(&original, (name, by), *is_named));
    }
}

#[test]
fn kernels_without_a_recorded_time_are_withheld_and_named() {
    let found = changed("hf-llama-e2e", |_| {
        "update CUPTI_ACTIVITY_KIND_KERNEL set start = 0, \"end\" = 0 where rowid % 4 = 0".into()
    });
    assert!(found.stage_gpu.totals.is_empty() && found.step.is_none());
    assert!(found.kernels.stages.iter().all(|it| it.kernel_ms.is_none()));
    let ids = |id: &str| found.findings.iter().filter(|it| it.id == id).count();
    assert_eq!((ids("work_untimed"), ids("kernels_lost")), (1, 0));
    let named = found.findings.iter().find(|it| it.id == "work_untimed").unwrap();
    assert_eq!(named.severity, Severity::Critical);
    assert!(named.message.contains(" (25.0 %) have no valid time"), "{named:?}");
}

#[test]
fn an_overlong_kernel_leaves_the_other_figures() {
    let found = changed("hf-llama-e2e", |_| {
        "update CUPTI_ACTIVITY_KIND_KERNEL set \"end\" = \"end\" + 60000000000
         where rowid = (select max(rowid) / 2 from CUPTI_ACTIVITY_KIND_KERNEL)"
            .into()
    });
    let named = found.findings.iter().find(|it| it.id == "work_untimed").unwrap();
    let starts = "1 of 18,262 kernels (0.0 %) has no valid time";
    assert!(named.message.starts_with(starts), "{named:?}");
    let original = original("hf-llama-e2e");
    for ((figure, _, ms), (_, _, was)) in
        mixed_times(&found).into_iter().zip(mixed_times(&original))
    {
        assert!((ms.unwrap() - was.unwrap()).abs() < 0.1, "{figure}: {ms:?} instead of {was:?}");
    }
}
