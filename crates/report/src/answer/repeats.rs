//! The sentence on the time of a stage of a run: the figure over its repeats, as in its tile.

use llmprof_analyze::stages::{
    DECODE, PREFILL, StageTiming, repeat_medians::RepeatMedian, step_times::StepTimes,
};

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    stage_time::{StageTime, after_comma, average, named, p50, per_step_of, range, row_of_steps},
};
use crate::{format::count, headline::times::rate_words, waits::Waits};

/// The figure over the repeats that stands for a stage of a run.
pub struct RepeatsTime {
    over: RepeatMedian,
    /// Its field of `aggregates.medians`.
    name: &'static str,
}

impl RepeatsTime {
    /// `None` for a capture, whose instances and steps are stated, for a report of an earlier
    /// version, and for a stage with an unrecorded wait.
    pub fn of(records: &AnswerRecords, stage: &str) -> Option<Self> {
        let medians = records.medians.filter(|_| !records.only_traced)?;
        let (over, name) = match stage {
            PREFILL => (medians.ttft_ms?, "ttft_ms"),
            DECODE => (medians.tpot_ms?, "tpot_ms"),
            _ => return None,
        };
        (!Waits::of(records.ledger).has(stage)).then_some(Self { over, name })
    }

    /// Milliseconds.
    pub fn ms(&self) -> Figure {
        self.cell("p50", self.over.p50)
    }

    fn cell(&self, column: &str, value: f64) -> Figure {
        Row::of("aggregates").figure(format!("medians.{}.{column}", self.name), value)
    }

    /// The repeats, their samples and range; `None` for one repeat of one sample.
    fn base(&self, records: &AnswerRecords) -> Option<Cited> {
        let samples = of_samples(&records.samples);
        if self.over.n == 1 {
            return samples.map(|samples| Cited::of("one repeat{}", [samples]));
        }
        let column = format!("medians.{}.n", self.name);
        Some(Cited::of(
            "{} of {}{}{}",
            [
                Cited::words(self.over.word()),
                Row::of("aggregates").count(column, self.over.n.into()).quantity("repeat"),
                samples.unwrap_or_default(),
                range(self.cell("min", self.over.min), self.cell("max", self.over.max)),
            ],
        ))
    }

    /// Tokens per second of decode.
    fn rate(&self, row: &StageTiming, steps: Option<&Figure>) -> Option<Cited> {
        let cells = Row::of("stages").with("stage", &row.stage);
        let rate = cells.figure("tokens_per_s", row.tokens_per_s?).short();
        let words = rate_words(row, steps.map(Figure::value), self.over.p50);
        Some(Cited::of("{} tokens per second{}", [rate, Cited::words(words)]))
    }
}

/// The samples of each repeat; `None` for a run with one.
fn of_samples(samples: &[u32]) -> Option<Cited> {
    let cell = |it: &u32| Row::of("samples").with("sample", it).count("sample", (*it).into());
    let all = Figure::number(samples.iter().map(cell));
    (!samples.is_empty()).then(|| Cited::of(" of {}", [all.quantity("sample")]))
}

/// The time of a stage of a run, with the mean of prefill, and rate and single steps of decode.
pub fn sentence(
    records: &AnswerRecords,
    time: &StageTime,
    steps: Option<&StepTimes>,
    per_step: &Figure,
) -> Option<Cited> {
    let stated = RepeatsTime::of(records, time.stage)?;
    let (per, figures) = match time.stage {
        DECODE => {
            let per = per_step_of(time).unwrap_or_else(|| Cited::words(" per step"));
            (per, after_comma(time.row.and_then(|row| stated.rate(row, time.steps.as_ref()))))
        }
        _ => {
            let mean = average(stated.ms(), per_step).map(|mean| Cited::of("; {}", [mean]));
            (Cited::default(), mean.unwrap_or_default())
        }
    };
    let figures = match stated.base(records) {
        Some(base) => Cited::of(" ({}{})", [base, figures]),
        None => figures,
    };
    let single = steps.and_then(|it| single_steps(it, &stated.ms())).unwrap_or_default();
    let parts = [Cited::name(named(time.stage)), stated.ms().short(), per, figures, single];
    Some(Cited::of("{} takes {} ms{}{}{}.", parts))
}

/// The median of decode steps, if it reads differently from the time per token.
fn single_steps(steps: &StepTimes, stated: &Figure) -> Option<Cited> {
    let ms = p50(steps).short();
    let is_stated = steps.are_steps() && steps.median_ms().is_some();
    (is_stated && ms != stated.clone().short().as_str()).then(|| {
        let word = Cited::words(steps.median_word().trim_start_matches("the "));
        let n = row_of_steps(steps).count("ms.n", steps.ms.n.into());
        Cited::of(
            "; single steps take {} ms ({} of {})",
            [ms, word, n.shown(|it| count(it as u64))],
        )
    })
}
