//! The subject and the machine, in a sentence.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_analyze::timeline::{device_totals::DeviceTotals, gpu::StageGpu};
use llmprof_core::{
    domain::{
        device::{CPU, Device},
        subject::title,
    },
    trace::environment::Environment,
};

use super::cited::{Cited, Row};
use crate::{format::count, profile::ModelIdentity};

/// The records that name the subject of a run.
pub struct Subject<'a> {
    pub model: &'a ModelIdentity,
    /// Path of the part of the model that ran by itself.
    pub part: Option<&'a str>,
    /// Name of the command that ran in place of the model runner.
    pub command: Option<&'a str>,
    pub environment: &'a Environment,
    /// Decode steps of a repeat.
    pub steps: Option<u64>,
    /// GPUs with work; `None` if unknown.
    pub used_gpus: Option<u64>,
    pub is_import: bool,
    pub only_traced: bool,
    /// Unprofiled passes have times too.
    pub is_timed: bool,
}

/// True if no GPU was used.
pub(crate) fn is_on_cpu(model: &ModelIdentity, environment: &Environment) -> bool {
    let is_cpu = |it: &Device| it.is_cpu();
    model.device.as_deref() == Some(CPU) || environment.device.as_ref().is_some_and(is_cpu)
}

/// The GPU or processor, the sizes of the workload and the profiler, as far as they are known.
pub fn ran(subject: &Subject) -> Option<Cited> {
    let Subject { model, environment, .. } = subject;
    let machine = machine(model, environment, subject.used_gpus)?;
    let row = Row::of("model");
    let mut facts: Vec<Cited> = Vec::new();
    facts.extend(model.dtype.clone().map(Cited::name));
    let prompt = model.prompt_tokens.map(|it| row.count("prompt_tokens", it).quantity("token"));
    facts.extend(prompt.map(|it| Cited::of("prompt of {}", [it])));
    facts.extend(model.batch.map(|it| row.count("batch", it).quantity("sequence")));
    // A capture may show a part of a repeat.
    let steps = subject.steps.filter(|_| !subject.only_traced);
    let steps = steps.map(|it| Row::of("aggregates").count("decode_steps", it));
    facts.extend(steps.map(|it| it.quantity("decode step")));
    let command = || subject.command.map(|name| format!("The command {name}"));
    let named = model.name.clone().map(|name| title(name, subject.part.map(str::to_owned)));
    let name = named.or_else(command).unwrap_or_else(|| "The program".to_owned());
    let facts = match facts.is_empty() {
        true => Cited::default(),
        false => Cited::of(" ({})", [Cited::list(facts, ", ")]),
    };
    let versions = environment.cuda_versions().filter(|_| !is_on_cpu(model, environment));
    let versions = versions.map(|it| format!(" ({it})")).unwrap_or_default();
    let tool =
        tool(environment, subject.is_import).filter(|_| subject.only_traced && !subject.is_timed);
    let parts = [name, machine, versions, tool.unwrap_or_default()].map(Cited::name);
    let [name, machine, versions, tool] = parts;
    Some(Cited::of("{}{} ran on {}{}{}.", [name, facts, machine, versions, tool]))
}

/// The profiler, as the end of a sentence. The export of a report by nsys has the version that
/// exported it, and not the version that recorded it.
fn tool(environment: &Environment, is_import: bool) -> Option<String> {
    if let Some(profiler) = &environment.profiler {
        return Some(format!(", recorded by {profiler}"));
    }
    let verb = if is_import { "exported" } else { "recorded" };
    Some(format!(", {verb} by nsys {}", environment.nsys.as_ref()?))
}

/// GPUs with work in these stages, or in a capture without stages.
pub fn used_gpus(
    stages: &[StageGpu],
    devices: &[StageGpu],
    totals: Option<&DeviceTotals>,
) -> Option<u64> {
    let named: BTreeSet<u32> = devices.iter().filter_map(|it| it.device).collect();
    let most = stages.iter().map(|it| it.devices.max(named.len() as u64)).max();
    most.filter(|it| *it > 0).or_else(|| totals.map(|it| it.devices))
}

fn machine(
    model: &ModelIdentity,
    environment: &Environment,
    used_gpus: Option<u64>,
) -> Option<String> {
    if is_on_cpu(model, environment) {
        return environment.cpu.as_ref().map(|cpu| format!("the processor {cpu}"));
    }
    if let Some(product) = environment.device.as_ref().and_then(|it| it.product.clone()) {
        return Some(product);
    }
    let mut names: BTreeMap<&str, u64> = BTreeMap::new();
    let known = environment.gpus.iter().map(|it| it.name.trim()).filter(|it| !it.is_empty());
    for name in known {
        *names.entry(name).or_default() += 1;
    }
    let named = |(name, gpus): (&str, u64)| match gpus {
        1 => name.to_owned(),
        gpus => format!("{} x {name}", count(gpus)),
    };
    let found: u64 = names.values().sum();
    // Which of several kinds did the work is unknown.
    let used = used_gpus.filter(|used| *used < found);
    let (host, names) = match (used, names.len()) {
        (Some(used), 1) if used > 0 => ("", names.into_keys().map(|it| (it, used)).collect()),
        (Some(_), _) => ("a host with ", names),
        (None, _) => ("", names),
    };
    let names: Vec<String> = names.into_iter().map(named).collect();
    (!names.is_empty()).then(|| format!("{host}{}", names.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_in_an_export_of_nsys_is_the_one_that_exported_it() {
        for (profiler, nsys, is_import, words) in [
            (None, Some("2025.3.2"), true, Some(", exported by nsys 2025.3.2")),
            (None, Some("2025.3.2"), false, Some(", recorded by nsys 2025.3.2")),
            (Some("PyTorch profiler"), None, true, Some(", recorded by PyTorch profiler")),
            (None, None, true, None),
        ] {
            let owned = |it: Option<&str>| it.map(str::to_owned);
            let (profiler, nsys) = (owned(profiler), owned(nsys));
            let environment = Environment { profiler, nsys, ..Environment::default() };
            assert_eq!(tool(&environment, is_import).as_deref(), words);
        }
    }
}
