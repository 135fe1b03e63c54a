//! Tables beyond the six: modules, static costs, experts, overhead, inputs, steps.
//!
//! Arranges figures that analysis made; computes none.

use super::{
    traced::recorded_only_note,
    work::{OPERATOR_COLUMNS, operator_cells},
};
use crate::{
    analyze::{
        Analysis,
        cost::{CONVENTIONS, Cost, CostOfModule, Traffic},
        stages::{DECODE, PREFILL},
    },
    report::{
        RunFacts,
        format::{UNKNOWN, bytes, count, decimals, known, ms, scaled},
        table::Table,
    },
};

const COSTS: &str = "From the architecture and the inputs alone, per pass; the paths are those of the operators.";
const COST_COLUMNS: [&str; 9] = [
    "Operator",
    "Kind",
    "#Parameters",
    "#Prefill FLOPs",
    "#Prefill bytes",
    "#Prefill activation",
    "#Decode FLOPs",
    "#Decode bytes",
    "#Decode activation",
];

/// Scopes that enclose operators, with what they enclose.
pub fn modules(analysis: &Analysis) -> Table {
    let columns = ["Module", "Stage", "#Calls", "#Inclusive ms", "#Exclusive ms", "#Mean ms", "#Device inclusive ms"];
    let caption = "Modules: inclusive of all that they enclose, exclusive of their parts.";
    let mut table = Table::new("modules", "Modules", caption, &columns);
    for record in analysis.operators.modules() {
        let stage = if record.stage.is_empty() { UNKNOWN } else { &record.stage };
        let device = known(record.device, |it| ms(it.inclusive_ms));
        let host = [record.inclusive_ms, record.exclusive_ms, record.mean_ms].map(|value| known(value, ms));
        let cells = std::iter::once(count(record.calls)).chain(host).chain([device]);
        table.row([record.path.clone(), stage.to_owned()].into_iter().chain(cells));
    }
    table.or_gap("No operator lies inside another one.", "Nothing is missing: operators are listed one by one.")
}

/// Every operator of every layer, longest total first.
pub fn operators_by_path(analysis: &Analysis) -> Table {
    let caption = "Each operator of each layer by itself, all measured repeats together, longest first.";
    let mut table = Table::new("operators-by-path", "Operators by layer", caption, &OPERATOR_COLUMNS);
    for record in analysis.operators.by_path.iter().filter(|record| record.op != "module") {
        table.row(operator_cells(record));
    }
    let (why, remedy) = analysis.why_no_operators();
    table.or_gap(why, remedy)
}

/// Device time per stage.
pub fn stage_kernels(analysis: &Analysis) -> Table {
    let caption = "Kernels per launching stage in the nsys pass; busy is the time in which a kernel, copy, fill or whole-traced graph of \
                   the stage ran, summed over GPUs.";
    let graphs = analysis.kernels.stages.iter().any(|it| it.graph_launches > 0);
    let mut columns = vec!["Stage", "#Launches", "#Kernel ms"];
    columns.extend(graphs.then_some(["#Whole graphs", "#Graphs ms"]).into_iter().flatten());
    columns.push("#Busy ms");
    let mut table = Table::new("stage-kernels", "Device time per stage", caption, &columns);
    for stage in &analysis.kernels.stages {
        let name = if stage.stage.is_empty() { "outside every stage".to_owned() } else { stage.stage.clone() };
        let mut cells = vec![name, count(stage.launches), known(stage.kernel_ms, ms)];
        cells.extend(graphs.then(|| [count(stage.graph_launches), ms(stage.graph_ms)]).into_iter().flatten());
        let sign = if stage.graph_launches > 0 { "≤ " } else { "" };
        cells.push(known(stage.busy_ms, |busy| format!("{sign}{}", ms(busy))));
        table.row(cells);
    }
    if !table.rows.is_empty() {
        table.notes.extend(recorded_only_note(analysis));
    }
    table
}

