//! Sentences on the time of a stage: of a run the figure over its repeats; of a capture the median
//! of three or more steps or instances, and the mean of fewer.

use llmprof_analyze::{
    stages::{
        DECODE, NO_STAGE, PREFILL, StageTiming, in_sentence,
        step_times::{StepTimes, has_one_rate},
    },
    step_batches::{StepBatch, common_batch},
};

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    outliers,
    repeats::{self, RepeatsTime},
    steps::row_of as row_of_batch,
    times::WITH_WAIT,
};
use crate::headline::times::{MeanOf, tokens_of_step};

/// The time of a stage; decode has steps if their number is known.
pub struct StageTime<'a> {
    pub stage: &'a str,
    /// The time contains a wait that a sentence before has named.
    pub waits: bool,
    pub ms: Figure,
    pub steps: Option<Figure>,
    pub row: Option<&'a StageTiming>,
}

/// A stage at the start of a sentence.
pub fn named(stage: &str) -> &str {
    match stage {
        PREFILL => "Prefill",
        DECODE => "Decode",
        NO_STAGE => "The recording",
        other => other,
    }
}

/// Sentences on the time of a stage and the time between its steps.
pub fn sentences(records: &AnswerRecords, time: &StageTime) -> Vec<Cited> {
    // The sentences on steps have their times.
    let has_batches = outliers::has_batches(records, time.stage);
    let steps = records.step_times.iter().find(|it| it.stage == time.stage);
    let per_step = match &time.steps {
        Some(steps) => time.ms.over(steps),
        None => Some(time.ms.clone()),
    };
    let Some(per_step) = per_step else { return vec![] };
    let over_repeats = repeats::sentence(records, time, steps, &per_step);
    let stated = steps.filter(|it| over_repeats.is_none() && has_stated_median(records, it));
    let mut all = Vec::new();
    match (over_repeats, stated) {
        _ if has_batches => {}
        (Some(sentence), _) => all.push(sentence),
        (None, Some(steps)) => all.push(median(records, time, steps, &per_step)),
        (None, None) => all.push(mean(records, time, steps, &per_step)),
    }
    let steps = steps.filter(|_| !has_batches);
    let is_between = |it: &&StepTimes| it.between_pct(per_step.value()).is_some();
    let between = steps.filter(|_| time.steps.is_some()).filter(is_between);
    all.extend(between.and_then(|it| match steps_beyond(it, time) {
        beyond if beyond >= 0.5 => stated.map(|_| apart_from_timed(&per_step)),
        beyond if beyond > -0.5 => between_steps(it, &per_step, stated.is_some()),
        _ => None,
    }));
    all
}

/// True if the page states the median of these steps or instances. Several in one repeat, as those
/// of a module, are not the time of their stage, and whole decodes are not the time of a step.
fn has_stated_median(records: &AnswerRecords, steps: &StepTimes) -> bool {
    let is_per_step = steps.stage == DECODE && records.decode_steps.is_some_and(|it| it > 0);
    if is_per_step && !steps.are_steps() {
        return false;
    }
    let is_stage = || {
        let row = records.stages.iter().find(|it| it.stage == steps.stage);
        row.is_none_or(|row| steps.are_stage(Some(row), row.ms.mean))
    };
    steps.median_ms().is_some() && (steps.are_steps() || is_stage())
}

/// True if the page states this mean of a stage, or another figure that reads the same.
pub fn is_mean_stated(records: &AnswerRecords, stage: &str, mean: &Figure) -> bool {
    let mean = mean.clone().short();
    let reads = |stated: Figure| stated.short() == mean.as_str();
    let batches: Vec<&StepBatch> = outliers::batches(records, stage).collect();
    if !batches.is_empty() {
        let common = common_batch(batches.iter().copied());
        return common.is_some_and(|it| match it.steps {
            // The page states both.
            2 => reads(row_of_batch(it).figure("ms.min", it.ms.min)),
            _ => reads(row_of_batch(it).figure("p50_ms", it.p50_ms)),
        });
    }
    if let Some(over_repeats) = RepeatsTime::of(records, stage) {
        return reads(over_repeats.ms());
    }
    let mut steps = records.step_times.iter().filter(|it| it.stage == stage);
    steps.all(|it| !has_stated_median(records, it) || reads(p50(it)))
}

pub fn row_of_steps(steps: &StepTimes) -> Row {
    Row::of("step_times").with("stage", &steps.stage)
}

/// The median of steps or instances.
pub fn p50(steps: &StepTimes) -> Figure {
    row_of_steps(steps).figure("p50_ms", steps.p50_ms)
}

