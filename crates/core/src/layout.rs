//! Every file name of a run, in one place. Paths are relative to the run's folder.

use crate::domain::state::Step;

/// Version of this layout, kept in the manifest.
pub const FORMAT_VERSION: u32 = 1;

/// The submitted spec ([`crate::domain::subject::RunSpec`]).
pub const SPEC: &str = "spec.json";
/// Steps, progress and log lines as they happened, numbered by line.
pub const PROGRESS: &str = "progress.jsonl";
/// Every artifact with bytes, hash, media type and step.
pub const MANIFEST: &str = "manifest.json";

/// Note of the files that were dropped because the folder was too large
/// (`size_limit` of the service).
pub const DROPPED: &str = "dropped.txt";

/// Spec of a job on another host.
pub const JOB: &str = "job.json";
/// Result of a job of any executor, until the service has committed it.
pub const RESULT: &str = "result.json";
/// State of the collecting steps, for a job that analyses.
pub const GATHERED: &str = "gathered.json";
/// Passes that succeeded, with the hashes of their files
/// (`FinishedPasses` of the service).
pub const PASSES: &str = "passes.json";
/// Owner of the folder: a job that finds another name there was replaced.
pub const OWNER: &str = "owner";
/// Path of the folder of the model's weights on the executing host, which requests name by this
/// file.
pub const WEIGHTS: &str = "weights";
/// Output of the scheduler's job outside its steps.
pub const SCHEDULER_LOG: &str = "scheduler.log";
/// Output of an import's process, outside its steps.
pub const JOB_STDOUT: &str = "job.stdout.log";
pub const JOB_STDERR: &str = "job.stderr.log";
/// Files that stay when an attempt prepares the folder, in addition to the files of finished
/// passes.
pub const KEPT: &[&str] = &[PROGRESS, JOB, PASSES, OWNER, SCHEDULER_LOG, JOB_STDOUT, JOB_STDERR];
/// Further files that stay of an import.
pub const IMPORTED: &[&str] = &[IMPORT, NSYS, NCU, PYTORCH];
/// Files that change after the seal or belong to the executor, and so are not artifacts.
pub const UNSEALED: &[&str] = &[
    MANIFEST,
    JOB,
    RESULT,
    GATHERED,
    PASSES,
    OWNER,
    WEIGHTS,
    SCHEDULER_LOG,
    JOB_STDOUT,
    JOB_STDERR,
];

/// Returns true for a file that is not an artifact: one of [`UNSEALED`], or an incomplete one that
/// a killed writer left.
pub fn is_unsealed(path: &str) -> bool {
    let stem = |name: &'static str| name.split('.').next();
    let of_writer = |new: &str| UNSEALED.iter().any(|name| stem(name) == Some(new));
    UNSEALED.contains(&path) || path.strip_suffix(".new").is_some_and(of_writer)
}

/// The submitted import ([`crate::domain::import::Import`]); only of imports.
pub const IMPORT: &str = "import.json";
/// An imported page of counters: `ncu/page-1.csv`.
pub fn imported_page(number: usize) -> String {
    format!("{NCU}/{}", page_name(number))
}
/// Name of such a page in its folder.
pub fn page_name(number: usize) -> String {
    format!("page-{number}.csv")
}
/// An imported report of counters, printed to the page of its number: `ncu/page-1.ncu-rep`.
pub fn imported_counter_report(number: usize) -> String {
    format!("{NCU}/page-{number}.ncu-rep")
}

/// Folder of imported traces by the profiler of PyTorch.
pub const PYTORCH: &str = "pytorch";
/// An imported trace of one process: `pytorch/trace-1.json`.
pub fn imported_trace(number: usize) -> String {
    format!("{PYTORCH}/trace-{number}.json")
}

/// Timelines of a run; an alignment needs one of these files.
pub fn timelines() -> [String; 2] {
    [NSYS_EXPORT.to_owned(), imported_trace(1)]
}

/// Folder of the children's output: `logs/<name>.stdout.log`, `logs/<name>.stderr.log`.
pub const LOGS: &str = "logs";

pub const ENV: &str = "env.json";
/// The resolved configuration, which can be submitted again ([`crate::domain::run_config`]).
pub const CONFIG: &str = "config.yaml";
/// The request of the model runner; each pass has its own copy with the changes of the pass.
/// Version 0.1 wrote it to `config.yaml`.
pub const RUNNER: &str = "runner.yaml";
pub const INPUTS: &str = "inputs.yaml";
/// Copies of the inputs, with a manifest that another service accepts.
pub const INPUT_COPIES: &str = "inputs";
pub const INPUT_MANIFEST: &str = "inputs/manifest.yaml";

