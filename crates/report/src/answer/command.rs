//! The sentence on the wall time of a command.

use llmprof_core::trace::command::Timed;

use super::{
    AnswerRecords,
    cited::{Cited, Row},
    stage_time::{average, range},
};

/// The time of a command as a whole; a load has latencies in its place.
pub fn sentence(records: &AnswerRecords) -> Option<Cited> {
    let it = records.command.filter(|_| records.latencies.is_empty())?;
    let ms = it.plain_ms?;
    let row = Row::of("aggregates");
    let (wall_ms, word) = it.wall_ms()?;
    let stated = match it.plain_p50_ms {
        Some(_) => row.figure("command.plain_p50_ms", wall_ms),
        None => row.figure("command.plain_ms.mean", wall_ms),
    };
    let cell = |column: &'static str, ms: f64| row.figure(column, ms);
    let spread = (ms.n > 1).then(|| {
        let range =
            range(cell("command.plain_ms.min", ms.min), cell("command.plain_ms.max", ms.max));
        let n = row.count("command.plain_ms.n", ms.n.into()).quantity("repeat");
        let mean = average(stated.clone(), &cell("command.plain_ms.mean", ms.mean));
        let mean = mean.map(|mean| Cited::of("; {}", [mean])).unwrap_or_default();
        Cited::of(" ({} of {}{}{})", [Cited::words(word), n, range, mean])
    });
    let name = match it.of {
        Timed::Process => "The whole process",
        Timed::Client => "The client of the server",
    };
    Some(Cited::of(
        "{} takes {} ms{}.",
        [Cited::words(name), stated.short(), spread.unwrap_or_default()],
    ))
}