/// What the architecture needs, operator by operator.
pub fn costs(analysis: &Analysis) -> Table {
    match &analysis.cost {
        Some(cost) => cost_table(cost),
        None if analysis.start.as_ref().is_some_and(|start| start.target.is_some()) => {
            Table::new("costs", "Static costs", COSTS, &COST_COLUMNS).or_gap(
                "Costs are counted of whole models, and a part of one ran.",
                "`llmprof cost` tells those of each operator.",
            )
        }
        None => {
            let (why, remedy) = analysis.why_no_costs();
            Table::new("costs", "Static costs", COSTS, &COST_COLUMNS).or_gap(why, remedy)
        }
    }
}

/// A static cost by module, and the sum of all.
pub fn module_costs(cost: &Cost, by_module: &[CostOfModule]) -> Table {
    let columns =
        ["Module", "#Parameters", "#Weights", "#Prefill FLOP", "#Prefill activations", "#Decode FLOP", "#Decode activations"];
    let caption = "Operators summed by module; activations are bytes read and written, decode is all of its steps.";
    let mut table = Table::new("costs-by-module", "Costs by module", caption, &columns);
    let flops = |flops: u64| if flops == 0 { UNKNOWN.to_owned() } else { scaled(flops as f64, "FLOP") };
    let moved = |moved: u64| if moved == 0 { UNKNOWN.to_owned() } else { bytes(moved) };
    let all = CostOfModule {
        path: "all".into(),
        parameters: cost.parameters,
        weight_bytes: cost.weight_bytes,
        prefill_flops: cost.prefill_flops,
        decode_flops: cost.decode_flops,
        prefill_activation_bytes: cost.prefill.activation_bytes,
        decode_activation_bytes: cost.decode.activation_bytes,
    };
    for it in by_module.iter().chain([&all]) {
        table.row([
            it.path.clone(),
            count(it.parameters),
            moved(it.weight_bytes),
            flops(it.prefill_flops),
            moved(it.prefill_activation_bytes),
            flops(it.decode_flops),
            moved(it.decode_activation_bytes),
        ]);
    }
    table
}

/// The operators of a static cost, their sum, and what it was counted for.
pub fn cost_table(cost: &Cost) -> Table {
    let mut table = Table::new("costs", "Static costs", COSTS, &COST_COLUMNS);
    let flops = |flops: u64| if flops == 0 { UNKNOWN.to_owned() } else { scaled(flops as f64, "FLOP") };
    let moved = |moved: u64| if moved == 0 { UNKNOWN.to_owned() } else { bytes(moved) };
    let mut row = |path: &str, op: &str, parameters: u64, stages: [(u64, &Traffic); 2]| {
        let stages =
            stages.into_iter().flat_map(|(done, traffic)| [flops(done), moved(traffic.bytes), moved(traffic.output_bytes)]);
        let op = if op.is_empty() { UNKNOWN } else { op };
        table.row([path.to_owned(), op.to_owned(), count(parameters)].into_iter().chain(stages));
    };
    for it in &cost.modules {
        row(&it.path, &it.op, it.parameters, [(it.prefill_flops, &it.prefill), (it.decode_flops, &it.decode)]);
    }
    row("all", "", cost.parameters, [(cost.prefill_flops, &cost.prefill), (cost.decode_flops, &cost.decode)]);
    table.notes.push(format!(
        "A decoded token touches {} parameters ({}).",
        count(cost.active_parameters),
        bytes(cost.active_weight_bytes)
    ));
    table.notes.push(format!(
        "One position keeps {} of keys and values: {} after {PREFILL}, {} at the end.",
        bytes(cost.kv_bytes_per_token),
        bytes(cost.kv_bytes_after_prefill),
        bytes(cost.kv_bytes),
    ));
    if let Some(experts) = &cost.experts {
        table.notes.push(format!(
            "A layer of experts reads {} of {} in {PREFILL} by an even router, {} at most, and {} in a step of {DECODE}; shared ones beside \
             them. With all choices distinct {PREFILL} reads {} of weights.",
            decimals(experts.prefill_expected, 1),
            count(experts.experts),
            count(experts.prefill_at_most),
            count(experts.decode),
            bytes(cost.prefill.weight_bytes_at_most),
        ));
    }
    if cost.vision_flops > 0 {
        table.notes.push(format!("Vision needs {} of {PREFILL}'s FLOPs.", flops(cost.vision_flops)));
    }
    let work = format!("{} prompt positions and {} steps of {DECODE}.", count(cost.prompt_tokens), count(cost.decode_steps));
    table.notes.push(format!("Counted for {work}"));
    let sees = |convention: &&str| {
        (cost.vision_flops > 0 || !convention.starts_with("Vision"))
            && (cost.experts.is_some() || !convention.contains("experts"))
    };
    table.notes.extend(CONVENTIONS.iter().copied().filter(sees).map(str::to_owned));
    table
}