/// A mean that does not read as the stated figure, for the text in brackets.
pub fn average(stated: Figure, mean: &Figure) -> Option<Cited> {
    let mean = mean.clone().short();
    let is_other = mean != stated.short().as_str();
    is_other.then(|| Cited::of("{} ms on average", [mean]))
}

/// The median of steps or instances, their number, range and mean.
fn median(
    records: &AnswerRecords,
    time: &StageTime,
    steps: &StepTimes,
    per_step: &Figure,
) -> Cited {
    let row = row_of_steps(steps);
    let per_token = per_token(records).filter(|_| time.stage == DECODE);
    let known = time.steps.as_ref().map(|_| per_step.value());
    let mean_of = MeanOf::of(steps, time.row, known, per_token.as_ref().map(Figure::value));
    let are_stage = mean_of != MeanOf::Steps || steps.are_stage(time.row, per_step.value());
    let sequences = || {
        let made = time.steps.as_ref().and_then(|it| made_per_step(it, time.row));
        made.filter(|it| it.value() > 1.0).map(sequences).unwrap_or_default()
    };
    let (name, per) = match are_stage {
        true => {
            let per = per_step_of(time).unwrap_or_else(|| match steps.are_steps() {
                true => Cited::words(" per step"),
                false => Cited::default(),
            });
            (Cited::name(named(time.stage)), per)
        }
        false => (Cited::of("A decode step{}", [sequences()]), Cited::default()),
    };
    let noun = if steps.are_steps() { "step" } else { repeat_noun(records, time) };
    let mean = match (mean_of, per_token) {
        (MeanOf::Decodes, Some(per_token)) => per_token,
        (MeanOf::Stage, _) => per_step.clone(),
        _ => row.figure("ms.mean", steps.ms.mean),
    };
    let is_rated = are_stage && time.steps.is_some() && !time.waits;
    let rate = time.row.filter(|_| is_rated).and_then(|row| rate(records, row));
    // The rate belongs to the mean. Both are of the timed decodes, and the median of all steps.
    let has_others = mean_of == MeanOf::Stage && steps_beyond(steps, time) >= 0.5;
    let whole = Cited::words(if has_others { "in whole decodes " } else { "" });
    // The mean contains the wait.
    let wait = Cited::words(if time.waits { WITH_WAIT } else { "" });
    let (within, after) = match (average(p50(steps), &mean), rate) {
        (Some(mean), rate) => {
            (Cited::of("; {}{}{}{}", [whole, mean, wait, after_comma(rate)]), Cited::default())
        }
        (None, Some(rate)) if has_others => (Cited::of("; {}{}", [whole, rate]), Cited::default()),
        (None, rate) => (Cited::default(), after_comma(rate)),
    };
    let parts = [name, p50(steps).short(), per, of_steps(steps, noun), within, after];
    Cited::of("{} takes {} ms{} ({}{}){}.", parts)
}

/// The number of the steps that the median is of, and the range of all.
fn of_steps(steps: &StepTimes, noun: &str) -> Cited {
    let row = row_of_steps(steps);
    let all = row.count("ms.n", steps.ms.n.into()).quantity(noun);
    let (least, most) = (row.figure("ms.min", steps.ms.min), row.figure("ms.max", steps.ms.max));
    let word = Cited::words(steps.median_word().trim_start_matches("the "));
    match steps.processes.first() {
        None => Cited::of("{} of {}{}", [word, all, range(least, most)]),
        Some(slowest) => {
            let of = row.count("processes.0.steps", slowest.steps).quantity(noun);
            let parts = [word, of, all, least.short(), most.short()];
            Cited::of("{} of {}; all {} take {} to {} ms", parts)
        }
    }
}

/// The time of all decodes over all their steps.
fn per_token(records: &AnswerRecords) -> Option<Figure> {
    let ms = records.per_token_ms?.mean;
    Some(Row::of("aggregates").figure("per_token_ms.mean", ms))
}

