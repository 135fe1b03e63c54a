//! Timeline of one decode step: operators by nesting, kernels by stream, calls of the host.
//!
//! The table next to it lists every slice.

use std::collections::BTreeMap;

use llmprof_analyze::{
    Analysis,
    timeline::decode_timeline::{StepSlice, StepTimeline},
};
use serde::Serialize;

use crate::{
    charts::lanes::{ChartLane, LaneChart, Slice, lanes},
    format::{decimals, quantity},
};

/// Maximum nesting of drawn operators: deeper ones repeat the kernels.
const NESTED: usize = 3;

/// Meaning of a colour.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LegendEntry {
    class: &'static str,
    label: &'static str,
}

/// The chart of an analysis and its legend; empty if no step was identified.
pub fn step(analysis: &Analysis) -> (String, Vec<LegendEntry>) {
    let Some(step) = &analysis.step else { return (String::new(), vec![]) };
    chart("step-timeline", step, 1.0)
}

/// The chart of a step and its legend, up to a magnification.
pub fn chart(id: &str, step: &StepTimeline, zoom: f64) -> (String, Vec<LegendEntry>) {
    let mut tracks: BTreeMap<(u8, &str), Vec<&StepSlice>> = BTreeMap::new();
    for slice in &step.slices {
        tracks.entry((rank(&slice.track), &slice.track)).or_default().push(slice);
    }
    // A single operator around the whole step carries no information.
    let several = |slices: &[&StepSlice]| slices.len() > 1;
    let nested: Vec<&str> = tracks
        .iter()
        .filter(|((rank, _), it)| *rank == 1 && several(it))
        .map(|((_, track), _)| *track)
        .collect();
    let shown =
        |rank: u8, track: &str| rank != 1 || nested.iter().take(NESTED).any(|it| *it == track);
    let drawn: Vec<ChartLane> = tracks
        .iter()
        .filter(|((rank, track), _)| shown(*rank, track))
        .map(|((_, track), slices)| ChartLane {
            name: name(step, track),
            slices: slices.iter().map(|it| slice(it)).collect(),
        })
        .collect();
    let keys = legend(&drawn);
    let of = match (step.kernels, step.whole_graphs) {
        (0, 0) => quantity(step.slices.len() as u64, "operator"),
        (kernels, 0) => quantity(kernels, "kernel"),
        (0, graphs) => format!("{}, traced as a whole,", quantity(graphs, "CUDA graph")),
        (kernels, graphs) => format!(
            "{} and {}, traced as a whole,",
            quantity(kernels, "kernel"),
            quantity(graphs, "CUDA graph")
        ),
    };
    let description = format!(
        "Step {} of {}: {of} in {} µs; the table of its slices has the same.",
        step.step,
        step.steps,
        decimals(step.window_us, 1)
    );
    let chart = LaneChart {
        id,
        title: "Timeline of one decode step",
        description: &description,
        length: step.window_us,
        unit: "µs",
        zoom,
    };
    (lanes(&chart, &drawn), keys)
}

/// The meaning of the colours in these lanes.
pub fn legend(lanes: &[ChartLane]) -> Vec<LegendEntry> {
    let mut keys: Vec<LegendEntry> =
        lanes.iter().flat_map(|lane| &lane.slices).filter_map(|it| key(it.class)).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// The colour of an operator of this kind, or of a module, by its path.
pub fn class_of(op: &str, path: &str) -> &'static str {
    match colour(op) {
        "k-other" => of_operator(path),
        class => class,
    }
}

/// Lanes from the top: the host's calls, operators, kernels and copies.
fn rank(track: &str) -> u8 {
    match track {
        "calls" => 0,
        "copies" => 3,
        track if track.starts_with("operators") => 1,
        _ => 2,
    }
}

fn name(step: &StepTimeline, track: &str) -> String {
    match (track, step.pass.as_str()) {
        ("calls", _) => "calls of the host".into(),
        ("copies", _) => "copies and fills".into(),
        (track, "traced") if track.starts_with("operators") => {
            format!("{track}, as their kernels ran")
        }
        (track, _) => track.into(),
    }
}

fn slice(it: &StepSlice) -> Slice {
    let operator = it
        .operator
        .as_deref()
        .filter(|it| !it.is_empty())
        .map(|it| format!(" for {it}"))
        .unwrap_or_default();
    let other = if it.own { "" } else { ", of another step" };
    let (start, length) = (decimals(it.start_us, 1), decimals(it.duration_us, 1));
    let class = match (it.track.as_str(), it.own) {
        (_, false) => "k-none",
        ("calls", _) => "k-call",
        (track, _) if track.starts_with("operators") && it.class.is_none() => of_operator(&it.name),
        _ => colour(it.class.as_deref().unwrap_or("")),
    };
    Slice {
        tooltip: format!("{}{operator}: {length} µs from {start} µs{other}", it.name),
        label: if it.track.starts_with("operators") {
            last_of_path(&it.name)
        } else {
            String::new()
        },
        class,
        start: it.start_us,
        length: it.duration_us,
    }
}

/// The end of a path, with the word before a number: `layers.3`.
pub fn last_of_path(path: &str) -> String {
    let mut parts = path.rsplit('.');
    let end = parts.next().unwrap_or_default();
    match parts.next() {
        Some(before) if end.chars().all(|it| it.is_ascii_digit()) => format!("{before}.{end}"),
        _ => end.to_owned(),
    }
}

/// The colour of an enclosing operator, from the last word of its path if that is known.
fn of_operator(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
        end if end.contains("attn") || end.contains("attention") => "k-attention",
        "mlp" | "experts" | "moe" | "feed_forward" => "k-moe",
        end if end.contains("norm") || end == "softmax" => "k-norm",
        end if end.contains("lm_head") || end.contains("proj") => "k-gemm",
        _ => "k-module",
    }
}

/// The colour of a class of kernels, or of a kind of operators.
fn colour(class: &str) -> &'static str {
    match class {
        "gemm" | "conv" | "linear" => "k-gemm",
        "attention" => "k-attention",
        "moe" | "experts" | "router" => "k-moe",
        "norm" | "softmax" | "reduce" => "k-norm",
        "elementwise" | "rope" => "k-elementwise",
        "copy" | "collective" => "k-copy",
        _ => "k-other",
    }
}

fn key(class: &'static str) -> Option<LegendEntry> {
    let label = match class {
        "k-gemm" => "matrix products",
        "k-attention" => "attention",
        "k-moe" => "MLP and experts",
        "k-norm" => "norms, softmax, reductions",
        "k-elementwise" => "elementwise",
        "k-copy" => "copies and collectives",
        "k-call" => "calls for this step",
        "k-none" => "of another step",
        "k-other" => "other",
        _ => return None,
    };
    Some(LegendEntry { class, label })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_the_end_of_the_path_and_a_number_keeps_the_word_before_it() {
        let labels =
            ["decoder.layers.3", "decoder.layers.3.self_attn", "lm_head", "layer_3.mlp", ""]
                .map(last_of_path);
        assert_eq!(labels, ["layers.3", "self_attn", "lm_head", "mlp", ""]);
    }

    #[test]
    fn every_class_of_the_table_has_a_colour_of_its_own_or_of_its_family() {
        let classes = [
            "gemm",
            "attention",
            "norm",
            "softmax",
            "elementwise",
            "copy",
            "reduce",
            "moe",
            "conv",
            "collective",
        ];
        assert!(classes.iter().all(|it| colour(it) != "k-other" && key(colour(it)).is_some()));
    }
}
