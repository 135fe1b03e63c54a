//! Static costs: by operator and by module.

use llmprof_analyze::{
    Analysis,
    cost::{CONVENTIONS, Cost, CostOfModule, ModuleCost},
    stages::PREFILL,
};
use llmprof_core::domain::finding::catalogue;

use super::{
    report_table::ReportTable,
    schema::{TableColumn, bytes, count, flops, text},
};
use crate::format::{UNKNOWN, bytes as scaled_bytes, count as counted, decimals, scaled};

const CAPTION: &str = "From the architecture and the inputs alone, per pass; paths are those of \
                       the operators.";
const SHOWN: [&str; 9] = [
    "path",
    "op",
    "parameters",
    "prefill_flops",
    "prefill.bytes",
    "prefill.output_bytes",
    "decode_flops",
    "decode.bytes",
    "decode.output_bytes",
];
const MODULE_SHOWN: [&str; 7] = [
    "path",
    "parameters",
    "weight_bytes",
    "prefill_flops",
    "prefill_activation_bytes",
    "decode_flops",
    "decode_activation_bytes",
];
/// Path of the row that sums all others.
const ALL: &str = "all";

/// Columns of one stage's FLOPs and traffic.
macro_rules! stage_columns {
    ($stage:ident, $flops:ident, $title:literal) => {
        [
            flops(stringify!($flops), concat!($title, " FLOPs"), |it: &ModuleCost| {
                it.$flops.into()
            })
            .shown(|it| done(it.$flops)),
            count(
                concat!(stringify!($stage), ".calls"),
                concat!($title, " calls"),
                |it: &ModuleCost| it.$stage.calls.into(),
            ),
            bytes(
                concat!(stringify!($stage), ".weight_bytes"),
                concat!($title, " weights"),
                |it: &ModuleCost| it.$stage.weight_bytes.into(),
            ),
            bytes(
                concat!(stringify!($stage), ".max_weight_bytes"),
                concat!($title, " max weights"),
                |it: &ModuleCost| it.$stage.max_weight_bytes.into(),
            ),
            bytes(
                concat!(stringify!($stage), ".activation_bytes"),
                concat!($title, " activations"),
                |it: &ModuleCost| it.$stage.activation_bytes.into(),
            ),
            bytes(
                concat!(stringify!($stage), ".kv_read_bytes"),
                concat!($title, " KV read"),
                |it: &ModuleCost| it.$stage.kv_read_bytes.into(),
            ),
            bytes(
                concat!(stringify!($stage), ".kv_written_bytes"),
                concat!($title, " KV written"),
                |it: &ModuleCost| it.$stage.kv_written_bytes.into(),
            ),
            bytes(
                concat!(stringify!($stage), ".bytes"),
                concat!($title, " bytes"),
                |it: &ModuleCost| it.$stage.bytes.into(),
            )
            .shown(|it| moved(it.$stage.bytes)),
            bytes(
                concat!(stringify!($stage), ".output_bytes"),
                concat!($title, " outputs"),
                |it: &ModuleCost| it.$stage.output_bytes.into(),
            )
            .shown(|it| moved(it.$stage.output_bytes)),
        ]
    };
}
/// Columns of [`ModuleCost`].
pub fn columns() -> Vec<TableColumn<ModuleCost>> {
    let mut columns: Vec<TableColumn<ModuleCost>> = vec![
        text("path", "Operator", |it: &ModuleCost| (&it.path).into()),
        text("op", "Kind", |it| (&it.op).into()),
        count("parameters", "Parameters", |it| it.parameters.into()),
        bytes("weight_bytes", "Weights", |it| it.weight_bytes.into()),
    ];
    columns.extend(stage_columns!(prefill, prefill_flops, "Prefill"));
    columns.extend(stage_columns!(decode, decode_flops, "Decode"));
    columns
}

/// Columns of [`CostOfModule`].
fn module_columns() -> Vec<TableColumn<CostOfModule>> {
    vec![
        text("path", "Module", |it: &CostOfModule| (&it.path).into()),
        count("parameters", "Parameters", |it| it.parameters.into()),
        bytes("weight_bytes", "Weights", |it: &CostOfModule| it.weight_bytes.into())
            .shown(|it| moved(it.weight_bytes)),
        flops("prefill_flops", "Prefill FLOP", |it: &CostOfModule| it.prefill_flops.into())
            .shown(|it| done(it.prefill_flops)),
        bytes("prefill_activation_bytes", "Prefill activations", |it: &CostOfModule| {
            it.prefill_activation_bytes.into()
        })
        .shown(|it| moved(it.prefill_activation_bytes)),
        flops("decode_flops", "Decode FLOP", |it: &CostOfModule| it.decode_flops.into())
            .shown(|it| done(it.decode_flops)),
        bytes("decode_activation_bytes", "Decode activations", |it: &CostOfModule| {
            it.decode_activation_bytes.into()
        })
        .shown(|it| moved(it.decode_activation_bytes)),
    ]
}