/// The step of a recording that cuts every decode. `mean` and `number` are of these steps.
pub fn cut_decode(
    records: &AnswerRecords,
    steps: Option<&StepTimes>,
    mean: Figure,
    number: Figure,
) -> Cited {
    let steps = steps.filter(|it| it.median_ms().is_some() && it.are_stage(None, mean.value()));
    let (ms, of) = match steps {
        Some(it) => {
            let per_token = per_token(records).filter(|per_token| {
                MeanOf::of(it, None, None, Some(per_token.value())) == MeanOf::Decodes
            });
            let mean = average(p50(it), &per_token.unwrap_or(mean));
            let mean = mean.map(|mean| Cited::of("; {}", [mean])).unwrap_or_default();
            let of = Cited::of("{}{}", [of_steps(it, "step"), mean]);
            (p50(it), of)
        }
        None => (mean, Cited::of("mean of {}", [number.quantity("step")])),
    };
    let parts = [ms.short(), of];
    Cited::of("Decode takes {} ms per step ({}; the recording has no whole decode).", parts)
}

/// The least and the longest time, unless they read the same.
pub fn range(least: Figure, most: Figure) -> Cited {
    let (least, most) = (least.short(), most.short());
    match least == most.as_str() {
        true => Cited::default(),
        false => Cited::of(", {} to {} ms", [least, most]),
    }
}

/// Words for the unit of a time per step.
pub fn per_step_of(time: &StageTime) -> Option<Cited> {
    let steps = time.steps.as_ref()?;
    Some(match made_per_step(steps, time.row) {
        Some(made) if made.value() == 1.0 => Cited::words(" per token"),
        Some(made) => Cited::of(" per step{}", [sequences(made)]),
        None => Cited::words(" per step"),
    })
}

/// A capture may have other instances of each stage.
const fn repeat_noun(records: &AnswerRecords, time: &StageTime) -> &'static str {
    if time.steps.is_some() || !records.only_traced { "repeat" } else { "instance" }
}

/// The number of steps outside the timed decodes.
fn steps_beyond(steps: &StepTimes, time: &StageTime) -> f64 {
    steps.steps_beyond(time.row, time.steps.as_ref().map(Figure::value))
}

/// The time per step of the timed decodes, if other steps are measured too.
fn apart_from_timed(per_step: &Figure) -> Cited {
    let text = "Some of these steps are outside the timed decodes, which take {} ms per step.";
    Cited::of(text, [per_step.clone().short()])
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
    let spread = time.row.filter(|row| row.ms.n > 1).and_then(|row| {
        let cells = Row::of("stages").with("stage", &row.stage);
        let each = |column: &'static str, ms: f64| {
            let ms = cells.figure(column, ms);
            time.steps.as_ref().map_or(Some(ms.clone()), |steps| ms.over(steps))
        };
        let range = range(each("ms.min", row.ms.min)?, each("ms.max", row.ms.max)?);
        let n = cells.count("ms.n", row.ms.n.into()).quantity(repeat_noun(records, time));
        Some(Cited::of(" (mean of {}{})", [n, range]))
    });
    let of_two = steps.filter(|it| it.are_steps()).and_then(|it| {
        let (row, (least, most)) = (row_of_steps(it), it.apart_ms()?);
        let each = [row.figure("ms.min", least).short(), row.figure("ms.max", most).short()];
        Some(Cited::of(" (steps of {} and {} ms)", each))
    });
    let rated = time.row.filter(|_| time.steps.is_some() && !time.waits);
    Cited::of(
        "{} takes {} ms{}{}{}{}.",
        [
            Cited::name(named(time.stage)),
            per_step.clone().short(),
            per_step_of(time).unwrap_or_default(),
            Cited::words(if time.waits { WITH_WAIT } else { "" }),
            of_two.or(spread).unwrap_or_default(),
            after_comma(rated.and_then(|row| rate(records, row))),
        ],
    )
}

/// The tokens per second of a stage, if one rate stands for it.
fn rate(records: &AnswerRecords, row: &StageTiming) -> Option<Cited> {
    if !has_one_rate(records.step_times, &row.stage) {
        return None;
    }
    let row_of_stage = Row::of("stages").with("stage", &row.stage);
    let rate = row_of_stage.figure("tokens_per_s", row.tokens_per_s?);
    Some(Cited::of("{} tokens per second", [rate.short()]))
}

pub fn after_comma(rate: Option<Cited>) -> Cited {
    rate.map(|it| Cited::of(", {}", [it])).unwrap_or_default()
}

/// Tokens of a decode step, one of each sequence: a whole number; `None` if unknown.
fn made_per_step(steps: &Figure, row: Option<&StageTiming>) -> Option<Figure> {
    let row = row.filter(|row| tokens_of_step(row, steps.value()).is_some())?;
    let tokens = Row::of("stages").with("stage", &row.stage).count("tokens", row.tokens?);
    tokens.over(steps)
}

fn sequences(number: Figure) -> Cited {
    Cited::of(" of {}", [number.quantity("sequence")])
}
