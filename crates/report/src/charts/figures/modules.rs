//! Operators of one stage as nested modules: each level of the paths is a lane, and the width of a
//! slice its time.

use std::collections::BTreeMap;

use llmprof_analyze::operators::{MODULE, OperatorRecord};

use super::step::{LegendEntry, class_of, last_of_path, legend};
use crate::{
    charts::lanes::{ChartLane, LaneChart, Slice, lanes},
    format::{decimals, pct},
};

/// A part of a path: its time, its kind and the parts below it.
#[derive(Debug, Default)]
struct Module {
    ms: f64,
    op: String,
    below: BTreeMap<String, Module>,
}

/// Time of an operator without enclosed ones: of its kernels if it has a timeline.
fn own_ms(record: &OperatorRecord) -> Option<f64> {
    record.device.map(|it| it.exclusive_ms).or(record.exclusive_ms)
}

/// The chart of one stage and its legend; empty if no operator has a time.
pub fn modules(
    id: &str,
    stage: &str,
    records: &[OperatorRecord],
    zoom: f64,
) -> (String, Vec<LegendEntry>) {
    let mut root = Module::default();
    let of_stage = || records.iter().filter(|it| it.stage == stage && it.op != MODULE);
    // Times of kernels and of the host are not added up.
    let has_device = of_stage().any(|it| it.device.is_some());
    for record in of_stage().filter(|it| it.device.is_some() == has_device) {
        let Some(ms) = own_ms(record).filter(|ms| *ms > 0.0 && ms.is_finite()) else { continue };
        root.ms += ms;
        let mut at = &mut root;
        for part in record.path.split('.') {
            at = at.below.entry(part.to_owned()).or_default();
            at.ms += ms;
        }
        at.op.clone_from(&record.op);
    }
    let mut drawn: Vec<ChartLane> = Vec::new();
    place(&root, "", (0, 0.0), root.ms, &mut drawn);
    let keys = legend(&drawn);
    let of = if has_device { "kernels" } else { "the host's calls" };
    let description = format!(
        "Times of {of} by module, over all repeats: {} ms. A lane is a level of the paths.",
        decimals(root.ms, 3)
    );
    let chart = LaneChart {
        id,
        title: &format!("Operators of {stage}"),
        description: &description,
        length: root.ms,
        unit: "ms",
        zoom,
    };
    (lanes(&chart, &drawn), keys)
}

/// Adds the parts of a module below it, longest first.
fn place(
    module: &Module,
    path: &str,
    (level, start): (usize, f64),
    all_ms: f64,
    lanes: &mut Vec<ChartLane>,
) {
    let mut below: Vec<(&String, &Module)> = module.below.iter().collect();
    below.sort_by(|a, b| b.1.ms.total_cmp(&a.1.ms));
    let mut from = start;
    for (name, part) in below {
        if lanes.len() <= level {
            lanes.push(ChartLane { name: format!("level {}", level + 1), slices: vec![] });
        }
        let whole = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let share = pct(100.0 * part.ms / all_ms);
        lanes[level].slices.push(Slice {
            tooltip: format!("{whole}: {} ms, {share}", decimals(part.ms, 3)),
            label: last_of_path(&whole),
            class: class_of(&part.op, &whole),
            start: from,
            length: part.ms,
        });
        place(part, &whole, (level + 1, from), all_ms, lanes);
        from += part.ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &str, op: &str, ms: f64) -> OperatorRecord {
        serde_json::from_value(serde_json::json!({
            "path": path, "op": op, "stage": "prefill", "calls": 1, "inclusive_ms": ms,
            "mean_ms": ms, "exclusive_ms": ms, "exclusive_pct": null, "shapes": [],
            "shape_variants": 1, "dtype": "bf16", "flops": 0, "bytes": 0, "flops_per_s": null,
            "bytes_per_s": null
        }))
        .unwrap()
    }

    #[test]
    fn a_module_is_as_wide_as_the_operators_below_it() {
        let records = [
            record("decoder.mlp.up", "linear", 3.0),
            record("decoder.mlp.down", "linear", 1.0),
            record("decoder.norm", "norm", 4.0),
            record("decoder", MODULE, 100.0),
        ];
        let (drawing, keys) = modules("m", "prefill", &records, 16.0);
        assert!(drawing.contains("decoder: 8.000 ms, 100.0 %"), "{drawing}");
        assert!(drawing.contains("decoder.mlp: 4.000 ms, 50.0 %"), "{drawing}");
        assert!(drawing.contains("decoder.mlp.up: 3.000 ms, 37.5 %"), "{drawing}");
        assert_eq!(keys.len(), 3, "{keys:?}");
    }

    #[test]
    fn a_stage_without_times_has_no_chart() {
        assert_eq!(modules("m", "decode_all", &[record("a", "b", 1.0)], 1.0).0, "");
        assert_eq!(modules("m", "prefill", &[record("a", "b", f64::NAN)], 1.0).0, "");
    }
}
