//! Known engines: how to capture each, the names of its steps and of its kernels.
//!
//! The facts are data with their sources: `conf/engines/`.

use std::sync::LazyLock;

use regex::Regex;
use serde::Deserialize;

use crate::domain::named_values::named_values;

/// Engines with steps of their own first; kernels of PyTorch are the least specific.
const FILES: [&str; 6] = [
    include_str!("../../../../conf/engines/vllm.toml"),
    include_str!("../../../../conf/engines/sglang.toml"),
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
    /// Names of steps.
    #[serde(default)]
    pub steps: Vec<StepName>,
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
    /// A regular expression with groups of counts.
    pattern: String,
}

/// An engine and the compiled patterns of its steps.
pub(super) struct KnownEngine {
    pub engine: Engine,
    pub patterns: Vec<Regex>,
}

static KNOWN: LazyLock<Vec<KnownEngine>> = LazyLock::new(|| {
    let read = |text: &&str| {
        let engine: Engine =
            toml::from_str(text).expect("the embedded engines parse: a test reads each");
        let patterns = engine.steps.iter().map(|step| {
            Regex::new(&step.pattern).expect("the embedded patterns compile: a test uses each")
        });
        KnownEngine { patterns: patterns.collect(), engine }
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
        let expected = ["vllm", "sglang", "tensorrt-llm", "llama-cpp", "jax", "transformers"];
        assert_eq!(names, expected);
        for engine in engines() {
            assert!(!engine.kernels.is_empty() && !engine.capture.is_empty(), "{}", engine.name);
            assert!(engine.kernels.iter().all(|part| *part == part.to_lowercase()));
            assert_eq!(engine.capture[0].step, CaptureStep::Start);
            for command in &engine.capture {
                assert!(command.source.starts_with("https://"), "{}", command.command);
                assert!(!command.command.trim().is_empty());
            }
            for step in &engine.steps {
                let found = engine_step(&step.example).map(|it| it.engine);
                assert_eq!(found, Some(engine.name.as_str()), "{}", step.example);
            }
        }
    }
}
