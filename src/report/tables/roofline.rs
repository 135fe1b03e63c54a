//! Kernels under the device's roofs, operators beside its ceilings, and regions with their kernels and counters.
//!
//! Arranges figures that analysis made; computes none.

use super::recorded_only_note;
use crate::{
    analyze::{
        Analysis,
        mfu::OperatorMfu,
        regions::{Region, RegionCounters},
        roofline::{Bound, LATENCY_BELOW_PCT, RooflinePoint},
    },
    report::{
        format::{UNKNOWN, count, decimals, known, ms, pct, scaled},
        table::Table,
    },
};

/// Kernels under the roofs, longest first; numbered as the drawing numbers them.
pub fn roofline(analysis: &Analysis) -> Table {
    let columns = [
        "Kernel",
        "Stage",
        "#No.",
        "#Share of stage",
        "Bound",
        "#FLOP/B",
        "#FLOP/s",
        "#Of datasheet roof",
        "#Of measured roof",
        "#DRAM B/s",
        "#SM",
        "#Memory",
        "#DRAM",
        "#Occupancy",
        "Operations",
    ];
    let caption = format!(
        "Profiled kernels by stage, geometries together: operations per byte of device memory, and what was achieved, both of ncu's \
         replays. Bound by compute or memory where that is the busier unit, by latency where both are below {LATENCY_BELOW_PCT:.0} % of \
         what they sustain.",
    );
    let mut table = Table::new("roofline", "Roofline", caption, &columns);
    let roofline = &analysis.roofline;
    for (at, point) in roofline.points.iter().enumerate() {
        table.row(point_cells(at + 1, point));
    }
    for roof in &roofline.roofs {
        table.notes.push(format!(
            "Roof, {} {}: {}, {}, ridge at {} FLOP/B.",
            roof.source,
            roof.dtype,
            scaled(roof.flops_per_s, "FLOP/s"),
            scaled(roof.bytes_per_s, "B/s"),
            decimals(roof.ridge_flops_per_byte, 1),
        ));
    }
    if !roofline.points.is_empty() && roofline.roofs.is_empty() {
        table
            .notes
            .push("No roof is known: the pages do not name a device of conf/devices.toml, and no ceiling was measured.".into());
    }
    let mut reasons: Vec<&str> = roofline.points.iter().filter_map(|point| point.missing.as_deref()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        let of = roofline.points.iter().filter(|point| point.missing.as_deref() == Some(reason)).count();
        table.notes.push(format!("No intensity of {of} of {} kernels: {reason}", roofline.points.len()));
    }
    if !table.rows.is_empty() {
        table.notes.extend(recorded_only_note(analysis));
    }
    table
}

fn point_cells(number: usize, point: &RooflinePoint) -> [String; 15] {
    [
        point.kernel_name.clone(),
        stage(&point.stage),
        number.to_string(),
        known(point.share_pct, pct),
        known(point.bound.map(Bound::as_str), str::to_owned),
        known(point.flops_per_byte, |it| decimals(it, 2)),
        known(point.flops_per_s, |it| scaled(it, "FLOP/s")),
        known(point.datasheet_pct, pct),
        known(point.measured_pct, pct),
        known(point.bytes_per_s, |it| scaled(it, "B/s")),
        known(point.sm_pct, pct),
        known(point.memory_pct, pct),
        known(point.dram_pct, pct),
        known(point.achieved_occupancy_pct, pct),
        known(point.format.as_deref(), |it| it.replace('_', " ")),
    ]
}

