//! Environment, aggregates, stages and MFU.
//!
//! Arranges figures that analysis made; computes none.

use crate::{
    analyze::{
        Analysis,
        cold::COLD_PART,
        mfu::{Ceilings, MfuRecord, WHOLE},
        stages::{DECODE, PREFILL},
        stats::Spread,
    },
    report::{
        RunFacts,
        format::{UNKNOWN, bytes, count, decimals, known, ms, pct, scaled},
        table::Table,
    },
    run::SubjectKind,
    trace::command::Timed,
};

/// Where and what the run ran.
pub fn environment(facts: &RunFacts, analysis: &Analysis) -> Table {
    let mut table = Table::new("environment", "Environment", "Where the run ran, and what it ran.", &["What", "Value"]);
    let mut add = |what: &str, value: Option<String>| table.row([what.to_owned(), value.unwrap_or_else(|| UNKNOWN.into())]);
    let env = facts.environment;
    let kind = facts.spec.kind();
    let what = match kind {
        SubjectKind::Model | SubjectKind::Part => "Model",
        SubjectKind::Command => "Command",
        SubjectKind::Import => "Capture",
    };
    add(what, Some(facts.spec.name().to_owned()));
    if let Some(command) = facts.command {
        add("Started as", Some(words(&command.words())));
        if let Some(client) = command.client_words() {
            add("Client", Some(words(&client)));
        }
        let variables = command.variables();
        add(
            "Variables",
            Some(if variables.is_empty() { "none beyond those of every child".into() } else { variables.join(", ") }),
        );
    }
    if let Some(start) = &analysis.start {
        if let Some(part) = &start.target {
            add("Part that ran alone", Some(part.clone()));
        }
        let size = format!("{} parameters, {} in {}", count(start.parameters), bytes(start.weight_bytes), start.dtype);
        add("Weights", Some(format!("{}: {size}", start.weights)));
        add("Device", Some(format!("{} ({} host threads)", start.device, start.threads)));
        let graph = if start.decode_graph { "a replayed CUDA graph" } else { "eager" };
        add("Decode", Some(graph.to_owned()));
        let images = match start.image_tokens {
            0 => String::new(),
            images => format!(", {} of them images", count(images)),
        };
        add("Prompt", Some(format!("{} positions{images}", count(start.prompt_tokens))));
    }
    for file in facts.spec.import().iter().flat_map(|import| &import.files) {
        add("Imported", Some(format!("{} ({}, {})", file.name, file.kind, bytes(file.bytes))));
    }
    if let Some(passes) = facts.spec.passes() {
        add("Mode", Some(format!("{}, {} repeats after {} of warm-up", passes.mode, passes.repeats, passes.warmup)));
    }
    if let Some(device) = &env.device {
        add("Ran on", Some(device.names().join(", ")));
    }
    for gpu in &env.gpus {
        add("GPU", Some(format!("{}: {}, {}, {}", gpu.index, gpu.name, bytes(gpu.memory_bytes), gpu.uuid)));
    }
    if env.gpus.is_empty() {
        add("GPU", Some(if kind.runs_here() { "none found" } else { "not recorded in the capture" }.into()));
    }
    add("Driver, CUDA", env.driver.as_ref().map(|driver| format!("{driver}, {}", env.cuda.as_deref().unwrap_or(UNKNOWN))));
    add("CPU", env.cpu.as_ref().map(|cpu| format!("{cpu} ({} usable)", known(env.cpus, |cpus| cpus.to_string()))));
    add("Memory", env.memory_bytes.map(bytes));
    add("Host", env.hostname.clone());
    add("System", env.os.as_ref().map(|os| format!("{os}, kernel {}", env.kernel.as_deref().unwrap_or(UNKNOWN))));
    for (tool, version) in [("nsys", &env.nsys), ("ncu", &env.ncu)] {
        // Of a capture only the version that recorded it counts, not what this host has.
        if kind.runs_here() || version.is_some() {
            add(tool, Some(version.clone().unwrap_or_else(|| "not found".into())));
        }
    }
    let commit = env.git_commit.as_ref().map(|commit| format!(", commit {commit}")).unwrap_or_default();
    add("llmprof", Some(format!("{}{commit}", env.llmprof)));
    table
}

/// Words of a command as they are told apart: those that are not plain are quoted.
fn words(words: &[String]) -> String {
    let plain =
        |word: &&String| !word.is_empty() && word.chars().all(|it| it.is_ascii_alphanumeric() || "-_./:=,@%+{}".contains(it));
    let shown: Vec<String> = words.iter().map(|it| if plain(&it) { it.clone() } else { format!("{it:?}") }).collect();
    shown.join(" ")
}

