//! The real runner under the real nsys. Without nsys these tests are skipped with a message, unless
//! LLMPROF_REQUIRE_NSYS=1.

use std::{collections::BTreeMap, path::Path, time::Duration};

use llmprof_analyze::parse;
use llmprof_core::{
    domain::{
        dtype::Dtype, ids::RunId, mode::Mode, model::ModelSpec, profiling::Profiling,
        runner::RunnerRequest,
    },
    layout,
    trace::event::{Event, OPERATOR_DOMAIN, STAGE_DOMAIN},
};
use llmprof_service::collect::{Collector, ExitReason, NsysPass, ProcessLimits};
use tokio_util::sync::CancellationToken;

fn collector() -> Option<Collector> {
    let collector =
        Collector::find(Some(Path::new(env!("CARGO_BIN_EXE_model-runner"))), None, None);
    if collector.nsys.is_some() {
        return Some(collector);
    }
    let required = std::env::var_os("LLMPROF_REQUIRE_NSYS").is_some_and(|value| value == "1");
    assert!(!required, "nsys is required here and not installed: run scripts/install-nsight.sh");
    eprintln!("skipped: nsys is not installed (scripts/install-nsight.sh installs it)");
    None
}

fn settings(mode: Mode) -> Profiling {
    Profiling::bundled(&mode).unwrap()
}

