//! Times of stages, their steps and outliers, and their distance from the floor.

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    on_findings::why_untimed,
    outliers,
};
use llmprof_analyze::{
    ledger::{FloorOf, Ledger, LedgerCause, LedgerRow, LedgerStage, LedgerUnit},
    stages::{
        BETWEEN_STEPS, DECODE, NO_STAGE, PREFILL, StageTiming, in_sentence, step_times::StepTimes,
    },
};

use llmprof_core::trace::engine_steps::IDLE;

/// Min share of a stage, percent, of an unrecorded wait that a sentence names.
const NAMED_PCT: f64 = 1.0;
/// Words after a time that contains a wait named before.
pub const WITH_WAIT: &str = ", with this wait";

/// The time of a stage; decode has steps if their number is known.
struct StageTime<'a> {
    stage: &'a str,
    /// The time contains a wait that a sentence before has named.
    waits: bool,
    ms: Figure,
    steps: Option<Figure>,
    row: Option<&'a StageTiming>,
}

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
            waits: has_unrecorded_wait(records.ledger, &stage.stage),
            ms: cells.ns("measured_ns", stage.measured_ns),
            steps: steps.map(|it| cells.count("steps", it)),
            row: records.stages.iter().find(|row| row.stage == stage.stage),
        };
        match (stage.unit, stage.instances) {
            (LedgerUnit::Step, Some(steps)) => {
                all.push(cut_decode(time.ms.clone(), cells.count("instances", steps)))
            }
            _ => all.extend(of_stage(records, &time)),
        }
        all.extend(floor(records, stage, time.steps));
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
        all.extend(of_stage(records, &time));
    }
    all.extend(cut_steps(records).map(|it| {
        let row = row_of_steps(it);
        cut_decode(row.figure("ms.mean", it.ms.mean), row.count("ms.n", it.ms.n.into()))
    }));
    all.extend(records.stages.iter().filter(|row| is_idle(&row.stage)).filter_map(|row| {
        let has_batches = outliers::batches(records, &row.stage).next().is_some();
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

/// Decode step time of a recording that cuts every decode.
fn cut_decode(step: Figure, steps: Figure) -> Cited {
    Cited::of(
        "Decode takes {} ms per step (mean of {}; the recording has no whole decode).",
        [step.short(), steps.quantity("step")],
    )
}

/// True for the idle steps of an engine, which need no work.
pub fn is_idle(stage: &str) -> bool {
    stage == IDLE
}

pub fn row_of(stage: &LedgerStage) -> Row {
    Row::of("ledger_stages").with("stage", &stage.stage)
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

/// A stage at the start of a sentence.
fn named(stage: &str) -> &str {
    match stage {
        PREFILL => "Prefill",
        DECODE => "Decode",
        NO_STAGE => "The recording",
        other => other,
    }
}

fn of_stage(records: &AnswerRecords, time: &StageTime) -> Vec<Cited> {
    // The sentences on steps have their times.
    let has_batches = outliers::batches(records, time.stage).next().is_some();
    let steps = records.step_times.iter().find(|it| it.stage == time.stage);
    let per_step = match &time.steps {
        Some(steps) => time.ms.over(steps),
        None => Some(time.ms.clone()),
    };
    let Some(per_step) = per_step else { return vec![] };
    let typical = steps.filter(|it| it.typical_ms().is_some());
    let mut all = Vec::new();
    match typical {
        _ if has_batches => {}
        Some(steps) => all.push(median(steps, time)),
        None => all.push(mean(records, time, steps, &per_step)),
    }
    let steps = steps.filter(|_| !has_batches);
    let is_between = |it: &&StepTimes| it.between_pct(per_step.value()).is_some();
    let between = steps.filter(|_| time.steps.is_some()).filter(is_between);
    all.extend(between.and_then(|it| between_steps(it, &per_step, typical.is_some())));
    all.extend(steps.and_then(|it| outliers::sentence(records, it)));
    all
}

/// True if the mean of a stage is the time that the page states.
pub fn is_mean_stated(records: &AnswerRecords, stage: &str) -> bool {
    let has_batches = outliers::batches(records, stage).next().is_some();
    let steps = records.step_times.iter().find(|it| it.stage == stage);
    !has_batches && steps.is_none_or(|it| it.typical_ms().is_none())
}

pub fn row_of_steps(steps: &StepTimes) -> Row {
    Row::of("step_times").with("stage", &steps.stage)
}

/// The median of steps that a mean does not stand for.
fn median(steps: &StepTimes, time: &StageTime) -> Cited {
    let row = row_of_steps(steps);
    let (name, noun) = match steps.are_steps() {
        true => ("A decode step", "step"),
        false => (named(&steps.stage), "instance"),
    };
    let made = time.steps.as_ref().and_then(|it| made_per_step(it, time.row));
    let of = made.filter(|it| it.value() > 1.0).map(sequences).unwrap_or_default();
    Cited::of(
        "{}{} takes {} ms: {} of {}, which take {} to {} ms and {} ms on average.",
        [
            Cited::name(name),
            of,
            row.figure("p50_ms", steps.p50_ms).short(),
            Cited::words(steps.median_word()),
            row.count("ms.n", steps.ms.n.into()).quantity(noun),
            row.figure("ms.min", steps.ms.min).short(),
            row.figure("ms.max", steps.ms.max).short(),
            row.figure("ms.mean", steps.ms.mean).short(),
        ],
    )
}

/// The part of decode between its steps, with the time per step if no other sentence has it.
fn between_steps(steps: &StepTimes, per_step: &Figure, is_stated: bool) -> Option<Cited> {
    let step = row_of_steps(steps).figure("ms.mean", steps.ms.mean);
    let between = per_step.minus(&step).share_of(per_step)?.text();
    let stage = Cited::name(in_sentence(DECODE));
    Some(match is_stated {
        true => Cited::of(
            "{} of {} lies between its steps: decode takes {} ms per step.",
            [between, stage, per_step.clone().short()],
        ),
        false => Cited::of("{} of {} lies between its steps.", [between, stage]),
    })
}

fn mean(
    records: &AnswerRecords,
    time: &StageTime,
    steps: Option<&StepTimes>,
    per_step: &Figure,
) -> Cited {
    let per = time.steps.as_ref().map(|steps| match made_per_step(steps, time.row) {
        Some(made) if made.value() == 1.0 => Cited::words(" per token"),
        Some(made) => Cited::of(" per step{}", [sequences(made)]),
        None => Cited::words(" per step"),
    });
    let spread = time.row.filter(|row| row.ms.n > 1).and_then(|row| {
        // A capture may have other instances of each stage.
        let are_repeats = time.steps.is_some() || !records.only_traced;
        let noun = if are_repeats { "repeat" } else { "instance" };
        let cells = Row::of("stages").with("stage", &row.stage);
        let each = |column: &'static str, ms: f64| {
            let ms = cells.figure(column, ms);
            Some(time.steps.as_ref().map_or(Some(ms.clone()), |steps| ms.over(steps))?.short())
        };
        let (least, most) = (each("ms.min", row.ms.min)?, each("ms.max", row.ms.max)?);
        let n = cells.count("ms.n", row.ms.n.into()).quantity(noun);
        Some(match least.as_str() == most.as_str() {
            true => Cited::of(" (mean of {})", [n]),
            false => Cited::of(" (mean of {}, {} to {} ms)", [n, least, most]),
        })
    });
    let of_two = steps.filter(|it| it.are_steps()).and_then(|it| {
        let (row, (least, most)) = (row_of_steps(it), it.apart_ms()?);
        let each = [row.figure("ms.min", least).short(), row.figure("ms.max", most).short()];
        Some(Cited::of(" (steps of {} and {} ms)", each))
    });
    Cited::of(
        "{} takes {} ms{}{}{}{}.",
        [
            Cited::name(named(time.stage)),
            per_step.clone().short(),
            per.unwrap_or_default(),
            Cited::words(if time.waits { WITH_WAIT } else { "" }),
            of_two.or(spread).unwrap_or_default(),
            time.row.filter(|_| time.steps.is_some()).and_then(rate).unwrap_or_default(),
        ],
    )
}

fn rate(row: &StageTiming) -> Option<Cited> {
    let row_of_stage = Row::of("stages").with("stage", &row.stage);
    let rate = row_of_stage.figure("tokens_per_s", row.tokens_per_s?);
    Some(Cited::of(", {} tokens per second", [rate.short()]))
}

/// Tokens of a decode step, one of each sequence: a whole number; `None` if unknown.
fn made_per_step(steps: &Figure, row: Option<&StageTiming>) -> Option<Figure> {
    let row = row?;
    let tokens = Row::of("stages").with("stage", &row.stage).count("tokens", row.tokens?);
    tokens.over(steps).filter(|it| it.value() >= 1.0 && it.value().fract() == 0.0)
}

fn sequences(number: Figure) -> Cited {
    Cited::of(" of {}", [number.quantity("sequence")])
}

/// True for a stage with a wait that a sentence names.
pub fn has_unrecorded_wait(ledger: &Ledger, stage: &str) -> bool {
    let row = ledger.of_stage(stage).find(|row| row.cause == LedgerCause::UnrecordedWait);
    row.and_then(|row| row.share_pct).is_some_and(|pct| pct >= NAMED_PCT)
}

/// Sentences on waits whose reason lies before the recording, and the time without them.
pub fn unrecorded_waits(ledger: &Ledger) -> Vec<Cited> {
    let wait = |stage: &LedgerStage| {
        let measured = row_of(stage).ns("measured_ns", stage.measured_ns);
        let wait = named_wait(ledger, stage, &measured)?;
        let share = wait.share_of(&measured)?;
        Some(Cited::of(
            "{} of {} is a wait before the first recorded work of a stream: the capture does not \
             record its reason. The rest takes {} ms.",
            [share.text(), Cited::name(in_sentence(&stage.stage)), measured.minus(&wait).short()],
        ))
    };
    ledger.stages.iter().filter_map(wait).collect()
}

/// The wait of a stage whose reason lies before the recording, milliseconds.
fn unrecorded_wait(ledger: &Ledger, stage: &LedgerStage) -> Option<Figure> {
    let row = ledger.of_stage(&stage.stage).find(|row| row.cause == LedgerCause::UnrecordedWait)?;
    Some(row_of_cause(row).ns("ns", row.ns))
}

pub fn row_of_cause(row: &LedgerRow) -> Row {
    Row::of("ledger").with("stage", &row.stage).with("cause", row.cause)
}

/// The floor, if it is of all work of the stage.
fn floor(records: &AnswerRecords, stage: &LedgerStage, steps: Option<Figure>) -> Option<Cited> {
    let (floor, times) = (stage.floor_ns?, stage.times_floor?);
    let cells = row_of(stage);
    let floor = cells.ns("floor_ns", floor);
    // A median of steps is not the base of a floor of whole decodes.
    let is_apart = steps.is_none() && !is_mean_stated(records, &stage.stage);
    let whole = is_apart.then(|| {
        let measured = cells.ns("measured_ns", stage.measured_ns).short();
        Cited::of(" takes {} ms on average and", [measured])
    });
    let whole = whole.unwrap_or_default();
    let name = if steps.is_some() { "A decode step" } else { named(&stage.stage) };
    let floor = steps.map_or(Some(floor.clone()), |steps| floor.over(&steps))?.short();
    let parts = [Cited::name(name), whole, floor, cells.figure("times_floor", times).decimals(1)];
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

/// The wait of a stage whose reason lies before the recording, if a sentence names it. The time of
/// the stage is `measured`.
pub fn named_wait(ledger: &Ledger, stage: &LedgerStage, measured: &Figure) -> Option<Figure> {
    let wait = unrecorded_wait(ledger, stage)?;
    let is_named = wait.share_of(measured).is_some_and(|it| it.pct() >= NAMED_PCT);
    is_named.then_some(wait)
}
