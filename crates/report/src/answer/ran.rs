//! The subject and the machine, in a sentence.

use std::collections::BTreeMap;

use llmprof_core::trace::environment::Environment;

use super::cited::{Cited, Row};
use crate::{format::count, profile::ModelIdentity};

/// The GPU or processor, the sizes of the workload and the profiler, as far as they are known.
pub fn ran(model: &ModelIdentity, environment: &Environment, only_traced: bool) -> Option<Cited> {
    let machine = machine(model, environment)?;
    let row = Row::of("model");
    let mut facts: Vec<Cited> = Vec::new();
    facts.extend(model.dtype.clone().map(Cited::name));
    let prompt = model.prompt_tokens.map(|it| row.count("prompt_tokens", it).quantity("token"));
    facts.extend(prompt.map(|it| Cited::of("prompt of {}", [it])));
    facts.extend(model.batch.map(|it| row.count("batch", it).quantity("sequence")));
    let name = model.name.clone().unwrap_or_else(|| "The program".to_owned());
    let facts = match facts.is_empty() {
        true => Cited::default(),
        false => Cited::of(" ({})", [Cited::list(facts, ", ")]),
    };
    let versions = [("driver", &environment.driver), ("CUDA", &environment.cuda)];
    let versions: Vec<String> = versions
        .into_iter()
        .filter_map(|(of, it)| Some(format!("{of} {}", it.as_ref()?)))
        .collect();
    let versions = if versions.is_empty() || model.device.as_deref() == Some("cpu") {
        String::new()
    } else {
        format!(" ({})", versions.join(", "))
    };
    let tool = environment
        .profiler
        .clone()
        .or_else(|| Some(format!("nsys {}", environment.nsys.as_ref()?)));
    let tool = tool.filter(|_| only_traced).map(|it| format!(", recorded by {it}"));
    let parts = [name, machine, versions, tool.unwrap_or_default()].map(Cited::name);
    let [name, machine, versions, tool] = parts;
    Some(Cited::of("{}{} ran on {}{}{}.", [name, facts, machine, versions, tool]))
}

fn machine(model: &ModelIdentity, environment: &Environment) -> Option<String> {
    if model.device.as_deref() == Some("cpu") {
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
    let names: Vec<String> = names.into_iter().map(named).collect();
    (!names.is_empty()).then(|| names.join(" and "))
}