/// Request and events of the runner in the unprofiled pass: `baseline/request.json`,
/// `baseline/events.jsonl`.
pub const BASELINE: &str = "baseline";
pub const REQUEST: &str = "request.json";
/// Folder of a command's own files, in the folder of its pass: `{out}` of the command.
pub const OUT: &str = "out";
/// The commands of a pass in a shell's syntax, in its folder.
pub const COMMAND: &str = "cmd.txt";
/// Power and clocks of the GPU during the unprofiled pass ([`crate::trace::power::PowerLine`]).
pub const NVML: &str = "baseline/nvml.jsonl";
/// The same for each further GPU of the pass, numbered from 2: `baseline/nvml-2.jsonl`.
pub fn nvml_of(gpu: u32) -> String {
    format!("{BASELINE}/nvml-{gpu}.jsonl")
}
/// Load of the host during the unprofiled pass ([`crate::trace::environment::HostLoad`]).
pub const HOST_LOAD: &str = "baseline/host.json";
pub const PREDICTIONS: &str = "predictions.jsonl";

/// Wall times of a command, in the folders of its unprofiled and its traced pass
/// ([`crate::trace::command::CommandTimes`]).
pub const TIMES: &str = "times.json";
/// Requests of the load of one repeat, in the folder of its pass: `baseline/requests-1.jsonl`
/// ([`crate::trace::requests::LoadLine`]).
pub fn requests(repeat: usize) -> String {
    format!("requests-{repeat}.jsonl")
}
/// Requests of the loads before and after a window, in the folder of its pass, and the window
/// ([`crate::trace::windows::Window`]).
pub const REQUESTS_BEFORE: &str = "requests-before.jsonl";
pub const REQUESTS_AFTER: &str = "requests-after.jsonl";
pub const WINDOW: &str = "window.json";
/// A command with its parameters in place ([`crate::domain::command::CommandPlan`]).
pub const COMMAND_PLAN: &str = "command.json";

/// The nsys pass: report, export, command, and the runner's own events under it.
pub const NSYS: &str = "nsys";
pub const NSYS_REPORT: &str = "nsys/run.nsys-rep";
pub const NSYS_EXPORT: &str = "nsys/run.sqlite";
/// Kernels recorded against kernels launched, and ranges that are missing.
pub const NSYS_COVERAGE: &str = "nsys/coverage.json";
pub const NSYS_COMMAND: &str = "nsys/cmd.txt";

/// Folder of a window of a session after the first: `nsys/window-2`.
pub fn further_window(number: u32) -> String {
    format!("{NSYS}/window-{number}")
}

/// Names of the report and of the export of nsys in the folder of any of its passes.
pub const NSYS_REPORT_FILE: &str = "run.nsys-rep";
pub const NSYS_EXPORT_FILE: &str = "run.sqlite";

/// The passes of nsys that sample the GPU's metrics, a folder for each rate:
/// `gpu_metrics/rate-20000/run.sqlite`.
pub const GPU_METRICS: &str = "gpu_metrics";
const GPU_METRICS_RATE: &str = "rate-";

/// The ncu passes, a folder for each process: `ncu/process-1/raw.csv`. Older versions had a process
/// and a folder for each stage.
pub const NCU: &str = "ncu";
const NCU_PROCESS: &str = "process-";
pub const NCU_REPORT: &str = "run.ncu-rep";
pub const NCU_RAW: &str = "raw.csv";
pub const NCU_DETAILS: &str = "details.csv";
/// Kernels selected for all processes, and their share of each stage: `ncu/choice.json`. Older
/// versions had one for each stage.
pub const NCU_CHOICE: &str = "choice.json";

/// The GEMM-log passes, a folder for each: `gemm_log/prefill/cublas.log`, and `gemm_log/all/` with
/// a few decode steps; of a command `gemm_log/processes/cublas_PID.log`, a file per process.
pub const GEMM_LOG: &str = "gemm_log";
pub const GEMM_PREFILL: &str = "prefill";
pub const GEMM_ALL: &str = "all";
pub const GEMM_PROCESSES: &str = "processes";
/// The pass of a command under the profiler of PyTorch: `torch_profiler/process-PID.json.gz`.
pub const TORCH_PROFILER: &str = "torch_profiler";
const TORCH_TRACE: (&str, &str) = ("process-", ".json.gz");

