//! What the traced pass shows: the GPU per stage, classes of kernels, CUDA calls and ranges summed.
//!
//! Arranges figures that analysis made; computes none.

use crate::{
    analyze::{Analysis, gpu::StageGpu, graphs, spans::Spans},
    report::{
        format::{UNKNOWN, bytes, count, known, ms, pct},
        table::Table,
    },
};

/// What the GPUs did in each stage: all of a stage together, and each by itself where there are several.
pub fn stage_gpu(analysis: &Analysis) -> Table {
    let rows = gpu_rows(analysis);
    let several = !analysis.stage_gpu.devices.is_empty();
    let other = rows.iter().any(|it| it.other_ms.is_some_and(|ms| ms > 0.0));
    let fills = rows.iter().any(|it| it.fills > 0);
    let mut columns = vec!["Stage"];
    columns.extend(several.then_some("GPU"));
    columns.extend(["#Instances", "#Window ms", "#Busy ms", "#Busy"]);
    columns.extend(other.then_some("#Other ms"));
    columns.extend(["#Idle: host ms", "#Idle: copy ms", "#Idle: sync ms", "#Idle: unknown ms", "#Gaps", "#Longest ms"]);
    columns.extend(["#Launch-bound", "Copies"]);
    columns.extend(fills.then_some("Fills"));
    let mut caption = "The GPU in the nsys pass, from each start of a stage to the end of the last thing that it launched. Busy: something \
                       of the stage ran. Idle: nothing ran. Until the next \
                       launching call began, the host was in a call that waits (sync), in one that copies (copy), or elsewhere (host); from \
                       there on it waited for that launch. What was launched before the GPU fell idle waited for something unknown."
        .to_owned();
    if other {
        caption += " Other: only work of other stages ran.";
    }
    if several {
        caption += " Each GPU is measured by itself; \"all\" is their sum.";
    }
    let mut table = Table::new("stage-gpu", "GPU per stage", caption, &columns);
    for it in rows {
        let (upper, lower) = if it.busy_is_upper_bound { ("≤ ", "≥ ") } else { ("", "") };
        let bound = |sign: &str, value: Option<f64>| known(value, |value| format!("{sign}{}", ms(value)));
        let mut cells = vec![it.stage.clone()];
        cells.extend(several.then(|| it.device.map_or_else(|| "all".into(), |device| device.to_string())));
        cells.extend([count(it.instances), known(it.window_ms, ms), bound(upper, it.busy_ms)]);
        cells.push(known(it.busy_pct, |share| format!("{upper}{}", pct(share))));
        cells.extend(other.then(|| known(it.other_ms, ms)));
        let idle = [it.idle_host_ms, it.idle_copy_ms, it.idle_sync_ms, it.idle_unknown_ms];
        cells.extend(idle.map(|value| bound(lower, value)));
        cells.extend([known(it.gaps, count), known(it.longest_gap_ms, ms)]);
        cells.push(known(it.launch_bound_pct, |share| format!("{lower}{}", pct(share))));
        let copies = it.copies.iter();
        let copies: Vec<String> =
            copies.map(|it| format!("{} {}: {}", count(it.calls), it.kind.replace('_', " "), bytes(it.bytes))).collect();
        cells.push(if copies.is_empty() { UNKNOWN.into() } else { copies.join(", ") });
        let filled = || if it.fills > 0 { format!("{}: {}", count(it.fills), bytes(it.filled_bytes)) } else { UNKNOWN.into() };
        cells.extend(fills.then(filled));
        table.row(cells);
    }
    if !table.rows.is_empty() {
        table.notes.extend(upper_bound_note(analysis));
    }
    table
}

/// Totals, each followed by its GPUs.
fn gpu_rows(analysis: &Analysis) -> Vec<&StageGpu> {
    let gpus = &analysis.stage_gpu;
    let mut rows = Vec::new();
    for total in &gpus.totals {
        rows.push(total);
        rows.extend(gpus.devices.iter().filter(|it| it.stage == total.stage));
    }
    rows
}

