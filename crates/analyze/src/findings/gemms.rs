//! Rules on GEMMs and their log.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::Trace,
};

use super::{
    Rule,
    saving::{MIN_SAVING_PCT, stage_saving, traced_repeats},
};
use crate::{
    Analysis,
    kernels::gemms::{GemmRecord, OPERATOR},
    stages::in_sentence,
};

/// A GEMM matters from this share of its stage's GEMMs by operations, percent.
const MATTERS_PCT: f64 = 10.0;
/// A GEMM of fewer rows leaves most of a tensor core tile empty.
const SMALL_ROWS: u64 = 16;
/// Side of the tile of a GEMM whose kernel is unknown, and the share of tiles to fill, percent.
const TILE: u64 = 128;
const FILLED_PCT: f64 = 75.0;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::GEMM_SMALL, find: gemm_small },
    Rule { id: catalogue::GEMM_TILES_UNFILLED, find: gemm_tiles_unfilled },
    Rule { id: catalogue::GEMM_LOG_EMPTY, find: log_findings },
    Rule { id: catalogue::GEMM_STAGES_UNKNOWN, find: log_findings },
    Rule { id: catalogue::GEMM_KERNELS_NOT_JOINED, find: log_findings },
    Rule { id: catalogue::GEMM_CALLS_INCOMPLETE, find: log_findings },
    Rule { id: catalogue::GEMM_LOG_CUT, find: log_findings },
];

fn log_findings(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    analysis.gemms.findings.clone()
}

/// False for a GEMM whose kernels take too little of their stage; true if their time is unknown.
fn may_save(analysis: &Analysis, it: &GemmRecord) -> bool {
    let times = it.kernel_ms.zip(traced_repeats(analysis, &it.stage));
    let saving = times.and_then(|(ms, repeats)| stage_saving(analysis, &it.stage, ms / repeats));
    saving.is_none_or(|saving| saving.pct >= MIN_SAVING_PCT)
}

/// GEMMs that matter and that `matches` selects, with their share of the stage's GEMMs.
fn gemms<'a>(
    analysis: &'a Analysis,
    matches: impl Fn(&GemmRecord) -> bool + 'a,
) -> impl Iterator<Item = (&'a GemmRecord, f64)> {
    let weighty =
        |it: &'a GemmRecord| Some((it, it.share_pct.filter(|share| *share >= MATTERS_PCT)?));
    let selected = move |it: &&GemmRecord| matches(it) && may_save(analysis, it);
    analysis.gemms.records.iter().filter(selected).filter_map(weighty)
}

fn shape(it: &GemmRecord) -> String {
    format!("{} x {} x {}, batch {}, {}", it.m, it.n, it.k, it.batch, it.left_type)
}

fn gemm_small(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |(it, share): (&GemmRecord, f64)| {
        let message = format!(
            "GEMMs with m = {} are {share:.0} % of the GEMMs of {} with known shapes, by \
             operations.",
            it.m,
            in_sentence(&it.stage)
        );
        Finding::new(catalogue::GEMM_SMALL, message)
            .with("m x n x k", shape(it))
            .with("calls", it.calls)
    };
    gemms(analysis, |it| it.m < SMALL_ROWS && it.batch == 1).map(found).collect()
}

/// Share of its tiles that a GEMM fills, percent; of square tiles if the library's kernel is
/// unknown.
fn filled(it: &GemmRecord) -> f64 {
    let up = |side: u64| (side.div_ceil(TILE) * TILE).max(1) as f64;
    let square = || 100.0 * (it.m as f64 / up(it.m)) * (it.n as f64 / up(it.n));
    // Kernels of other origins have tiles of their own.
    it.tile_fill_pct.unwrap_or_else(|| if it.origin == OPERATOR { 100.0 } else { square() })
}

fn gemm_tiles_unfilled(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |(it, share): (&GemmRecord, f64)| {
        let tile = it.tile.clone().unwrap_or_else(|| format!("{TILE} x {TILE}"));
        let stage = in_sentence(&it.stage);
        let message = format!("A GEMM in {stage} fills {:.0} % of its {tile} tiles.", filled(it));
        Finding::new(catalogue::GEMM_TILES_UNFILLED, message)
            .with("m x n x k", shape(it))
            .with("calls", it.calls)
            .with("share of the stage's GEMMs", format!("{share:.1} %"))
    };
    gemms(analysis, |it| it.m >= SMALL_ROWS && filled(it) < FILLED_PCT).map(found).collect()
}
