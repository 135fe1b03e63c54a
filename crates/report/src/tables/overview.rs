//! Environment: the host, its tools, and the program that ran.

use llmprof_analyze::{Analysis, samples::SampleTiming};
use llmprof_core::{
    domain::{command::CommandPlan, stated_model::StatedModel, subject::SubjectKind},
    trace::{
        environment::{Environment, HostLoad},
        event::Start,
    },
};

use super::report_table::ReportTable;
use crate::{
    RunFacts,
    format::{UNKNOWN, bytes, count, known, quantity},
};

type Rows = Vec<(&'static str, Option<String>)>;

/// The run's host and subject.
pub fn environment(facts: &RunFacts, analysis: &Analysis) -> ReportTable {
    let mut table = ReportTable::new(
        "environment",
        "Environment",
        "The host, and the program that ran.",
        &["Property", "Value"],
    );
    let mut rows = subject(facts);
    if let Some(command) = facts.command {
        rows.extend(command_rows(command));
    }
    if let Some(start) = &analysis.start {
        rows.extend(model_rows(start, &analysis.samples.rows));
    }
    let property =
        if analysis.refutations.is_empty() { "Stated model" } else { "Stated model, not used" };
    rows.extend(analysis.stated.iter().map(|stated| (property, Some(stated_text(stated)))));
    for file in facts.spec.import().iter().flat_map(|import| &import.files) {
        let size = bytes(file.bytes);
        rows.push(("Imported", Some(format!("{} ({}, {size})", file.name, file.kind))));
    }
    if let Some(passes) = facts.spec.passes() {
        let of_each = match analysis.samples.rows.len() {
            0 => String::new(),
            samples => format!(", of each of {samples} samples"),
        };
        let mode = format!(
            "{}, {} after {} of warm-up{of_each}",
            passes.mode,
            quantity(passes.repeats.into(), "repeat"),
            passes.warmup
        );
        rows.push(("Mode", Some(mode)));
    }
    rows.extend(gpu_rows(facts));
    rows.extend(host_rows(facts.environment));
    rows.extend(facts.environment.load.iter().map(load_row));
    rows.extend(tool_rows(facts));
    for (name, value) in rows {
        table.row([name.to_owned(), value.unwrap_or_else(|| UNKNOWN.into())]);
    }
    table
}

fn subject(facts: &RunFacts) -> Rows {
    let kind = match facts.spec.kind() {
        SubjectKind::Model | SubjectKind::Part => "Model",
        SubjectKind::Command => "Command",
        SubjectKind::Import => "Capture",
    };
    vec![(kind, Some(facts.spec.name().to_owned()))]
}

fn command_rows(command: &CommandPlan) -> Rows {
    let mut rows = vec![("Command line", Some(words(&command.command_line())))];
    rows.extend(command.client_command_line().map(|client| ("Client", Some(words(&client)))));
    let variables = command.variables();
    let variables = match variables.is_empty() {
        true => "those of every child process".into(),
        false => variables.join(", "),
    };
    rows.push(("Variables", Some(variables)));
    rows
}

fn model_rows(start: &Start, samples: &[SampleTiming]) -> Rows {
    let size = format!(
        "{} parameters, {} in {}",
        count(start.parameters),
        bytes(start.weight_bytes),
        start.dtype
    );
    let decode = if start.decode_graph { "a replayed CUDA graph" } else { "eager" };
    let mut rows: Rows =
        start.target.iter().map(|part| ("Executed part", Some(part.clone()))).collect();
    rows.extend([
        ("Weights", Some(format!("{}: {size}", start.weights))),
        ("Device", Some(format!("{} ({} host threads)", start.device, start.threads))),
        ("Decode", Some(decode.to_owned())),
        ("Prompt", Some(prompt(start, samples))),
    ]);
    rows
}

/// A stated model in one line.
fn stated_text(stated: &StatedModel) -> String {
    let steps = stated.new_tokens.map(|tokens| format!(", {} new", count(tokens)));
    format!(
        "{}, {}, prompt of {} tokens{}, batch {}",
        stated.model.name,
        stated.dtype,
        count(stated.prompt_tokens),
        steps.unwrap_or_default(),
        count(stated.batch)
    )
}

/// Length of the prompt, or range of the lengths of several.
fn prompt(start: &Start, samples: &[SampleTiming]) -> String {
    let lengths = || samples.iter().map(|sample| sample.prompt_tokens);
    if let (Some(shortest), Some(longest)) = (lengths().min(), lengths().max()) {
        let (shortest, longest) = (count(shortest), count(longest));
        return format!("{} samples of {shortest} to {longest} positions", samples.len());
    }
    let images = match start.image_tokens {
        0 => String::new(),
        images => format!(", {} of them images", count(images)),
    };
    let positions = format!("{} positions{images}", count(start.prompt_tokens));
    let (Some(shortest), Some(longest)) =
        (start.sequences.iter().min(), start.sequences.iter().max())
    else {
        return positions;
    };
    let of_each = match shortest == longest {
        true => count(*longest),
        false => format!("{} to {}", count(*shortest), count(*longest)),
    };
    format!("a batch of {} sequences of {of_each}: {positions}", count(start.batch()))
}

fn gpu_rows(facts: &RunFacts) -> Rows {
    let env = facts.environment;
    let mut rows: Rows =
        env.device.iter().map(|it| ("Ran on", Some(it.names().join(", ")))).collect();
    rows.extend(env.gpus.iter().map(|gpu| {
        let memory = bytes(gpu.memory_bytes);
        // The profiler of PyTorch records no UUID.
        let uuid = if gpu.uuid.is_empty() { String::new() } else { format!(", {}", gpu.uuid) };
        let name = if gpu.name.is_empty() { "name not recorded" } else { gpu.name.as_str() };
        ("GPU", Some(format!("{}: {name}, {memory}{uuid}", gpu.index)))
    }));
    if env.gpus.is_empty() {
        let runs_here = facts.spec.kind().runs_here();
        let none = if runs_here { "none found" } else { "not recorded in the capture" };
        rows.push(("GPU", Some(none.into())));
    }
    rows
}

fn host_rows(env: &Environment) -> Rows {
    let with = |name: &Option<String>, what: &dyn Fn(&str) -> String| name.as_deref().map(what);
    let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| UNKNOWN.into());
    vec![
        ("Driver and CUDA", env.cuda_versions()),
        (
            "CPU",
            with(&env.cpu, &|it| {
                format!("{it} ({} usable)", known(env.cpus, |cpus| cpus.to_string()))
            }),
        ),
        ("Memory", env.memory_bytes.map(bytes)),
        ("Host", env.hostname.clone()),
        ("System", with(&env.os, &|it| format!("{it}, kernel {}", or_unknown(&env.kernel)))),
    ]
}