/// Latencies, rates, memory.
pub fn aggregates(analysis: &Analysis) -> Table {
    let stages = &analysis.stages;
    let caption = match analysis.command.as_ref().and_then(|command| command.plain_ms) {
        Some(whole) => format!("Wall times over {} unprofiled repeats; stages are of {}.", whole.n, analysis.times_of()),
        None => format!("Measured repeats: {}. Times are of {}.", stages.repeats, analysis.times_of()),
    };
    let mut table = Table::new("aggregates", "Aggregates", caption, &["What", "#Mean", "#Std", "#Min", "#Max", "Unit"]);
    let mut spread = |what: &str, values: Option<Spread>, unit: &str, show: fn(f64) -> String| {
        if let Some(it) = values {
            let cells = [show(it.mean), known(it.std, show), show(it.min), show(it.max)];
            table.row([what.to_owned()].into_iter().chain(cells).chain([unit.to_owned()]));
        }
    };
    if let Some(command) = &analysis.command {
        let what = if command.of == Timed::Client { "Client of the server" } else { "Whole process" };
        spread(what, command.plain_ms, "ms", ms);
        spread(&format!("{what}, under nsys"), command.traced_ms, "ms", ms);
    }
    spread("First token (prefill)", stages.first_token_ms, "ms", ms);
    spread("Per token (decode)", stages.per_token_ms, "ms", ms);
    spread("Single decode step", stages.step_ms, "ms", ms);
    spread("Whole pass", stages.wall_ms, "ms", ms);
    spread("Decode rate of a repeat", stages.decode_tokens_per_s, "tokens/s", |rate| decimals(rate, 1));
    spread("Token rate of a whole pass", stages.tokens_per_s, "tokens/s", |rate| decimals(rate, 1));
    let mut single = |what: &str, value: Option<String>, unit: &str| {
        if let Some(value) = value {
            let none = || UNKNOWN.to_owned();
            table.row([what.to_owned(), value, none(), none(), none(), unit.to_owned()]);
        }
    };
    single("Server ready", analysis.command.as_ref().and_then(|it| it.ready_ms).map(ms), "ms, after its start");
    single("Decode steps", stages.decode_steps.map(count), "per repeat");
    if let Some(end) = &analysis.end {
        single("Peak host memory", Some(bytes(end.peak_rss_bytes)), "process");
        single("Peak device memory", end.peak_device_bytes.map(bytes), "process");
    }
    if let Some(cost) = &analysis.cost {
        single("Keys and values kept", Some(bytes(cost.kv_bytes)), "at the end");
    }
    if let Some(start) = &analysis.start {
        single("Loading the model", Some(ms(start.load_ns as f64 / 1e6)), "ms, once");
    }
    let (why, remedy) = analysis.why_no_stages();
    table.or_gap(why, remedy)
}

/// Stage times; vision is a note.
pub fn stages(analysis: &Analysis) -> Table {
    let stages = &analysis.stages;
    let caption = format!(
        "Milliseconds per repeat, mean and sample deviation of {} repeats. Times are of {}.",
        stages.repeats,
        analysis.times_of()
    );
    let columns = ["Stage", "#Mean ms", "#Std ms", "#Min ms", "#Max ms", "#Share", "#Tokens", "#Tokens/s"];
    let mut table = Table::new("stages", "Per-Stage Timings", caption, &columns);
    for row in &stages.rows {
        table.row([
            row.stage.clone(),
            ms(row.ms.mean),
            known(row.ms.std, ms),
            ms(row.ms.min),
            ms(row.ms.max),
            known(row.share_pct, pct),
            known(row.tokens, count),
            known(row.tokens_per_s, |rate| decimals(rate, 1)),
        ]);
    }
    for cold in stages.notes.iter().filter(|note| note.part == COLD_PART) {
        let (ms, none) = (ms(cold.ms.mean), || UNKNOWN.to_owned());
        let cells = [ms.clone(), none(), ms.clone(), ms, none(), none(), none()];
        table.row([format!("{}, {COLD_PART}", cold.inside)].into_iter().chain(cells));
    }
    if let Some(vision) = stages.note("vision") {
        let parts: Vec<String> = stages
            .notes
            .iter()
            .filter(|note| note.part != "vision" && note.part != COLD_PART)
            .map(|note| format!("{} {} ms", note.part, ms(note.ms.mean)))
            .collect();
        let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
        let spread = known(vision.ms.std, |std| format!(" ± {}", ms(std)));
        let share = known(vision.share_pct, pct);
        table.notes.push(format!(
            "Vision takes {}{spread} ms{parts} inside {}: {share} of it. It is a part of that row, not a row of its own.",
            ms(vision.ms.mean),
            vision.inside,
        ));
    }
    let (why, remedy) = analysis.why_no_stages();
    table.or_gap(why, remedy)
}