/// Launches of whole-traced graphs by stage: `32 in decode_all (17.689 ms)`; `None` where there are none.
fn launches_by_stage(analysis: &Analysis) -> Option<String> {
    let shown = |stage: &str| {
        let (launches, total_ms) = graphs::of_stage(&analysis.graphs, stage)?;
        Some(format!("{} in {stage} ({} ms)", count(launches), ms(total_ms)))
    };
    let shown: Vec<String> = graphs::stages(&analysis.graphs).into_iter().filter_map(shown).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

/// What a time of a GPU means where graphs were traced as a whole.
fn upper_bound_note(analysis: &Analysis) -> Option<String> {
    let launches = launches_by_stage(analysis)?;
    Some(format!(
        "Launches of CUDA graphs traced as a whole: {launches}. They count as busy from start to end, an upper bound: gaps inside are not \
         visible, and kernels inside are not recorded. {}",
        graphs::REMEDY,
    ))
}

/// What sums and shares of kernels leave out where graphs were traced as a whole; `None` where none was.
pub fn recorded_only_note(analysis: &Analysis) -> Option<String> {
    let launches = launches_by_stage(analysis)?;
    Some(format!(
        "Sums and shares are of recorded kernels only. Launches of CUDA graphs whose kernels are not recorded: {launches}."
    ))
}

/// CUDA graphs that were traced as a whole, launch by launch.
pub fn whole_graphs(analysis: &Analysis) -> Table {
    let columns = ["Stage", "Graph", "#GPU", "#Launches", "#Total ms", "#Mean ms", "#Median ms", "#Min ms", "#Max ms"];
    let caption = "Launches of CUDA graphs that were traced as a whole in the nsys pass, each from its start to its end on the GPU: an \
                   upper bound of the work inside.";
    let mut table = Table::new("whole-graphs", "CUDA graphs traced as a whole", caption, &columns);
    for it in &analysis.graphs {
        let [total, launches, mean, median, min, max] = spans(&it.launch_ns);
        let stage = if it.stage.is_empty() { "outside every stage".into() } else { it.stage.clone() };
        let graph = known(it.graph, |graph| graph.to_string());
        table.row([stage, graph, it.device.to_string(), launches, total, mean, median, min, max]);
    }
    table
}

/// Processes and devices apart; no rows where one process was on one device.
pub fn processes(analysis: &Analysis) -> Table {
    let rows = &analysis.processes.stages;
    let graphs = rows.iter().any(|it| it.graph_launches > 0);
    let mut columns = vec!["Process", "Name", "#Device", "Stage", "#Launches", "#Kernel ms"];
    columns.extend(graphs.then_some("#Whole graphs"));
    columns.extend(["#Busy ms", "#Copies", "Copied", "#Fills", "Filled"]);
    let caption = "What each process did on each device in the nsys pass; busy is the time in which a kernel, copy, fill or whole-traced \
                   graph of it ran there.";
    let mut table = Table::new("processes", "Processes and devices", caption, &columns);
    if rows.iter().all(|it| (it.process, it.device) == (rows[0].process, rows[0].device)) {
        return table;
    }
    for it in rows {
        let mut cells = vec![
            it.process.to_string(),
            it.process_name.clone().unwrap_or_else(|| UNKNOWN.into()),
            it.device.to_string(),
            if it.stage.is_empty() { "outside every stage".into() } else { it.stage.clone() },
            count(it.launches),
            known(it.kernel_ms, ms),
        ];
        cells.extend(graphs.then(|| count(it.graph_launches)));
        cells.extend([known(it.busy_ms, ms), count(it.copies), bytes(it.copied_bytes), count(it.fills), bytes(it.filled_bytes)]);
        table.row(cells);
    }
    table
}

/// Kernel time by class.
pub fn classes(analysis: &Analysis) -> Table {
    let columns = ["Stage", "Class", "#Total ms", "#Calls", "#Share of stage"];
    let caption = "Kernel time by what kernels do, as their names tell (conf/kernels.toml).";
    let mut table = Table::new("kernel-classes", "Classes of kernels", caption, &columns);
    for it in &analysis.kernels.classes {
        let stage = if it.stage.is_empty() { UNKNOWN.into() } else { it.stage.clone() };
        table.row([stage, it.class.clone(), ms(it.total_ms), count(it.calls), known(it.share_pct, pct)]);
    }
    if !table.rows.is_empty() {
        table.notes.extend(recorded_only_note(analysis));
    }
    if let Some(share) = analysis.kernels.classified_pct {
        table.notes.push(format!("The class of {} of all kernel time is known.", pct(share)));
    }
    table
}

/// CUDA calls by name.
pub fn api_calls(analysis: &Analysis) -> Table {
    let columns = ["Call", "#Total ms", "#Calls", "#Mean ms", "#Median ms", "#Min ms", "#Max ms"];
    let mut table = Table::new("api-calls", "CUDA calls", "Calls of the CUDA runtime and driver in the nsys pass.", &columns);
    for it in &analysis.sums.calls {
        table.row(std::iter::once(it.name.clone()).chain(spans(&it.ns)));
    }
    table
}

/// Ranges by domain and name.
pub fn ranges(analysis: &Analysis) -> Table {
    let columns = [
        "Range",
        "Domain",
        "#Total ms",
        "#Calls",
        "#Mean ms",
        "#Median ms",
        "#Min ms",
        "#Max ms",
        "#On the GPU ms",
        "#GPU operations",
    ];
    let caption = "Ranges of the nsys pass on the host; on the GPU, from the start of the first to the end of the last thing launched inside.";
    let mut table = Table::new("ranges", "Ranges", caption, &columns);
    for it in &analysis.sums.ranges {
        let domain = if it.domain.is_empty() { UNKNOWN.to_owned() } else { it.domain.clone() };
        let gpu = [known(it.projected_ns, |ns| ms(ns.total as f64 / 1e6)), count(it.gpu_ops)];
        table.row([it.name.clone(), domain].into_iter().chain(spans(&it.ns)).chain(gpu));
    }
    table
}

fn spans(ns: &Spans) -> [String; 6] {
    let shown = |ns: f64| ms(ns / 1e6);
    [shown(ns.total as f64), count(ns.count), shown(ns.mean), shown(ns.median), shown(ns.min as f64), shown(ns.max as f64)]
}