/// True for the name of a trace of that pass.
pub fn is_torch_trace(name: &str) -> bool {
    let number = name.strip_prefix(TORCH_TRACE.0).and_then(|it| it.strip_suffix(TORCH_TRACE.1));
    number.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
}

pub const CUBLAS_LOG: &str = "cublas.log";
pub const CUBLASLT_LOG: &str = "cublaslt.log";
/// The same of a process of a command; the libraries replace `%i` by the process id.
pub const CUBLAS_PROCESS_LOG: &str = "cublas_%i.log";
pub const CUBLASLT_PROCESS_LOG: &str = "cublaslt_%i.log";

/// The part of an aligned run, built separately and extracted from its layer; each with
/// `baseline/`, `nsys/` and `logs/`.
pub const MOCK: &str = "mock";
pub const EXTRACTED: &str = "extracted";

/// A short unprofiled pass; an attempt compares its clocks with the clocks of a finished pass.
pub const CLOCK_CHECK: &str = "clock_check";

/// Stem of an alignment's reports, `alignment.json`, `.md`, `.html`; in a run's folder followed by
/// the stage.
pub const ALIGNMENT: &str = "alignment";

pub const REPORT_MD: &str = "report.md";
pub const REPORT_HTML: &str = "report.html";
pub const REPORT_JSON: &str = "report.json";
pub const SUMMARY_MD: &str = "stakeholder_summary.md";
pub const OPERATORS_MD: &str = "operators.md";
pub const KERNELS_MD: &str = "kernels.md";
pub const KERNELS_CSV: &str = "kernels.csv";
/// Kernels by stage and full name.
pub const KERNELS_FULL_CSV: &str = "kernels_full.csv";
pub const KERNELS_JSON: &str = "kernels.json";
/// Counters by kernel and launch configuration.
pub const COUNTERS_CSV: &str = "counters.csv";
/// Sampled metrics by kernel and launch configuration, of runs with samples.
pub const SAMPLED_METRICS_CSV: &str = "sampled_metrics.csv";
/// Profiled kernels under the device's roofs.
pub const ROOFLINE_CSV: &str = "roofline.csv";
/// Operators compared with the device's ceilings.
pub const MFU_CSV: &str = "mfu.csv";
/// Named ranges with the kernels and counters inside.
pub const REGIONS_CSV: &str = "regions.csv";
pub const GEMMS_MD: &str = "gemms.md";
pub const GEMMS_CSV: &str = "gemms.csv";
pub const GEMMS_JSON: &str = "gemms.json";
pub const STAGES_JSON: &str = "stages.json";
/// Every complete table of the analysis, a line each.
pub const TABLES: &str = "tables.jsonl";
/// Energy, power and clocks per stage, if a GPU was sampled.
pub const POWER_JSON: &str = "power.json";
pub const POWER_CSV: &str = "power.csv";
/// Rows of the gap ledger, which add up to the measured times.
pub const LEDGER_CSV: &str = "ledger.csv";
/// Kernels and gaps of those rows.
pub const LEDGER_MEMBERS_CSV: &str = "ledger_members.csv";
/// Requests of the loads of a server, and percentiles of their latencies, of runs with a load.
pub const REQUESTS_CSV: &str = "requests.csv";
pub const REQUEST_LATENCY_CSV: &str = "request_latency.csv";
/// Collective operations of several ranks, of captures that have them.
pub const COLLECTIVES_CSV: &str = "collectives.csv";
/// Time of each rank in collective operations.
pub const RANKS_CSV: &str = "ranks.csv";
/// Power over time, drawn.
pub const POWER_SVG: &str = "power.svg";

/// Stages, operators, kernels, power over time, for Perfetto's UI, compressed.
pub const TIMELINE: &str = "timeline.perfetto-trace.gz";

/// Name of an ncu process, counted from 1, and of its folder.
pub fn ncu_process(number: usize) -> String {
    format!("{NCU_PROCESS}{number}")
}

/// Folder of the pass that samples metrics at this rate, in the run's folder.
pub fn metrics_pass(rate_hz: u32) -> String {
    format!("{GPU_METRICS}/{GPU_METRICS_RATE}{rate_hz}")
}

/// The rate of a pass with this folder in [`GPU_METRICS`].
pub fn metrics_rate(folder: &str) -> Option<u32> {
    folder.strip_prefix(GPU_METRICS_RATE)?.parse().ok()
}

