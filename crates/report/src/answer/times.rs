//! Times of stages, their steps and outliers, and their distance from the floor.

use llmprof_analyze::{
    ledger::{FloorOf, Ledger, LedgerRow, LedgerStage, LedgerUnit},
    stages::{BETWEEN_STEPS, DECODE, NO_STAGE, StageTiming, in_sentence, step_times::StepTimes},
};
use llmprof_core::trace::engine_steps::IDLE;

use super::{
    AnswerRecords,
    base::{has_between, per},
    cited::{Cited, Figure, Row},
    on_findings::why_untimed,
    outliers,
    stage_time::{self, StageTime, cut_decode, is_mean_stated, named, row_of_steps},
    step_floors,
};
use crate::{format::multiple, waits::Waits};

/// Words after a time that contains a wait named before.
pub const WITH_WAIT: &str = ", with this wait";
/// Words after a time that contains a wait that no sentence names.
pub const WITH_UNNAMED_WAIT: &str = ", with a wait whose reason is not recorded";

/// Sentences on each stage: in the order of the ledger, then the stages that it lacks.
pub fn sentences(records: &AnswerRecords) -> Vec<Cited> {
    let mut all = Vec::new();
    let is_known = |stage: &str, steps: &u64| *steps > 0 && stage == DECODE;
    for stage in &records.ledger.stages {
        if is_idle(&stage.stage) {
            continue;
        }
        let cells = row_of(stage);
        let steps = stage.steps.filter(|steps| is_known(&stage.stage, steps));
        if [NO_STAGE, BETWEEN_STEPS].contains(&stage.stage.as_str()) {
            all.extend(floor(records, stage, None));
            continue;
        }
        let time = StageTime {
            stage: &stage.stage,
            waits: Waits::of(records.ledger).has(&stage.stage),
            ms: cells.ns("measured_ns", stage.measured_ns),
            steps: steps.map(|it| cells.count("steps", it)),
            row: records.stages.iter().find(|row| row.stage == stage.stage),
        };
        match (stage.unit, stage.instances) {
            (LedgerUnit::Step, Some(steps)) => {
                let times = records.step_times.iter().find(|it| it.stage == stage.stage);
                let number = cells.count("instances", steps);
                // Steps of an engine have a sentence of their own.
                let has_batches = outliers::has_batches(records, &stage.stage);
                let decode = || cut_decode(records, times, time.ms.clone(), number);
                all.extend((!has_batches).then(decode));
            }
            _ => all.extend(stage_time::sentences(records, &time)),
        }
        all.extend(outliers::of_stage(records, &stage.stage));
        all.extend(floor(records, stage, time.steps.as_ref()));
    }
    for row in without_ledger(records) {
        if is_idle(&row.stage) {
            continue;
        }
        let steps = records.decode_steps.filter(|steps| is_known(&row.stage, steps));
        let time = StageTime {
            stage: &row.stage,
            waits: false,
            ms: Row::of("stages").with("stage", &row.stage).figure("ms.mean", row.ms.mean),
            steps: steps.map(|it| Row::of("aggregates").count("decode_steps", it)),
            row: Some(row),
        };
        all.extend(stage_time::sentences(records, &time));
        all.extend(outliers::of_stage(records, &row.stage));
    }
    let cut = cut_steps(records).filter(|it| !outliers::has_batches(records, &it.stage));
    all.extend(cut.map(|it| {
        let row = row_of_steps(it);
        let mean = row.figure("ms.mean", it.ms.mean);
        cut_decode(records, Some(it), mean, row.count("ms.n", it.ms.n.into()))
    }));
    let untimed = records.step_times.iter().filter(|it| !is_timed(records, &it.stage));
    all.extend(untimed.flat_map(|it| outliers::of_stage(records, &it.stage)));
    all.extend(records.stages.iter().filter(|row| is_idle(&row.stage)).filter_map(|row| {
        let has_batches = outliers::has_batches(records, &row.stage);
        let cells = Row::of("stages").with("stage", &row.stage);
        let n = cells.count("ms.n", row.ms.n.into()).quantity("idle step");
        let mean = cells.figure("ms.mean", row.ms.mean).short();
        (!has_batches).then(|| Cited::of("{} without work: {} ms on average.", [n, mean]))
    }));
    all
}

/// True if the ledger or a row has the time of a stage.
fn is_timed(records: &AnswerRecords, stage: &str) -> bool {
    records.ledger.stages.iter().any(|it| it.stage == stage)
        || records.stages.iter().any(|it| it.stage == stage)
}

/// The steps of a decode that is timed neither by the ledger nor by a row.
fn cut_steps<'a>(records: &'a AnswerRecords) -> Option<&'a StepTimes> {
    records.step_times.iter().find(|it| it.are_steps() && !is_timed(records, &it.stage))
}

/// True for the idle steps of an engine, which need no work.
pub fn is_idle(stage: &str) -> bool {
    stage == IDLE
}

pub fn row_of(stage: &LedgerStage) -> Row {
    Row::of("ledger_stages").with("stage", &stage.stage)
}