fn request() -> RunnerRequest {
    let model: ModelSpec =
        toml::from_str(include_str!("../../../conf/models/deepseek-ocr-tiny.toml")).unwrap();
    RunnerRequest {
        model,
        weights: None,
        seed: 7,
        prompt: "Where does the time go?".into(),
        images: vec![],
        further_samples: vec![],
        batch: 1,
        dtype: Dtype::F32,
        device: "cpu".into(),
        gpu: None,
        warmup: 1,
        repeats: 2,
        max_new_tokens: 4,
        cache_tokens: None,
        decode_graph: false,
        steady_ms: 0,
        ceilings: false,
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

/// Output of the last repeat.
fn output(events: &[Event]) -> Option<(&[u32], &str)> {
    events.iter().rev().find_map(|event| match event {
        Event::Output(output) => Some((output.tokens.as_slice(), output.logits_sha256.as_str())),
        _ => None,
    })
}

fn counts<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    names.fold(BTreeMap::new(), |mut counts, name| {
        *counts.entry(name).or_default() += 1;
        counts
    })
}

/// Every text of an export, whole: an environment holds zeros, at which a text would end. The
/// file's bytes would not do: a long text lies in pieces on several pages.
fn texts(export: &Path) -> String {
    let export = rusqlite::Connection::open(export).unwrap();
    let column = |sql: &str| -> Vec<String> {
        let mut rows = export.prepare(sql).unwrap();
        let texts = rows.query_map([], |row| {
            let value = row.get_ref(0)?;
            Ok(String::from_utf8_lossy(value.as_bytes()?).into_owned())
        });
        texts.unwrap().map(|text| text.unwrap()).collect()
    };
    let columns = r#"select format('select cast("%w" as blob) from "%w" where "%w" is not null',
        c.name, t.name, c.name)
        from sqlite_master t, pragma_table_info(t.name) c where t.type = 'table'"#;
    column(columns).iter().flat_map(|sql| column(sql)).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_timeline_shows_the_same_ranges_and_results_as_the_runners_own_events() {
    let Some(collector) = collector() else { return };
    let dir = tempfile::tempdir().unwrap();
    let limits =
        ProcessLimits::new(RunId::now(), Duration::from_secs(300), CancellationToken::new());
    collector.baseline(dir.path(), &request(), &settings(Mode::DEEP).nvml, &limits).await.unwrap();
    let pass = collector
        .nsys(dir.path(), &request(), &NsysPass::timeline(&settings(Mode::DEEP).nsys), &limits)
        .await
        .unwrap();

    let trace = parse::read(dir.path()).unwrap();
    assert_eq!(trace.findings, []);
    assert!(output(&trace.baseline).is_some());
    assert_eq!(
        output(&trace.traced),
        output(&trace.baseline),
        "watched, the runner computes the same"
    );

    let nsys = trace.timeline.unwrap();
    let recorded = |domain| {
        counts(nsys.ranges.iter().filter(move |r| r.domain == domain).map(|r| r.name.as_str()))
    };
    let stages = counts(trace.traced.iter().filter_map(|event| match event {
        Event::Range(range) => Some(range.name.as_str()),
        _ => None,
    }));
    let operators = counts(trace.traced.iter().filter_map(|event| match event {
        Event::Op(op) => Some(op.path.as_str()),
        _ => None,
    }));
    assert_eq!(
        (stages["prefill"], stages["decode_step"]),
        (2, 8),
        "one warm-up and one repeat of four tokens"
    );
    assert_eq!(recorded(STAGE_DOMAIN), stages);
    assert_eq!(recorded(OPERATOR_DOMAIN), operators);
    assert!(nsys.ranges.iter().all(|range| range.push_pop && range.end_ns.is_some()));
    assert!(nsys.tool_version.is_some() && !nsys.os_calls.is_empty() && nsys.kernels.is_empty());

    // Cargo's own variables stand for what a service would rather keep to itself; this process has
    // them, and nsys looks around.
    let export = texts(&dir.path().join(layout::NSYS_EXPORT));
    let holds = |text: &str| export.contains(text);
    assert!(
        std::env::var_os("CARGO_MANIFEST_DIR").is_some() && holds("LLMPROF_RUN_ID"),
        "the export holds environments"
    );
    let exposed = pass.findings.iter().any(|finding| finding.id == "nsys_sees_environments");
    assert_eq!(
        holds("CARGO_MANIFEST_DIR"),
        exposed,
        "but none that was not passed on, or it is said"
    );
    assert_eq!(llmprof_service::collect::end_orphans(limits.run), 0, "nsys left nothing running");
}

#[tokio::test]
async fn of_a_run_that_is_recorded_in_part_all_is_computed() {
    let Some(found) = collector() else { return };
    for isolate in [true, false] {
        let collector = Collector { isolate, ..found.clone() };
        // On a busy host the window may end before the first step: then both become longer.
        let mut recorded = 0;
        for seconds in [1, 4, 16] {
            let dir = tempfile::tempdir().unwrap();
            let limits = ProcessLimits::new(
                RunId::now(),
                Duration::from_secs(300),
                CancellationToken::new(),
            );
            let repeats = 16 * seconds;
            let request = RunnerRequest { max_new_tokens: 64, repeats, ..request() };
            let mut nsys = settings(Mode::LIGHT).nsys;
            (nsys.delay_s, nsys.duration_s) = (1, seconds);
            (nsys.repeats, nsys.max_new_tokens) = (repeats, request.max_new_tokens);
            let pass = NsysPass::timeline(&nsys);
            collector.nsys(dir.path(), &request, &pass, &limits).await.unwrap();
            let trace = parse::read(dir.path()).unwrap();
            let last = trace.traced.last();
            assert!(matches!(last, Some(Event::End(_))), "{last:?}");
            assert_eq!(
                llmprof_service::collect::end_orphans(limits.run),
                0,
                "nothing is left running"
            );
            let steps = counts(trace.traced.iter().filter_map(|event| match event {
                Event::Range(range) => Some(range.name.as_str()),
                _ => None,
            }));
            let ranges = trace.timeline.unwrap().ranges;
            recorded = ranges.iter().filter(|it| it.name == "decode_step").count();
            assert!(recorded < steps["decode_step"], "{recorded} of {steps:?}");
            if recorded > 0 {
                break;
            }
        }
        assert!(recorded > 0, "no step in any window");
    }
}

#[tokio::test]
async fn a_runner_that_refuses_its_input_fails_the_timeline_with_its_own_words() {
    let Some(collector) = collector() else { return };
    let dir = tempfile::tempdir().unwrap();
    let limits =
        ProcessLimits::new(RunId::now(), Duration::from_secs(300), CancellationToken::new());
    let request = RunnerRequest { device: "cuda:0".into(), ..request() };
    let error = collector
        .nsys(dir.path(), &request, &NsysPass::timeline(&settings(Mode::LIGHT).nsys), &limits)
        .await
        .unwrap_err();
    assert_eq!(error.ended().and_then(|ended| ended.exit_code()), Some(2), "{error}");
    assert!(
        error.last_words().iter().any(|line| line.contains("cuda")),
        "{:?}",
        error.last_words()
    );
}

#[tokio::test]
async fn a_stopped_timeline_leaves_nothing_running() {
    let Some(collector) = collector() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut limits =
        ProcessLimits::new(RunId::now(), Duration::from_secs(300), CancellationToken::new());
    let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
    limits.lines = Some(to);
    let request = RunnerRequest { max_new_tokens: 1_000, ..request() };
    let settings = settings(Mode::DEEP).nsys;
    let pass = NsysPass::timeline(&settings);
    let (outcome, ()) = tokio::join!(collector.nsys(dir.path(), &request, &pass, &limits), async {
        from.recv().await; // the runner speaks, so nsys watches it
        limits.stop.cancel();
    });
    assert_eq!(outcome.unwrap_err().ended(), Some(ExitReason::Stopped));
    assert_eq!(llmprof_service::collect::process::orphans::marked(limits.run), []);
}