/// Returns true for the folder of a process that profiled all stages.
pub fn is_ncu_process(folder: &str) -> bool {
    folder.strip_prefix(NCU_PROCESS).is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The media type that a file is served with, by its name.
pub fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, ext)| ext) {
        "json" => "application/json",
        "jsonl" => "application/jsonl",
        "yaml" => "application/yaml",
        "md" => "text/markdown; charset=utf-8",
        "html" => "text/html; charset=utf-8",
        "csv" => "text/csv; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" => "image/jpeg",
        "webp" => "image/webp",
        "txt" | "log" => "text/plain; charset=utf-8",
        "sqlite" => "application/vnd.sqlite3",
        "zst" => "application/zstd",
        "gz" => "application/gzip",
        _ => "application/octet-stream",
    }
}

/// The step that writes a file; `None` for files about the run as a whole.
pub fn step_of(path: &str) -> Option<Step> {
    let first = path.split('/').next().unwrap_or(path);
    match first {
        LOGS => path.split(['/', '.', '-']).nth(1)?.parse().ok(),
        BASELINE | PREDICTIONS | CLOCK_CHECK => Some(Step::Baseline),
        NSYS => Some(Step::Nsys),
        GPU_METRICS => Some(Step::GpuMetrics),
        NCU => Some(Step::Ncu),
        GEMM_LOG => Some(Step::GemmLog),
        TORCH_PROFILER => Some(Step::TorchProfiler),
        ENV | CONFIG | RUNNER | INPUTS | INPUT_COPIES | COMMAND_PLAN => Some(Step::Preflight),
        KERNELS_CSV | KERNELS_FULL_CSV | KERNELS_JSON | COUNTERS_CSV | GEMMS_MD | GEMMS_CSV
        | GEMMS_JSON => Some(Step::Report),
        REPORT_MD | REPORT_HTML | REPORT_JSON | SUMMARY_MD | OPERATORS_MD | KERNELS_MD
        | STAGES_JSON | POWER_JSON | POWER_CSV => Some(Step::Report),
        MOCK | EXTRACTED => Some(Step::Align),
        _ if first.starts_with(ALIGNMENT) => Some(Step::Align),
        REQUESTS_CSV | REQUEST_LATENCY_CSV => Some(Step::Report),
        SAMPLED_METRICS_CSV | LEDGER_CSV | LEDGER_MEMBERS_CSV | COLLECTIVES_CSV | RANKS_CSV => {
            Some(Step::Report)
        }
        TIMELINE | TABLES | POWER_SVG | ROOFLINE_CSV | MFU_CSV | REGIONS_CSV => Some(Step::Report),
        _ => None,
    }
}

/// Returns true if the file at `path` belongs to the pass with the folder `pass`, such as
/// `baseline` or `mock/nsys`: a file of the folder, a log, or the predictions. Files that are
/// written again from these do not.
pub fn is_of_pass(pass: &str, path: &str) -> bool {
    let side = [MOCK, EXTRACTED].into_iter().find(|side| pass.starts_with(&format!("{side}/")));
    if let Some(side) = side {
        let inside = |path: &str| path.strip_prefix(side)?.strip_prefix('/').map(str::to_owned);
        return inside(pass).zip(inside(path)).is_some_and(|(pass, path)| is_of_pass(&pass, &path));
    }
    if let Some(log) = path.strip_prefix(LOGS).and_then(|path| path.strip_prefix('/')) {
        let name = log.strip_suffix(".stdout.log").or_else(|| log.strip_suffix(".stderr.log"));
        return name.is_some_and(|name| is_log_of_pass(pass, name));
    }
    let in_folder = path.strip_prefix(pass).is_some_and(|rest| rest.starts_with('/'));
    let derived = path == NSYS_COVERAGE || path.ends_with(&format!("/{NCU_CHOICE}"));
    (in_folder && !derived) || (pass == BASELINE && path == PREDICTIONS)
}

/// Returns true if a process of the pass wrote the log `name`.
fn is_log_of_pass(pass: &str, name: &str) -> bool {
    let stem = pass.replace('/', "-");
    match name.strip_prefix(&stem) {
        Some("") => true,
        // A name of another process may start with this one.
        Some("-raw" | "-details") if pass.starts_with(NCU) => true,
        Some(_) if pass.starts_with(NCU) => false,
        Some(rest) => rest.starts_with('-') && rest != "-version",
        None => false,
    }
}

#[cfg(test)]
mod tests;
