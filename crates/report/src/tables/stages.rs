//! Stage times, notes on parts of stages, and the overhead of tracing.

use llmprof_analyze::{
    Analysis,
    stages::{StageNote, StageTiming, cold::COLD_PART, overhead::OverheadRecord},
    timeline::time_shares::StageShare,
};

use super::{
    report_table::ReportTable,
    samples::of_each_sample,
    schema::{TableColumn, count, millis, number, percent, spread_columns, text},
};
use crate::{
    format::{UNKNOWN, known, ms, of_interval, pct, quantity},
    waits::Waits,
};

/// Columns of [`StageTiming`].
pub fn columns() -> Vec<TableColumn<StageTiming>> {
    let mut columns: Vec<TableColumn<StageTiming>> =
        vec![text("stage", "Stage", |it| (&it.stage).into())];
    columns.extend(spread_columns!("ms", |it: StageTiming| it.ms));
    columns.extend([
        percent("share_pct", "Share", |it: &StageTiming| it.share_pct.into()),
        count("tokens", "Tokens", |it| it.tokens.into()),
        number("tokens_per_s", "Tokens/s", 1, |it| it.tokens_per_s.into()),
    ]);
    columns
}

/// Columns of [`StageNote`].
pub fn note_columns() -> Vec<TableColumn<StageNote>> {
    let mut columns: Vec<TableColumn<StageNote>> = vec![
        text("part", "Part", |it| (&it.part).into()),
        text("inside", "Stage", |it| (&it.inside).into()),
    ];
    columns.extend(spread_columns!("ms", |it: StageNote| it.ms));
    columns.push(percent("share_pct", "Share of stage", |it| it.share_pct.into()));
    columns
}

/// Columns of [`StageShare`].
pub fn share_columns() -> Vec<TableColumn<StageShare>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        count("instances", "Instances", |it| it.instances.into()),
        millis("wall_ms", "Wall ms", |it| it.wall_ms.into()),
        percent("wall_share_pct", "Share of wall time", |it| it.wall_share_pct.into()),
        millis("device_ms", "Device ms", |it| it.device_ms.into()),
        percent("device_share_pct", "Share of device time", |it| it.device_share_pct.into()),
        millis("before_ms", "Before the first stage ms", |it| it.before_ms.into()),
        millis("after_ms", "After the last stage ms", |it| it.after_ms.into()),
    ]
}

/// Shares of the stages in all time of a capture.
pub fn stage_shares(analysis: &Analysis) -> ReportTable {
    let caption = "All instances of each stage, in the capture from its first range or work to its \
                   last. Device time is the time in which a GPU ran work, summed over GPUs. Stages \
                   of several processes may overlap in wall time. If each rank has a trace of its \
                   own, wall time is the mean over the traces; instances and device time are sums.";
    let shown =
        ["stage", "instances", "wall_ms", "wall_share_pct", "device_ms", "device_share_pct"];
    let rows = &analysis.stage_shares;
    ReportTable::of("stage-shares", "All Time", caption, (&share_columns(), &shown), rows)
}

/// Columns of [`OverheadRecord`].
pub fn overhead_columns() -> Vec<TableColumn<OverheadRecord>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        millis("plain_ms", "Unprofiled ms", |it| it.plain_ms.into()),
        millis("traced_ms", "Traced ms", |it| it.traced_ms.into()),
        percent("overhead_pct", "Overhead", |it: &OverheadRecord| it.overhead_pct.into())
            .shown(|it| known(it.overhead_pct, |pct| format!("{pct:+.1} %"))),
        count("steps", "Decode steps", |it| it.steps.into()),
    ]
}

/// Stage times; cold first instances follow as rows, vision as a note.
pub fn stages(analysis: &Analysis) -> ReportTable {
    let stages = &analysis.stages;
    let (repeats, of_each) = of_each_sample(analysis, stages.repeats.into());
    let caption = format!(
        "Milliseconds per repeat: mean and sample deviation of {}{of_each} of {}.",
        quantity(repeats, "repeat"),
        analysis.times_of()
    );
    let shown =
        ["stage", "ms.mean", "ms.std", "ms.min", "ms.max", "share_pct", "tokens", "tokens_per_s"];
    let mut table =
        ReportTable::of("stages", "Per-Stage Timings", caption, (&columns(), &shown), &stages.rows);
    for cold in stages.notes.iter().filter(|note| note.part == COLD_PART) {
        let (ms, unknown) = (ms(cold.ms.mean), || UNKNOWN.to_owned());
        let cells = [ms.clone(), unknown(), ms.clone(), ms, unknown(), unknown(), unknown()];
        table.row([format!("{}, {COLD_PART}", cold.inside)].into_iter().chain(cells));
    }
    if let Some(vision) = stages.note("vision") {
        table.note(vision_note(vision, &stages.notes));
    }
    table.notes.extend(Waits::of(&analysis.ledger).notes("time and rate contain"));
    let (why, remedy) = analysis.why_no_stages();
    table.or_gap(why, remedy)
}

fn vision_note(vision: &StageNote, notes: &[StageNote]) -> String {
    let parts: Vec<String> = notes
        .iter()
        .filter(|note| note.part != "vision" && note.part != COLD_PART)
        .map(|note| format!("{} {} ms", note.part, ms(note.ms.mean)))
        .collect();
    let parts =
        if parts.is_empty() { String::new() } else { format!(" Its parts: {}.", parts.join(", ")) };
    let (mean, std) = (vision.ms.mean, vision.ms.std);
    let time = std.map_or_else(
        || format!("{} ms", ms(mean)),
        |std| {
            let [mean, std] = of_interval(mean, std);
            format!("{mean} ms (deviation {std})")
        },
    );
    let share = vision.share_pct.map(|share| format!("{} of ", pct(share))).unwrap_or_default();
    format!("Vision takes {time}, {share}{}; that row includes it.{parts}", vision.inside)
}

/// Cost of tracing in time, and equality of the results.
pub fn overhead(analysis: &Analysis) -> ReportTable {
    let shown = ["stage", "plain_ms", "traced_ms", "overhead_pct"];
    let mut table = ReportTable::of(
        "overhead",
        "Tracing overhead",
        "Stage times of the traced pass next to those of the unprofiled pass.",
        (&overhead_columns(), &shown),
        &analysis.overhead,
    );
    let outputs = analysis.outputs;
    let same = [outputs.traced_tokens_equal, outputs.traced_logits_equal];
    if same == [Some(true); 2] {
        table
            .note("Verified: both passes produced the same tokens from logits with the same hash.");
    } else if same.contains(&Some(false)) {
        table.note("Not verified: the outputs of the two passes differ.");
    }
    let (why, remedy) = analysis.why_no_overhead();
    table.or_gap(why, remedy)
}
