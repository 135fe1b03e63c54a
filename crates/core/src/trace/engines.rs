//! Known engines: how to capture each, the names of its steps and of its kernels.
//!
//! The facts are data with their sources: `conf/engines/`.

use std::{collections::BTreeMap, sync::LazyLock};

use regex::{Captures, Regex};
use serde::Deserialize;

use super::{engine_steps::StepClass, framework::TimelineTool};
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
    /// The line that adds the ranges of steps to a capture by nsys; `None` if none is known.
    pub ranges: Option<String>,
    /// The same for a trace by the profiler of PyTorch, which records no NVTX ranges.
    pub torch_ranges: Option<String>,
    /// A regular expression of names that look like steps; each form in `steps` looks like one.
    like: Option<String>,
    /// Commands of a capture, in their order.
    pub capture: Vec<CaptureCommand>,
    /// Names of steps; compiled, they are in [`KnownEngine`].
    #[serde(default)]
    steps: Vec<StepName>,
    /// Ranges around parts of a step, whose names do not carry its work.
    scopes: Option<StepScopes>,
}

impl Engine {
    /// The line that adds the ranges of steps to a capture by this profiler; `None` if none is
    /// known.
    pub fn ranges_for(&self, tool: TimelineTool) -> Option<&str> {
        match tool {
            TimelineTool::Nsys => self.ranges.as_deref(),
            TimelineTool::Pytorch => self.torch_ranges.as_deref(),
        }
    }
}

/// Ranges around the parts of a step, one after another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepScopes {
    /// Name of the steps.
    pub name: String,
    /// A regular expression with a group `scope`.
    pattern: String,
    /// The scope that each step has once.
    pub forward: String,
    /// Scopes in their order in a step.
    pub order: Vec<String>,
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

/// The regular expression of a name, alone or wrapped: after a prefix that ends in a colon, slash
/// or space, and before a suffix that starts with a space.
fn wrapped(pattern: &str, end: &str) -> Regex {
    let regex = Regex::new(&format!("(?:^|[:/ ])(?:{pattern}){end}"));
    regex.expect("each pattern compiles: a test uses each")
}

const END: &str = "(?:$| )";

/// An example of the name of a step for each form that an engine writes.
pub fn step_examples(engine: &str) -> impl Iterator<Item = &'static str> {
    let known = KNOWN.iter().filter(move |it| it.engine.name == engine);
    known.flat_map(|it| it.patterns.iter().map(|it| it.name.example.as_str()))
}

/// An engine and the compiled patterns of its steps.
pub(super) struct KnownEngine {
    pub engine: Engine,
    pub patterns: Vec<StepPattern>,
    like: Option<Regex>,
    scope: Option<Regex>,
}

impl KnownEngine {
    pub fn is_like_step(&self, name: &str) -> bool {
        self.like.as_ref().is_some_and(|it| it.is_match(name))
    }

    /// Scopes of the engine, and the one that a range of this name is.
    pub fn scope<'a>(&'static self, name: &'a str) -> Option<(&'static StepScopes, &'a str)> {
        let found = self.scope.as_ref()?.captures(name)?;
        Some((self.engine.scopes.as_ref()?, found.name("scope")?.as_str()))
    }
}

static KNOWN: LazyLock<Vec<KnownEngine>> = LazyLock::new(|| {
    let read = |text: &&str| {
        let mut engine: Engine =
            toml::from_str(text).expect("the embedded engines parse: a test reads each");
        let compiled = |name: StepName| StepPattern { regex: wrapped(&name.pattern, END), name };
        KnownEngine {
            patterns: engine.steps.drain(..).map(compiled).collect(),
            like: engine.like.as_ref().map(|it| wrapped(it, "")),
            scope: engine.scopes.as_ref().map(|it| wrapped(&it.pattern, END)),
            engine,
        }
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
            assert!(known.is_like_step(example), "{example}");
            let counts = ["requests", "tokens", "keys", "products", "squares"];
            let counts = counts
                .iter()
                .flat_map(|it| [(*it).to_owned(), format!("prefill_{it}"), format!("decode_{it}")]);
            let counts: Vec<String> = counts.collect();
            assert!(step.name.fields.values().all(|it| counts.contains(it)), "{example}");
        }
    }
}