/// Load of the host during the unprofiled pass.
fn load_row(load: &HostLoad) -> (&'static str, Option<String>) {
    let average = |load: Option<f64>| known(load, |load| format!("{load:.2}"));
    let text = load.cpu_wait_pct.map(|waited| {
        format!(
            "tasks waited for a CPU during {waited:.1} % of the unprofiled pass; load average {} \
             at its start, {} at its end",
            average(load.load_start),
            average(load.load_end)
        )
    });
    ("Host load", text)
}

fn tool_rows(facts: &RunFacts) -> Rows {
    let (env, mut rows) = (facts.environment, Rows::new());
    rows.extend(env.profiler.clone().map(|it| ("Profiler", Some(it))));
    for (tool, version) in [("nsys", &env.nsys), ("ncu", &env.ncu)] {
        // The version of an imported capture counts, not the one of this host: nsys states the
        // version that exported the report.
        let runs_here = facts.spec.kind().runs_here();
        let name = if tool == "nsys" && !runs_here { "nsys of the export" } else { tool };
        if runs_here || version.is_some() {
            rows.push((name, Some(version.clone().unwrap_or_else(|| "not found".into()))));
        }
    }
    let commit = env.git_commit.as_ref().map(|commit| format!(", commit {commit}"));
    rows.push(("llmprof", Some(format!("{}{}", env.llmprof, commit.unwrap_or_default()))));
    rows
}

/// The words of a command; a word with special characters is quoted.
fn words(words: &[String]) -> String {
    let plain = |word: &&String| {
        !word.is_empty()
            && word.chars().all(|it| it.is_ascii_alphanumeric() || "-_./:=,@%+{}".contains(it))
    };
    let shown: Vec<String> =
        words.iter().map(|it| if plain(&it) { it.clone() } else { format!("{it:?}") }).collect();
    shown.join(" ")
}