/// The missing data, each text once, with its stages unless all have it.
pub fn missing(ledger: &Ledger) -> Vec<String> {
    let is_named = |it: &&LedgerStage| it.stage != BETWEEN_STEPS && !is_idle(&it.stage);
    let mut texts: Vec<(&str, Vec<&str>)> = Vec::new();
    for stage in ledger.stages.iter().filter(is_named) {
        for text in &stage.missing {
            match texts.iter_mut().find(|it| it.0 == text) {
                Some(known) => known.1.push(&stage.stage),
                None => texts.push((text, vec![&stage.stage])),
            }
        }
    }
    let named = ledger.stages.iter().filter(is_named).count();
    let text = |(text, stages): (&str, Vec<&str>)| match stages.len() == named {
        true => text.to_owned(),
        false => {
            let stages: Vec<&str> = stages.into_iter().map(in_sentence).collect();
            format!("{}: {text}", stages.join(", "))
        }
    };
    texts.into_iter().map(text).collect()
}

/// The reason and remedy for stages whose floor is unknown, because no timeline of theirs is
/// complete.
pub fn unknown(records: &AnswerRecords) -> Option<String> {
    let stages = without_ledger(records).filter(|it| !is_idle(&it.stage));
    let cut = cut_steps(records).map(|it| it.stage.as_str());
    let stages: Vec<&str> = stages.map(|it| it.stage.as_str()).chain(cut).collect();
    let stages: Vec<&str> = stages.into_iter().map(in_sentence).collect();
    let stages = stages.join(" and ");
    let text = match (why_untimed(records.findings), records.only_traced) {
        _ if records.on_cpu => format!(
            "How fast {stages} could be is unknown on a CPU: the least possible time is known \
             for GPUs only. Run it on a host with a GPU, in mode light or deep."
        ),
        (Some(why), _) => format!("How fast {stages} could be is unknown. {why}"),
        (None, true) => format!(
            "How fast {stages} could be is unknown, for there is no complete timeline of a GPU: \
             read the findings on the capture."
        ),
        (None, false) => format!(
            "How fast {stages} could be is unknown, for there is no complete timeline of a GPU: \
             run it on a host with a GPU, in mode light or deep."
        ),
    };
    (!stages.is_empty()).then_some(text)
}

fn without_ledger<'a>(records: &'a AnswerRecords) -> impl Iterator<Item = &'a StageTiming> {
    let known = |stage: &str| records.ledger.stages.iter().any(|it| it.stage == stage);
    records.stages.iter().filter(move |it| !known(&it.stage))
}

/// Sentences on waits whose reason lies before the recording, and the time without them.
pub fn unrecorded_waits(ledger: &Ledger) -> Vec<Cited> {
    let wait = |stage: &LedgerStage| {
        let measured = row_of(stage).ns("measured_ns", stage.measured_ns);
        let wait = named_wait(ledger, &stage.stage)?;
        let share = wait.share_of(&measured)?;
        Some(Cited::of(
            "{} of {} is a wait before the first recorded work of a stream: the capture does not \
             record its reason. The rest takes {} ms.",
            [share.text(), Cited::name(in_sentence(&stage.stage)), measured.minus(&wait).short()],
        ))
    };
    ledger.stages.iter().filter_map(wait).collect()
}

/// The named wait of a stage, milliseconds.
pub fn named_wait(ledger: &Ledger, stage: &str) -> Option<Figure> {
    let row = Waits::of(ledger).of_stage(stage)?;
    Some(row_of_cause(row).ns("ns", row.ns))
}

pub fn row_of_cause(row: &LedgerRow) -> Row {
    Row::of("ledger").with("stage", &row.stage).with("cause", row.cause)
}

/// The floor, if it is of all work of the stage. Decode steps of an engine have a sentence on the
/// floor of their own requests and context.
fn floor(records: &AnswerRecords, stage: &LedgerStage, steps: Option<&Figure>) -> Option<Cited> {
    if stage.stage == DECODE && step_floors::sentence(records.step_batches).is_some() {
        return None;
    }
    let (floor, times) = (stage.floor_ns?, stage.times_floor?);
    let cells = row_of(stage);
    let floor = cells.ns("floor_ns", floor);
    // The floor is compared with the mean.
    let measured = cells.ns("measured_ns", stage.measured_ns);
    let mean = per(&measured, steps);
    let whole = match is_mean_stated(records, &stage.stage, &mean) {
        true => Cited::default(),
        false if has_between(records, &stage.stage, &measured, steps) => {
            Cited::of(" takes {} ms with the time after it, on average, and", [mean.short()])
        }
        false => Cited::of(" takes {} ms on average and", [mean.short()]),
    };
    let name = if steps.is_some() { "A decode step" } else { named(&stage.stage) };
    let floor = per(&floor, steps).short();
    let times = cells.figure("times_floor", times).shown(multiple);
    let parts = [Cited::name(name), whole, floor, times];
    Some(match stage.floor_of? {
        FloorOf::Model => {
            Cited::of("{}{} could take {} ms on this GPU: it takes {} times its floor.", parts)
        }
        FloorOf::Kernels => Cited::of(
            "{}{} could take {} ms on this GPU with the work that its kernels do: it takes {} \
             times that floor.",
            parts,
        ),
    })
}
