//! What the traced pass shows: the GPU per stage, classes of kernels, CUDA calls and ranges summed.
//!
//! Arranges figures that analysis made; computes none.

use crate::{
    analyze::{Analysis, spans::Spans},
    report::{
        format::{UNKNOWN, bytes, count, known, ms, pct},
        table::Table,
    },
};

/// What the GPU did in each stage.
pub fn stage_gpu(analysis: &Analysis) -> Table {
    let columns = [
        "Stage",
        "#Instances",
        "#Window ms",
        "#Busy ms",
        "#Busy",
        "#Idle: host ms",
        "#Idle: copy ms",
        "#Idle: sync ms",
        "#Idle: unknown ms",
        "#Gaps",
        "#Longest ms",
        "#Launch-bound",
        "Copies",
    ];
    let caption = "The GPU in the nsys pass, from each start of a stage to the end of the last thing that it launched. Idle: until the next \
                   launching call began, the host was in a call that waits (sync), in one that copies (copy), or elsewhere (host); from \
                   there on it waited for that launch. What was launched before the GPU fell idle waited for something unknown.";
    let mut table = Table::new("stage-gpu", "GPU per stage", caption, &columns);
    for it in &analysis.stage_gpu {
        let copies: Vec<String> = it
            .copies
            .iter()
            .map(|it| format!("{} {}: {}", count(it.calls), it.kind.replace('_', " "), bytes(it.bytes)))
            .collect();
        table.row([
            it.stage.clone(),
            count(it.instances),
            ms(it.window_ms),
            ms(it.busy_ms),
            known(it.busy_pct, pct),
            ms(it.idle_host_ms),
            ms(it.idle_copy_ms),
            ms(it.idle_sync_ms),
            ms(it.idle_unknown_ms),
            count(it.gaps),
            ms(it.longest_gap_ms),
            known(it.launch_bound_pct, pct),
            if copies.is_empty() { UNKNOWN.into() } else { copies.join(", ") },
        ]);
    }
    table
}

/// Processes and devices apart; no rows where one process was on one device.
pub fn processes(analysis: &Analysis) -> Table {
    let columns = ["Process", "Name", "#Device", "Stage", "#Launches", "#Kernel ms", "#Busy ms", "#Copies", "Copied"];
    let caption =
        "What each process did on each device in the nsys pass; busy is the time in which at least one of its kernels ran there.";
    let mut table = Table::new("processes", "Processes and devices", caption, &columns);
    let rows = &analysis.processes.stages;
    if rows.iter().all(|it| (it.process, it.device) == (rows[0].process, rows[0].device)) {
        return table;
    }
    for it in rows {
        table.row([
            it.process.to_string(),
            it.process_name.clone().unwrap_or_else(|| UNKNOWN.into()),
            it.device.to_string(),
            if it.stage.is_empty() { "outside every stage".into() } else { it.stage.clone() },
            count(it.launches),
            ms(it.kernel_ms),
            ms(it.busy_ms),
            count(it.copies),
            bytes(it.copied_bytes),
        ]);
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
