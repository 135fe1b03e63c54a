//! Known engines: how to capture each, the names of its steps and of its kernels.
//!
//! The facts are data with their sources: `conf/engines/`.

use std::{collections::BTreeMap, sync::LazyLock};

use regex::{Captures, Regex};
use serde::Deserialize;

use super::engine_steps::StepClass;
use crate::domain::named_values::named_values;

/// Engines with steps of their own first; kernels of PyTorch are the least specific.
const FILES: [&str; 7] = [
    include_str!("../../../../conf/engines/vllm.toml"),
    include_str!("../../../../conf/engines/sglang.toml"),
    include_str!("../../../../conf/engines/atom.toml"),
    include_str!("../../../../conf/engines/tensorrt-llm.toml"),
    include_str!("../../../../conf/engines/llama-cpp.toml"),
    include_str!("../../../../conf/engines/jax.toml"),
    include_str!("../../../../conf/engines/transformers.toml"),
];

/// An engine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    pub name: String,
    /// Name in sentences, with the versions.
    pub title: String,
    /// Kind of record that has its steps.
    pub steps_in: String,
    /// Parts of kernel names that no engine before has, in lower case; `^` is the start of a name.
    pub kernels: Vec<String>,
    /// The line that adds the ranges of steps to a capture; `None` where no line is known.
    pub ranges: Option<String>,
    /// Commands of a capture, in their order.
    pub capture: Vec<CaptureCommand>,
    /// Names of steps; compiled, they are in [`KnownEngine`].
    #[serde(default)]
    steps: Vec<StepName>,
}

/// One command of a capture.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureCommand {
    pub step: CaptureStep,
    pub command: String,
    pub note: Option<String>,
    /// Address of the page that the command is from.
    pub source: String,
}

named_values! {
    /// Purpose of a command.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    CaptureStep {
        /// Starts the engine under a profiler.
        Start = "start",
        /// Opens a window of the recording.
        Open = "open",
        /// Sends a request.
        Query = "query",
        /// Closes the window.
        Close = "close",
        /// Adds ranges to a program.
        Ranges = "ranges",
    }
}

/// The names of steps of one form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepName {
    pub example: String,
    /// A regular expression with groups of counts, a group `mode`, or a group `fields` of words
    /// `key=number`.
    pattern: String,
    /// Class of each known mode.
    #[serde(default)]
    modes: BTreeMap<String, StepClass>,
    /// Count of each known key of `fields`.
    #[serde(default)]
    fields: BTreeMap<String, String>,
}

impl StepName {
    /// The class of a mode.
    pub(super) fn class_of(&self, mode: &str) -> StepClass {
        self.modes.get(mode).copied().unwrap_or(StepClass::Other)
    }

    /// The counts of a name that matches, as written.
    pub(super) fn values<'a>(
        &'a self,
        found: &Captures<'a>,
        regex: &'a Regex,
    ) -> Vec<(&'a str, &'a str)> {
        let groups =
            regex.capture_names().flatten().filter(|key| !["mode", "fields"].contains(key));
        let groups = groups.filter_map(|key| Some((key, found.name(key)?.as_str())));
        let fields = found.name("fields").map_or("", |it| it.as_str()).split(' ');
        let field = |field: &'a str| {
            let (key, value) = field.split_once('=')?;
            Some((self.fields.get(key)?.as_str(), value))
        };
        groups.chain(fields.filter_map(field)).collect()
    }
}

/// The compiled pattern of a name.
pub(super) struct StepPattern {
    pub name: StepName,
    pub regex: Regex,
}

/// An example of the name of a step for each form that an engine writes.
pub fn step_examples(engine: &str) -> impl Iterator<Item = &'static str> {
    let known = KNOWN.iter().filter(move |it| it.engine.name == engine);
    known.flat_map(|it| it.patterns.iter().map(|it| it.name.example.as_str()))
}

/// An engine and the compiled patterns of its steps.
pub(super) struct KnownEngine {
    pub engine: Engine,
    pub patterns: Vec<StepPattern>,
}

static KNOWN: LazyLock<Vec<KnownEngine>> = LazyLock::new(|| {
    let read = |text: &&str| {
        let mut engine: Engine =
            toml::from_str(text).expect("the embedded engines parse: a test reads each");
        let compiled = |name: StepName| {
            let regex = Regex::new(&name.pattern);
            StepPattern { regex: regex.expect("each pattern compiles: a test uses each"), name }
        };
        KnownEngine { patterns: engine.steps.drain(..).map(compiled).collect(), engine }
    };
    FILES.iter().map(read).collect()
});

pub(super) fn known() -> &'static [KnownEngine] {
    &KNOWN
}

/// All engines.
pub fn engines() -> impl Iterator<Item = &'static Engine> {
    KNOWN.iter().map(|it| &it.engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::engine_steps::engine_step;

    #[test]
    fn every_engine_has_commands_with_sources_and_steps_of_its_own() {
        let names: Vec<&str> = engines().map(|it| it.name.as_str()).collect();
        let expected =
            ["vllm", "sglang", "atom", "tensorrt-llm", "llama-cpp", "jax", "transformers"];
        assert_eq!(names, expected);
        for engine in engines() {
            let has_steps = step_examples(&engine.name).next().is_some();
            assert!(!engine.kernels.is_empty() || has_steps, "{}", engine.name);
            assert!(!engine.capture.is_empty(), "{}", engine.name);
            assert!(engine.kernels.iter().all(|part| *part == part.to_lowercase()));
            assert_eq!(engine.capture[0].step, CaptureStep::Start);
            for command in &engine.capture {
                assert!(command.source.starts_with("https://"), "{}", command.command);
                assert!(!command.command.trim().is_empty());
            }
        }
        for (known, step) in known().iter().flat_map(|it| it.patterns.iter().map(move |p| (it, p)))
        {
            let example = &step.name.example;
            let found = engine_step(example).map(|it| (it.engine, it.form));
            assert_eq!(found, Some((known.engine.name.as_str(), example.as_str())));
            let counts = ["requests", "tokens", "keys", "products"];
            let counts = counts
                .iter()
                .flat_map(|it| [(*it).to_owned(), format!("prefill_{it}"), format!("decode_{it}")]);
            let counts: Vec<String> = counts.collect();
            assert!(step.name.fields.values().all(|it| counts.contains(it)), "{example}");
        }
    }
}
