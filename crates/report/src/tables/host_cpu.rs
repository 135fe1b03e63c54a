//! Threads on the cores of the host, and what launching threads did while a GPU idled.

use llmprof_analyze::{
    Analysis,
    host_cpu::{CoreTaker, GapFunction, HostCpuTables, HostStage, HostThread},
};

use super::{
    report_table::ReportTable,
    run_tables::RunTable,
    schema::{TableColumn, count, flag, id, millis, percent, summed, text},
};
use crate::format::ms;

/// The tables of one capture.
pub fn run_tables(host: &HostCpuTables) -> [RunTable<'_>; 4] {
    [
        RunTable::new("host_cpu.threads", columns(), &host.threads),
        RunTable::new("host_cpu.stages", stage_columns(), &host.stages),
        RunTable::new("host_cpu.takers", taker_columns(), &host.takers),
        RunTable::new("host_cpu.functions", function_columns(), &host.functions),
    ]
}

/// Columns of [`HostThread`].
fn columns() -> Vec<TableColumn<HostThread>> {
    vec![
        text("process_name", "Process", |it: &HostThread| it.process_name.as_deref().into()),
        id("process", "PID", |it| it.process.into()),
        text("thread_name", "Thread", |it: &HostThread| it.thread_name.as_deref().into()),
        id("thread", "TID", |it| it.thread.into()),
        flag("calls_cuda", "Calls CUDA", |it| it.calls_cuda.into()),
        summed(millis("on_core_ms", "On core ms", |it| it.on_core_ms.into())),
        summed(count("switches", "Switches", |it| it.switches.into())),
        count("cores", "Cores", |it| it.cores.into()),
        summed(count("samples", "Samples", |it| it.samples.into())),
        summed(count("driver_samples", "In the driver", |it| it.driver_samples.into())),
        text("function", "Most samples in", |it: &HostThread| it.function.as_deref().into()),
        text("module", "File", |it: &HostThread| it.module.as_deref().into()),
        percent("function_pct", "Share", |it| it.function_pct.into()),
    ]
}

/// Columns of [`HostStage`].
fn stage_columns() -> Vec<TableColumn<HostStage>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        millis("idle_host_ms", "Idle for the host ms", |it| it.idle_host_ms.into()),
        millis("on_core_ms", "On core ms", |it| it.on_core_ms.into()),
        millis("off_core_ms", "Off core ms", |it| it.off_core_ms.into()),
        millis("taken_ms", "Core taken ms", |it| it.taken_ms.into()),
        millis("unknown_ms", "Unknown ms", |it| it.unknown_ms.into()),
        count("samples", "Samples", |it| it.samples.into()),
    ]
}

/// Columns of [`CoreTaker`].
fn taker_columns() -> Vec<TableColumn<CoreTaker>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("process_name", "Process", |it: &CoreTaker| it.process_name.as_deref().into()),
        id("process", "PID", |it| it.process.into()),
        text("thread_name", "Thread", |it: &CoreTaker| it.thread_name.as_deref().into()),
        id("thread", "TID", |it| it.thread.into()),
        summed(millis("total_ms", "On the core ms", |it| it.total_ms.into())),
        percent("share_pct", "Share of off core", |it| it.share_pct.into()),
    ]
}

/// Columns of [`GapFunction`].
fn function_columns() -> Vec<TableColumn<GapFunction>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("function", "Function", |it: &GapFunction| it.function.as_deref().into()),
        text("module", "File", |it| (&it.module).into()),
        summed(count("samples", "Samples", |it| it.samples.into())),
        percent("share_pct", "Share of samples", |it| it.share_pct.into()),
    ]
}

/// Launching threads while a GPU idled.
pub fn host_stages(analysis: &Analysis) -> ReportTable {
    let caption = "The threads that launch the work of a stage, while a GPU idled in the traced \
                   pass because nothing was launched. On core: the thread ran. Off core: it did \
                   not; core taken: another thread ran on the core that it had left. Samples: of \
                   the thread, in this time.";
    let shown = ["stage", "idle_host_ms", "on_core_ms", "off_core_ms", "taken_ms", "samples"];
    let rows = analysis.host_cpu.iter().flat_map(|it| &it.stages);
    ReportTable::of("host-stages", "Launching Threads", caption, (&stage_columns(), &shown), rows)
}

/// Threads on the core that a launching thread had left.
pub fn host_takers(analysis: &Analysis) -> ReportTable {
    let caption = "Threads on the core that a launching thread had left, while a GPU idled because \
                   nothing was launched.";
    let shown = ["stage", "process_name", "process", "thread_name", "total_ms", "share_pct"];
    let rows = analysis.host_cpu.iter().flat_map(|it| &it.takers);
    let schema = taker_columns();
    ReportTable::of("host-takers", "Others on the Core", caption, (&schema, &shown), rows)
}

/// Functions of launching threads while a GPU idled.
pub fn host_functions(analysis: &Analysis) -> ReportTable {
    let caption = "Functions that launching threads executed while a GPU idled because nothing was \
                   launched, by samples.";
    let shown = ["stage", "function", "module", "samples", "share_pct"];
    let rows = analysis.host_cpu.iter().flat_map(|it| &it.functions);
    let schema = function_columns();
    ReportTable::of("host-functions", "Functions in Gaps", caption, (&schema, &shown), rows)
}

/// Threads on the cores of the host.
pub fn host_threads(analysis: &Analysis) -> ReportTable {
    let scope = match analysis.host_cpu.as_ref().and_then(|it| it.is_system_wide) {
        Some(true) => "Threads of all processes of the host",
        Some(false) => "Threads of the profiled command and of the programs that it started",
        None => "Recorded threads",
    };
    let recorded = analysis.host_cpu.as_ref().and_then(|it| it.recorded_ms);
    let span = recorded.map_or_else(String::new, |span| {
        format!(", in the {} ms from the first recorded switch to the last", ms(span))
    });
    let caption = format!(
        "{scope}, longest on cores first{span}. The function is the innermost one of most samples \
         of the thread."
    );
    let shown = [
        "process_name",
        "process",
        "thread_name",
        "calls_cuda",
        "on_core_ms",
        "switches",
        "cores",
        "samples",
        "function",
        "module",
        "function_pct",
    ];
    let rows = analysis.host_cpu.iter().flat_map(|it| &it.threads);
    ReportTable::of("host-threads", "Threads of the Host", caption, (&columns(), &shown), rows)
}
