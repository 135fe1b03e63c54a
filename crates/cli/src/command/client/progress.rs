//! The progress of a followed run: a line per step, and on a terminal a bar with elapsed time,
//! estimate and pending steps.

use std::{io::IsTerminal, time::Duration};

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use super::{
    answers::{RunAnswer, StepAnswer},
    events::RunUpdate,
    terminal::{between, duration, escaped, print_notice, since},
};

/// Display of one run.
pub struct RunProgress {
    bar: ProgressBar,
    /// The run as of the last answer.
    run: Option<RunAnswer>,
    /// Steps whose end was printed, by name and start.
    printed: Vec<(String, String)>,
    /// Phase of the running step: name, done, total.
    phase: Option<(String, u64, u64)>,
}

impl RunProgress {
    /// Lines go to standard error, where the bar is.
    pub fn new() -> Result<Self> {
        let style = ProgressStyle::with_template("{spinner} {wide_msg}").context("the bar")?;
        let bar = ProgressBar::no_length().with_style(style);
        if std::io::stderr().is_terminal() {
            bar.enable_steady_tick(Duration::from_millis(200));
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Ok(Self { bar, run: None, printed: Vec::new(), phase: None })
    }

    pub fn show(&mut self, update: RunUpdate) {
        match update {
            RunUpdate::Run(run) => {
                run.steps.iter().for_each(|step| self.step(step));
                self.run = Some(run.clone());
            }
            RunUpdate::Event(event) => self.event(event),
            RunUpdate::Connection(message) => self.line(&format!("llmprof: {}", escaped(message))),
        }
        self.refresh();
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Updates the elapsed time.
    pub fn refresh(&self) {
        if let Some(run) = &self.run {
            self.bar.set_message(escaped(&message(run, self.phase.as_ref())));
        }
    }

    fn event(&mut self, event: &Value) {
        match event["event"].as_str() {
            Some("attempt") => {
                self.phase = None;
                if let Some(attempt) = event["attempt"].as_u64().filter(|attempt| *attempt > 1) {
                    self.line(&format!("attempt {attempt}"));
                }
            }
            Some("step") => {
                self.phase = None;
                if let Ok(step) = serde_json::from_value::<StepAnswer>(event["step"].clone()) {
                    self.step(&step);
                }
            }
            Some("progress") => {
                let phase = event["phase"].as_str().unwrap_or_default().to_owned();
                let number = |key: &str| event[key].as_u64().unwrap_or_default();
                self.phase = Some((phase, number("done"), number("total")));
            }
            Some("state") => {
                if let (Some(run), Some(state)) = (&mut self.run, event["state"].as_str()) {
                    run.state = state.to_owned();
                    run.queue_position = event["queue_position"].as_u64();
                }
            }
            _ => {}
        }
    }

    /// Prints a step that has ended, once.
    fn step(&mut self, step: &StepAnswer) {
        let Some(ended) = &step.ended_at else { return };
        let key = (step.step.clone(), step.started_at.clone());
        if self.printed.contains(&key) {
            return;
        }
        self.printed.push(key);
        let took = between(&step.started_at, ended).map(duration).unwrap_or_default();
        let message = step.message.as_deref().unwrap_or_default();
        let line = format!("{:<14} {:<10} {took:>11}  {message}", step.step, step.state);
        self.line(escaped(&line).trim_end());
    }

    fn line(&self, text: &str) {
        // A hidden bar prints nothing.
        if self.bar.is_hidden() {
            print_notice(text);
        } else {
            self.bar.println(text);
        }
    }
}

/// The text of the bar.
fn message(run: &RunAnswer, phase: Option<&(String, u64, u64)>) -> String {
    let Some(started) = run.started_at.as_deref() else {
        let position = run.queue_position.map(|at| format!(", position {at}")).unwrap_or_default();
        let waited = since(&run.queued_at).map(duration).unwrap_or_default();
        return format!("{} in the queue for {waited}{position}", run.name);
    };
    let elapsed = since(started).unwrap_or_default();
    let mut text = format!("{} {}", run.name, duration(elapsed));
    if let Some(expected) = &run.expected {
        let usual = expected.duration.seconds.and_then(|it| Duration::try_from_secs_f64(it).ok());
        match usual {
            Some(total) if total > elapsed => {
                text += &format!(", about {} left", duration(total - elapsed));
            }
            Some(total) => text += &format!(", longer than the usual {}", duration(total)),
            None => text += ", no estimate",
        }
    }
    let running = run.steps.iter().rev().find(|step| step.ended_at.is_none());
    if let Some(step) = running {
        text += &format!(" | {}", step.step);
    }
    if let Some((name, done, total)) = phase {
        text += &format!(" {name} {done}/{total}");
    }
    let pending = run.expected.as_ref().map_or(&[][..], |expected| &expected.pending);
    if !pending.is_empty() {
        text += &format!(" | then {}", pending.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_bar_shows_step_estimate_and_pending_steps() {
        let now = jiff::Timestamp::now().to_string();
        let mut run: RunAnswer = serde_json::from_value(json!({
            "run_id": "1", "state": "running", "name": "tiny", "queued_at": now,
            "started_at": now,
            "steps": [{ "step": "baseline", "state": "running", "started_at": now }],
            "expected": { "pending": ["nsys", "report"], "duration": { "seconds": 600.5 } },
        }))
        .unwrap();
        let text = message(&run, Some(&("measure".to_owned(), 1, 3)));
        assert!(text.starts_with("tiny 0.") && text.contains("about 10 min 0 s left"), "{text}");
        assert!(text.ends_with("| baseline measure 1/3 | then nsys, report"), "{text}");
        (run.started_at, run.queue_position) = (None, Some(2));
        assert!(message(&run, None).ends_with(", position 2"));
    }
}
