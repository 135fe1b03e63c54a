//! Named ranges with the kernels and counters inside.

use llmprof_analyze::{Analysis, timeline::regions::Region};

use super::{
    report_table::ReportTable,
    samples::{COUNTERS_OF_FIRST, first_sample_note},
    schema::{TableCell, TableColumn, count, millis, nested, percent, summed, text},
    traced::sum_notes,
};
use crate::format::{UNKNOWN, known, pct};

/// Classes that a report lists per region.
const MAX_CLASSES: usize = 3;

/// Columns of [`Region`].
pub fn columns() -> Vec<TableColumn<Region>> {
    vec![
        text("name", "Region", |it| (&it.name).into()),
        text("domain", "Domain", |it| (&it.domain).into()),
        summed(count("instances", "Ranges", |it| it.instances.into())),
        summed(count("kernels", "Kernels", |it| it.kernels.into())),
        summed(millis("kernel_ms", "Kernel ms", |it| it.kernel_ms.into())),
        summed(count("whole_graphs", "Whole graphs", |it| it.whole_graphs.into())),
        summed(millis("graph_ms", "Graphs ms", |it| it.graph_ms.into())),
        percent("share_pct", "Share", |it| it.share_pct.into()),
        nested("classes", "Classes", |it: &Region| TableCell::nested(&it.classes)).shown(classes),
        percent("counters.covered_pct", "With counters", |it| {
            it.counters.as_ref().and_then(|it| it.covered_pct).into()
        }),
        percent("counters.sm_pct", "SM", |it| it.counters.as_ref().and_then(|it| it.sm_pct).into()),
        percent("counters.memory_pct", "Memory", |it| {
            it.counters.as_ref().and_then(|it| it.memory_pct).into()
        }),
        percent("counters.dram_pct", "DRAM", |it| {
            it.counters.as_ref().and_then(|it| it.dram_pct).into()
        }),
        percent("counters.l2_hit_pct", "L2 hits", |it| {
            it.counters.as_ref().and_then(|it| it.l2_hit_pct).into()
        }),
        percent("counters.achieved_occupancy_pct", "Occupancy", |it| {
            it.counters.as_ref().and_then(|it| it.achieved_occupancy_pct).into()
        }),
        percent("counters.tensor_pct", "Tensor", |it| {
            it.counters.as_ref().and_then(|it| it.tensor_pct).into()
        }),
    ]
}

fn classes(of: &Region) -> String {
    let classes: Vec<String> = of
        .classes
        .iter()
        .take(MAX_CLASSES)
        .map(|it| format!("{} {}", it.class, known(it.share_pct, pct)))
        .collect();
    if classes.is_empty() { UNKNOWN.into() } else { classes.join(", ") }
}

/// Regions, longest first.
pub fn regions(analysis: &Analysis) -> ReportTable {
    let graphs = analysis.regions.iter().any(|region| region.whole_graphs > 0);
    let mut shown = vec!["name", "domain", "instances", "kernels", "kernel_ms"];
    if graphs {
        shown.extend(["whole_graphs", "graph_ms"]);
    }
    shown.extend([
        "share_pct",
        "classes",
        "counters.covered_pct",
        "counters.sm_pct",
        "counters.memory_pct",
        "counters.dram_pct",
        "counters.l2_hit_pct",
        "counters.achieved_occupancy_pct",
        "counters.tensor_pct",
    ]);
    let caption = "Ranges by name and domain with all kernels that were launched inside, enclosed \
                   ranges included, warm-up excluded. A kernel of a replayed graph is in the range \
                   of its replay and in that of its capture. Counters are means by time over the \
                   kernels that ncu profiled.";
    let with_work = |region: &&Region| region.kernels + region.whole_graphs > 0;
    let mut table = ReportTable::of(
        "regions",
        "Regions",
        caption,
        (&columns(), &shown),
        analysis.regions.iter().filter(with_work),
    );
    if !table.rows.is_empty() {
        table.notes.extend(sum_notes(analysis));
    }
    if analysis.regions.iter().any(|region| region.counters.is_some()) {
        table.notes.extend(first_sample_note(analysis, COUNTERS_OF_FIRST));
    }
    table
}
