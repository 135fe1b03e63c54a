//! `llmprof engines`: the known engines, and how to capture each.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use clap::Args;
use llmprof_core::{
    domain::settings::nearest,
    trace::{
        engines::{CaptureStep, Engine, engines, step_examples},
        framework::TimelineTool,
    },
};

use super::client::terminal;

/// List the known engines, or print how to capture one
///
/// Every command is printed with the page that it is from. Steps of these engines are stages by the
/// names of their ranges; a capture without them is searched for steps by the order of its kernels.
#[derive(Debug, Args)]
pub struct EnginesOptions {
    /// Engine: vllm, sglang, atom, tensorrt-llm, llama-cpp, jax or transformers [default: all]
    name: Option<String>,
}

pub fn run(options: &EnginesOptions) -> Result<()> {
    let text = match &options.name {
        None => table(),
        Some(name) => match engines().find(|it| it.name == *name) {
            Some(engine) => guide(engine),
            None => {
                let known: Vec<&str> = engines().map(|it| it.name.as_str()).collect();
                let near = nearest(name, known.iter().copied())
                    .map(|near| format!(" (did you mean {near}?)"))
                    .unwrap_or_default();
                bail!("unknown engine {name:?}{near}; expected {}", known.join(", "));
            }
        },
    };
    terminal::print(&text)?;
    Ok(())
}

/// One line per engine.
fn table() -> String {
    let mut text = format!("{:14}{:26}{:20}KERNELS\n", "ENGINE", "TITLE", "STEPS IN");
    for engine in engines() {
        let Engine { name, title, steps_in, kernels, .. } = engine;
        _ = writeln!(text, "{name:14}{title:26}{steps_in:20}{}", kernels.join(" "));
    }
    text.push_str("\n`llmprof engines NAME` prints how to capture one.\n");
    text
}

/// The commands of a capture, in their order.
fn guide(engine: &Engine) -> String {
    let mut text = format!("{}\n", engine.title);
    for (at, command) in engine.capture.iter().enumerate() {
        let title = match command.step {
            CaptureStep::Start => "Start it under the profiler",
            CaptureStep::Open => "Open the window",
            CaptureStep::Query => "Send a request",
            CaptureStep::Close => "Close the window",
            CaptureStep::Ranges => "Add ranges to a program of your own",
        };
        _ = write!(text, "\n{}. {title} ({})\n", at + 1, command.source);
        for line in command.command.trim().lines() {
            _ = writeln!(text, "       {line}");
        }
        if let Some(note) = &command.note {
            _ = writeln!(text, "   {note}");
        }
    }
    text.push('\n');
    let mut has_ranges = false;
    for tool in [TimelineTool::Nsys, TimelineTool::Pytorch] {
        if let Some(ranges) = engine.ranges_for(tool) {
            has_ranges = true;
            _ = writeln!(text, "Ranges of steps by {}: {ranges}", tool.as_str());
        }
    }
    if !has_ranges {
        text.push_str("It opens no ranges: steps are found by the order of kernels.\n");
    }
    for example in step_examples(&engine.name) {
        _ = writeln!(text, "Name of a step:  {example}");
    }
    if !engine.kernels.is_empty() {
        _ = writeln!(text, "Its kernels:     {}", engine.kernels.join(", "));
    }
    text
}