/// Operators beside three ceilings, longest first.
pub fn operator_mfu(analysis: &Analysis) -> Table {
    let columns = [
        "Operator",
        "Stage",
        "#Own ms",
        "#Share of stage",
        "#FLOP/s",
        "#MFU, datasheet",
        "#MFU, measured",
        "#MFU, at clocks",
        "#Operand B/s",
        "#Of datasheet bandwidth",
        "#Of measured copy",
        "#At clocks",
    ];
    let rows = &analysis.mfu.operators;
    let on_host = rows.iter().any(|row| row.time_of == "host");
    let time = if on_host { "own host time of the plain pass" } else { "own kernels of the traced pass" };
    let caption = format!(
        "Operators, layers rolled up: FLOPs / (time × peak) and operand bytes / (time × bandwidth), where time is their {time}. \
         At clocks: of the datasheet's figure times observed over rated clock.",
    );
    let mut table = Table::new("operator-mfu", "MFU per operator", caption, &columns);
    for row in rows {
        table.row(operator_cells(row));
    }
    if rows.iter().any(|row| row.clocked_pct.is_none()) {
        table.notes.push(
            "At clocks: not given where clocks were not sampled, or the clock of the datasheet's figure is unknown.".into(),
        );
    }
    if rows.iter().any(|row| row.datasheet_bandwidth_pct.or(row.measured_bandwidth_pct).is_some_and(|pct| pct > 100.0)) {
        table.notes.push("Operand bytes above the bandwidth came from caches.".into());
    }
    table
}

fn operator_cells(row: &OperatorMfu) -> [String; 12] {
    [
        row.path.clone(),
        stage(&row.stage),
        ms(row.exclusive_ms),
        known(row.exclusive_pct, pct),
        known(row.flops_per_s, |it| scaled(it, "FLOP/s")),
        known(row.datasheet_pct, pct),
        known(row.measured_pct, pct),
        known(row.clocked_pct, pct),
        known(row.bytes_per_s, |it| scaled(it, "B/s")),
        known(row.datasheet_bandwidth_pct, pct),
        known(row.measured_bandwidth_pct, pct),
        known(row.clocked_bandwidth_pct, pct),
    ]
}

/// Regions, longest first.
pub fn regions(analysis: &Analysis) -> Table {
    let graphs = analysis.regions.iter().any(|region| region.whole_graphs > 0);
    let mut columns = vec!["Region", "Domain", "#Ranges", "#Kernels", "#Kernel ms"];
    columns.extend(graphs.then_some(["#Whole graphs", "#Graphs ms"]).into_iter().flatten());
    columns.extend(["#Share", "Classes", "#With counters", "#SM", "#Memory", "#DRAM", "#L2 hits", "#Occupancy", "#Tensor"]);
    let caption = "Ranges by name and domain with all kernels that were launched inside, enclosed ranges included, warm-up left out. A \
                   kernel of a replayed graph is in the range of its replay and in that of its capture. Counters are means by time over \
                   those kernels that ncu profiled.";
    let mut table = Table::new("regions", "Regions", caption, &columns);
    for region in analysis.regions.iter().filter(|region| region.kernels + region.whole_graphs > 0) {
        table.row(region_cells(region, graphs));
    }
    if graphs {
        table.notes.extend(recorded_only_note(analysis));
    }
    table
}

fn region_cells(region: &Region, graphs: bool) -> Vec<String> {
    let classes: Vec<String> =
        region.classes.iter().take(3).map(|it| format!("{} {}", it.class, known(it.share_pct, pct))).collect();
    let counter = |field: fn(&RegionCounters) -> Option<f64>| known(region.counters.as_ref().and_then(field), pct);
    let mut cells = vec![region.name.clone(), stage(&region.domain), count(region.instances), count(region.kernels)];
    cells.push(ms(region.kernel_ms));
    cells.extend(graphs.then(|| [count(region.whole_graphs), ms(region.graph_ms)]).into_iter().flatten());
    cells.push(known(region.share_pct, pct));
    cells.push(if classes.is_empty() { UNKNOWN.into() } else { classes.join(", ") });
    cells.extend([counter(|it| it.covered_pct), counter(|it| it.sm_pct), counter(|it| it.memory_pct), counter(|it| it.dram_pct)]);
    cells.extend([counter(|it| it.l2_hit_pct), counter(|it| it.achieved_occupancy_pct), counter(|it| it.tensor_pct)]);
    cells
}

fn stage(name: &str) -> String {
    if name.is_empty() { UNKNOWN.into() } else { name.into() }
}