/// Experts hit per layer and stage.
pub fn experts(analysis: &Analysis) -> Table {
    let columns = ["Stage", "#Layer", "#Distinct, mean", "#Min", "#Max", "#Experts", "#Even router"];
    let caption = "Distinct experts per forward; an even router is what independent, equal choices would hit.";
    let mut table = Table::new("experts", "Expert use", caption, &columns);
    for it in &analysis.experts {
        table.row([
            it.stage.clone(),
            it.layer.to_string(),
            decimals(it.distinct.mean, 1),
            decimals(it.distinct.min, 0),
            decimals(it.distinct.max, 0),
            it.total.to_string(),
            known(it.expected, |expected| decimals(expected, 1)),
        ]);
    }
    table
}

/// Whether tracing changed the work, in time and in results.
pub fn outputs_and_overhead(analysis: &Analysis) -> Table {
    let columns = ["Stage", "#Plain ms", "#Traced ms", "#Overhead"];
    let mut table = Table::new("overhead", "Tracing overhead", "Stage times of the traced pass beside the plain one.", &columns);
    for it in &analysis.overhead {
        let sign = it.overhead_pct.map(|it| format!("{it:+.1} %"));
        table.row([it.stage.clone(), ms(it.plain_ms), ms(it.traced_ms), sign.unwrap_or_else(|| UNKNOWN.into())]);
    }
    let outputs = analysis.outputs;
    let same = [outputs.traced_tokens_equal, outputs.traced_logits_equal];
    if same == [Some(true); 2] {
        table.notes.push("Proven: the traced pass made the plain pass's tokens, from logits with the same hash.".into());
    } else if same.contains(&Some(false)) {
        table.notes.push("Not proven: the traced pass's outputs differ from the plain pass's.".into());
    }
    let (why, remedy) = analysis.why_no_overhead();
    table.or_gap(why, remedy)
}

/// The inputs, by hash.
pub fn inputs(facts: &RunFacts) -> Table {
    let columns = ["File", "#Bytes", "#Width", "#Height", "SHA-256"];
    let mut table = Table::new("inputs", "Inputs", "What the model was given.", &columns);
    for it in facts.inputs {
        table.row([it.path.clone(), count(it.bytes), it.width.to_string(), it.height.to_string(), it.sha256.clone()]);
    }
    table.or_gap("The run had no images.", "Nothing is missing: the prompt alone was given.")
}

/// The steps of the run, as they ended.
pub fn steps(facts: &RunFacts) -> Table {
    let columns = ["Step", "State", "Started", "Ended", "Message"];
    let mut table = Table::new("steps", "Steps", "What the run did, in order.", &columns);
    for it in facts.steps {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| UNKNOWN.into());
        table.row([it.step.to_string(), it.state.to_string(), it.started_at.clone(), text(&it.ended_at), text(&it.message)]);
    }
    table.or_gap("No step was recorded.", "Nothing ran.")
}