/// Operations, or a dash for none.
fn done(flops: u64) -> String {
    if flops == 0 { UNKNOWN.to_owned() } else { scaled(flops as f64, "FLOP") }
}

/// Bytes, or a dash for none.
fn moved(bytes: u64) -> String {
    if bytes == 0 { UNKNOWN.to_owned() } else { scaled_bytes(bytes) }
}

/// The static cost of the run, operator by operator.
pub fn costs(analysis: &Analysis) -> ReportTable {
    let gap = |why: &str, remedy: &str| {
        let none: [ModuleCost; 0] = [];
        ReportTable::of("costs", "Static costs", CAPTION, (&columns(), &SHOWN), &none)
            .or_gap(why, remedy)
    };
    let shared = catalogue::STATED_MODEL_ON_SEVERAL_GPUS;
    let is_shared = analysis.findings.iter().any(|it| it.id == shared);
    match &analysis.cost {
        Some(cost) => cost_table(cost),
        None if analysis.start.as_ref().is_some_and(|start| start.target.is_some()) => gap(
            "Costs are counted for whole models; this run executed one part.",
            "`llmprof cost` counts each operator of the model.",
        ),
        None if analysis.samples.rows.len() > 1 => gap(
            "A static cost describes one prompt; this run has several samples.",
            "`llmprof cost` counts the operators of the model for one of them.",
        ),
        None if let Some(why) = analysis.why_refuted() => {
            gap(&why, catalogue::STATED_MODEL_REFUTED.advice.unwrap_or_default())
        }
        None if analysis.stated.is_some() && !is_shared => gap(
            "Repeats differ in their decode steps; a static cost is that of one number.",
            "`llmprof cost` counts the operators of a configured model.",
        ),
        None if analysis.stated.is_some() => gap(
            "The stated model ran on several GPUs or in several processes, and how they share it \
             is not known.",
            "Run it on one GPU.",
        ),
        None => {
            let (why, remedy) = analysis.why_no_costs();
            gap(why, remedy)
        }
    }
}

/// A static cost by module, with the sum.
pub fn module_costs(cost: &Cost, by_module: &[CostOfModule]) -> ReportTable {
    let caption = "Operators summed by module. Activations are bytes read and written; decode is \
                   the sum of all its steps.";
    let all = CostOfModule {
        path: ALL.into(),
        parameters: cost.parameters,
        weight_bytes: cost.weight_bytes,
        prefill_flops: cost.prefill_flops,
        decode_flops: cost.decode_flops,
        prefill_activation_bytes: cost.prefill.activation_bytes,
        decode_activation_bytes: cost.decode.activation_bytes,
    };
    ReportTable::of(
        "costs-by-module",
        "Costs by module",
        caption,
        (&module_columns(), &MODULE_SHOWN),
        by_module.iter().chain([&all]),
    )
}

/// The operators of a static cost, their sum, and the counted work.
pub fn cost_table(cost: &Cost) -> ReportTable {
    let all = ModuleCost {
        path: ALL.into(),
        op: String::new(),
        parameters: cost.parameters,
        weight_bytes: cost.weight_bytes,
        prefill_flops: cost.prefill_flops,
        decode_flops: cost.decode_flops,
        prefill: cost.prefill.clone(),
        decode: cost.decode.clone(),
    };
    let mut table = ReportTable::of(
        "costs",
        "Static costs",
        CAPTION,
        (&columns(), &SHOWN),
        cost.modules.iter().chain([&all]),
    );
    table.note(format!(
        "Counted for {} prompt positions and {} decode steps.",
        counted(cost.prompt_tokens),
        counted(cost.decode_steps)
    ));
    table.note(format!(
        "A decoded token uses {} parameters ({}).",
        counted(cost.active_parameters),
        scaled_bytes(cost.active_weight_bytes)
    ));
    table.note(format!(
        "The KV cache takes {} per position: {} after {PREFILL}, {} after the last token.",
        scaled_bytes(cost.kv_bytes_per_token),
        scaled_bytes(cost.kv_bytes_after_prefill),
        scaled_bytes(cost.kv_bytes),
    ));
    if let Some(experts) = &cost.experts {
        table.note(format!(
            "An expert layer reads {} of {} experts in {PREFILL} with an even router, at most {}, \
             and {} in a decode step, plus the shared ones. If all choices are distinct, \
             {PREFILL} reads {} of weights.",
            decimals(experts.prefill_expected, 1),
            counted(experts.experts),
            counted(experts.max_prefill),
            counted(experts.decode),
            scaled_bytes(cost.prefill.max_weight_bytes),
        ));
    }
    if cost.vision_flops > 0 {
        table.note(format!("Vision needs {} of {PREFILL}'s FLOPs.", done(cost.vision_flops)));
    }
    let applies = |convention: &&str| {
        (cost.vision_flops > 0 || !convention.starts_with("Vision"))
            && (cost.experts.is_some() || !convention.contains("experts"))
    };
    table.notes.extend(CONVENTIONS.iter().copied().filter(applies).map(str::to_owned));
    table
}