/// Use of arithmetic and memory, against both ceilings.
pub fn mfu(analysis: &Analysis) -> Table {
    let columns = [
        "Scope",
        "#FLOPs",
        "#Achieved",
        "#MFU, datasheet",
        "#MFU, measured peak",
        "#MFU, at clocks",
        "#Operand bytes/s",
        "#Of datasheet bandwidth",
        "#Of measured copy",
        "#At clocks",
    ];
    let caption = "Model FLOPs utilisation: FLOPs the work needs / (time × peak), per repeat.";
    let mut table = Table::new("mfu", "MFU", caption, &columns);
    for row in &analysis.mfu.rows {
        table.row([
            row.scope.clone(),
            scaled(row.flops as f64, "FLOP"),
            known(row.flops_per_s, |rate| scaled(rate, "FLOP/s")),
            known(row.datasheet_pct, pct),
            known(row.measured_pct, pct),
            known(row.clocked_pct, pct),
            known(row.bytes_per_s, |rate| scaled(rate, "B/s")),
            known(row.datasheet_bandwidth_pct, pct),
            known(row.measured_bandwidth_pct, pct),
            known(row.clocked_bandwidth_pct, pct),
        ]);
    }
    if let Some(ceilings) = analysis.mfu.ceilings.as_ref().filter(|_| !table.rows.is_empty()) {
        table.notes.push(match (&ceilings.device, ceilings.datasheet_flops_per_s, &ceilings.datasheet_source) {
            (Some(device), Some(flops), Some(source)) => format!(
                "Datasheet: {device}, {} dense in {}, {} ({source}).",
                scaled(flops, "FLOP/s"),
                ceilings.dtype,
                known(ceilings.datasheet_bytes_per_s, |rate| scaled(rate, "B/s")),
            ),
            _ => "Datasheet: no peak is known for this device and number format, so no share of one is given.".into(),
        });
        table.notes.push(match (ceilings.measured_flops_per_s, ceilings.measured_bytes_per_s) {
            (None, None) => "Measured peak: the runner measured none.".into(),
            (flops, copy) => format!(
                "Measured on this device by the same process: {} in a {} matrix product, {} in a copy.",
                known(flops, |rate| scaled(rate, "FLOP/s")),
                ceilings.dtype,
                known(copy, |rate| scaled(rate, "B/s")),
            ),
        });
        if ceilings.datasheet_flops_per_s.is_some() {
            table.notes.push(at_clocks(analysis, ceilings));
        }
        let modelled = |row: &&MfuRecord| row.flops_source == "modelled" && matches!(row.scope.as_str(), PREFILL | DECODE);
        let scopes: Vec<&str> = analysis.mfu.rows.iter().filter(modelled).map(|row| row.scope.as_str()).collect();
        if !scopes.is_empty() {
            table.notes.push(format!(
                "FLOPs of {} are modelled from the architecture: not every call was recorded.",
                scopes.join(" and ")
            ));
        }
        table.notes.push("Operand bytes count every operand of every operator once; caches may serve part of them.".into());
    }
    let (why, remedy) = analysis.why_no_utilisation();
    table.or_gap(why, remedy)
}

/// What the peaks at observed clocks are made from, or why there are none.
fn at_clocks(analysis: &Analysis, ceilings: &Ceilings) -> String {
    let clocked = |row: &MfuRecord| {
        let told = (row.sm_mhz?, row.clocked_flops_per_s?);
        Some(format!("{} at {} MHz in {}", scaled(told.1, "FLOP/s"), decimals(told.0, 0), row.scope))
    };
    let told: Vec<String> = analysis.mfu.rows.iter().filter(|row| row.scope != WHOLE).filter_map(clocked).collect();
    match ceilings.datasheet_mhz {
        Some(mhz) if !told.is_empty() => format!(
            "At clocks: the datasheet's figure, which is for {} MHz, times the mean SM clock that was sampled over that: {}. Bandwidth \
             likewise, by the memory clock over the highest one.",
            decimals(mhz, 0),
            told.join(", "),
        ),
        Some(_) => "At clocks: no SM clock was sampled long enough, so no share of a peak at observed clocks is given.".into(),
        None => "At clocks: the clock that the datasheet's figure is for is not known, so no share of a peak at observed clocks is given."
            .into(),
    }
}
