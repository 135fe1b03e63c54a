//! Rules on GEMMs and their log.

use llmprof_core::{
    domain::finding::{Finding, Severity},
    trace::Trace,
};

use super::{Rule, finding};
use crate::{
    Analysis,
    kernels::gemms::{GemmRecord, OPERATOR},
};
use Severity::{Info, Warning};

/// A GEMM matters from this share of its stage's GEMMs by operations, percent.
const MATTERS_PCT: f64 = 10.0;
/// A GEMM of fewer rows leaves most of a tensor core tile empty.
const SMALL_ROWS: u64 = 16;
/// Side of the tile of a GEMM whose kernel is unknown, and the share of tiles to fill, percent.
const TILE: u64 = 128;
const FILLED_PCT: f64 = 75.0;

pub const RULES: &[Rule] = &[
    Rule {
        id: "gemm_small",
        severity: Info,
        fires_on: "GEMMs with fewer than 16 rows are at least 10 % of a stage's GEMMs by \
                   operations",
        advice: "Batch requests: weights are read for few rows.",
        max_saving: None,
        find: gemm_small,
    },
    Rule {
        id: "gemm_tiles_unfilled",
        severity: Info,
        fires_on: "a GEMM of 16 rows or more and at least 10 % of a stage's GEMMs fills less than \
                   75 % of its kernel's tiles, or of 128 x 128 tiles where these are unknown",
        advice: "Pad or batch to sizes that fill tiles, or let the library choose smaller ones.",
        max_saving: None,
        find: gemm_tiles_unfilled,
    },
    Rule {
        id: "gemm_log_empty",
        severity: Warning,
        fires_on: "the GEMM log contains no GEMM",
        advice: "Check the files below gemm_log/: the program may use another library.",
        max_saving: None,
        find: log_findings,
    },
    Rule {
        id: "gemm_stages_unknown",
        severity: Warning,
        fires_on: "the log of prefill is not the start of the log of both stages",
        advice: "Record the logs again with the same settings.",
        max_saving: None,
        find: log_findings,
    },
    Rule {
        id: "gemm_kernels_not_joined",
        severity: Info,
        fires_on: "the logged GEMMs of a stage and the kernels of libraries in the timeline differ \
                   in number, tile or grid",
        advice: "Record log and timeline again with the same settings, without other GEMMs.",
        max_saving: None,
        find: log_findings,
    },
    Rule {
        id: "gemm_calls_incomplete",
        severity: Info,
        fires_on: "the GEMM log contains calls that cannot be parsed, or grouped calls, whose \
                   sizes it does not have",
        advice: "Check the log below gemm_log/.",
        max_saving: None,
        find: log_findings,
    },
    Rule {
        id: "gemm_log_cut",
        severity: Warning,
        fires_on: "a GEMM log exceeds the size limit",
        advice: "Request fewer tokens.",
        max_saving: None,
        find: log_findings,
    },
];

fn log_findings(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    analysis.gemms.findings.clone()
}

/// GEMMs that matter and that `matches` selects, with their share of the stage's GEMMs.
fn gemms<'a>(
    analysis: &'a Analysis,
    matches: impl Fn(&GemmRecord) -> bool + 'a,
) -> impl Iterator<Item = (&'a GemmRecord, f64)> {
    let weighty =
        |it: &'a GemmRecord| Some((it, it.share_pct.filter(|share| *share >= MATTERS_PCT)?));
    analysis.gemms.records.iter().filter(move |it| matches(it)).filter_map(weighty)
}

fn shape(it: &GemmRecord) -> String {
    format!("{} x {} x {}, batch {}, {}", it.m, it.n, it.k, it.batch, it.left_type)
}

fn gemm_small(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = |(it, share): (&GemmRecord, f64)| {
        let message = format!(
            "GEMMs with m = {} are {share:.0} % of the GEMMs of {} by operations.",
            it.m, it.stage
        );
        finding("gemm_small", message).with("m x n x k", shape(it)).with("calls", it.calls)
    };
    gemms(analysis, |it| it.m < SMALL_ROWS && it.batch == 1).map(found).collect()
}

/// Share of its tiles that a GEMM fills, percent; of square tiles where the library's kernel is
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
        let message =
            format!("A GEMM in {} fills {:.0} % of its {tile} tiles.", it.stage, filled(it));
        finding("gemm_tiles_unfilled", message)
            .with("m x n x k", shape(it))
            .with("calls", it.calls)
            .with("share of the stage's GEMMs", format!("{share:.1} %"))
    };
    gemms(analysis, |it| it.m >= SMALL_ROWS && filled(it) < FILLED_PCT).map(found).collect()
}
