//! The export of a run is parsed once if the analysis follows in the same process.

use std::fs;

use llmprof_core::{
    domain::{
        device::Device, input_manifest::InputManifest, mode::Mode, profiling::Profiling, runner,
        state::StepState,
    },
    layout,
};
use llmprof_report::pipeline;
use tokio_util::sync::CancellationToken;

use crate::job::{
    RunningJob,
    folder::yaml,
    job_spec::JobSpec,
    tests::{Bench, NCU, events, request},
    timeline::{TimelineStep, TimelineTarget},
};

/// A run on `bench` after its nsys step.
async fn traced<'a>(
    bench: &'a Bench,
    spec: &'a JobSpec,
    (dir, device, stop): &'a (std::path::PathBuf, Device, CancellationToken),
    keeps_timeline: bool,
) -> RunningJob<'a> {
    fs::create_dir(dir).unwrap();
    let mut job = RunningJob::start(spec, dir, device, &bench.host, stop).await.unwrap();
    job.keeps_timeline = keeps_timeline;
    fs::create_dir_all(dir.join(layout::BASELINE)).unwrap();
    for (name, text) in [
        ("baseline/events.jsonl", events("7,8,9")),
        (layout::RUNNER, yaml(&request()).unwrap()),
        (layout::INPUTS, yaml(&InputManifest::default()).unwrap()),
    ] {
        fs::write(dir.join(name), text).unwrap();
    }
    assert!(dir.join(layout::BASELINE).join(runner::EVENTS).exists());
    let settings = &Profiling::bundled(&Mode::DEEP).unwrap();
    let target = TimelineTarget::Runner(&request());
    job.run_step(TimelineStep { target, settings }).await.unwrap().unwrap();
    job
}

fn place(bench: &Bench) -> (std::path::PathBuf, Device, CancellationToken) {
    (bench.run_dir(), Device::unknown("cuda:0"), CancellationToken::new())
}

#[tokio::test]
async fn an_analysis_in_the_same_process_does_not_parse_the_export_again() {
    for (keeps_timeline, state) in [(true, StepState::Succeeded), (false, StepState::Failed)] {
        let bench = Bench::new(NCU);
        let (spec, place) = (bench.spec(), place(&bench));
        let mut job = traced(&bench, &spec, &place, keeps_timeline).await;
        fs::write(place.0.join(layout::NSYS_EXPORT), "overwritten after the nsys step").unwrap();
        let analyzed = job.analyze().await;
        assert_eq!(analyzed.is_ok(), keeps_timeline, "{analyzed:?}");
        assert_eq!(job.journal.records()[1].state, state);
        assert!(job.timeline.is_none(), "the analysis owns the only copy");
    }
}

#[tokio::test]
async fn a_timeline_that_was_parsed_before_gives_the_same_report() {
    let bench = Bench::new(NCU);
    let (spec, place) = (bench.spec(), place(&bench));
    let mut job = traced(&bench, &spec, &place, true).await;
    let timeline = job.timeline.take();
    assert!(timeline.is_some());
    let report = |timeline| {
        pipeline::analyze(&place.0, timeline, &bench.host.devices).unwrap().render(spec.id)
    };
    assert_eq!(report(timeline), report(None));
}
