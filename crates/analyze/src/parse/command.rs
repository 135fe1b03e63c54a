//! Files of the passes of a command: wall times, and the events in its output.
//!
//! The output of any program is read, so lines that are not events are skipped.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use llmprof_core::{
    domain::command::{CommandKind, CommandPlan},
    layout,
    trace::{
        command::{CommandTimes, CommandTrace},
        event::Event,
    },
};

use super::{ParseError, json, requests};
use crate::parse::stored;

/// Longest line of an event.
const MAX_LINE: u64 = 1 << 20;
/// Maximum number of repeats of a run.
const MAX_REPEATS: usize = 100;

/// Reads the command of a run's folder; `None` for a run of another subject.
pub fn plan(dir: &Path) -> Result<Option<CommandPlan>, ParseError> {
    json(&dir.join(layout::COMMAND_PLAN), "a command")
}

/// Reads the wall times of the pass in `folder`; `None` if it has none.
pub fn times(dir: &Path, folder: &str) -> Result<Option<CommandTimes>, ParseError> {
    json(&dir.join(folder).join(layout::TIMES), "wall times")
}

/// Reads the wall times, and the events of the unprofiled and of the traced pass.
pub fn read(dir: &Path, plan: &CommandPlan) -> Result<(CommandTrace, [Vec<Event>; 2]), ParseError> {
    let trace = CommandTrace {
        plain: times(dir, layout::BASELINE)?,
        traced: times(dir, layout::NSYS)?,
        loads: requests::read(dir)?,
        window: json(&dir.join(layout::NSYS).join(layout::WINDOW), "a window")?,
    };
    let log = |name: &str| dir.join(layout::LOGS).join(format!("{name}.stdout.log"));
    let mut plain = Vec::new();
    let repeats = trace.plain.as_ref().map_or(0, |times| times.wall_ns.len().min(MAX_REPEATS));
    match plan.kind {
        CommandKind::Program => {
            for turn in 1..=repeats {
                join(&mut plain, output_events(&log(&format!("{}-{turn}", layout::BASELINE)))?);
            }
        }
        CommandKind::Server => plain = output_events(&log(layout::BASELINE))?,
    }
    let traced = output_events(&log(layout::NSYS))?;
    // A pass without stages has no usable events.
    let usable = |events: Vec<Event>| {
        if events.iter().any(|it| matches!(it, Event::Range(_))) { events } else { Vec::new() }
    };
    Ok((trace, [usable(plain), usable(traced)]))
}

/// Reads the events in an output; none if the file is missing.
fn output_events(path: &Path) -> Result<Vec<Event>, ParseError> {
    let failed = |source| ParseError::Read { path: path.into(), source };
    let file = match stored::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let (mut from, mut line, mut events) =
        (BufReader::with_capacity(1 << 16, file), Vec::new(), Vec::new());
    loop {
        line.clear();
        if from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok(events);
        }
        if line.starts_with(b"{\"kind\"") {
            events.extend(serde_json::from_slice::<Event>(&line).ok().filter(is_possible));
        }
    }
}

/// Returns true if an event is possible: nothing ends before it starts.
fn is_possible(event: &Event) -> bool {
    match event {
        Event::Range(range) => {
            range.start_ns >= 0 && range.start_ns <= range.end_ns && range.repeat < 1 << 20
        }
        Event::Op(op) => op.start_ns >= 0 && op.start_ns <= op.end_ns,
        // These are facts that the model runner alone may state.
        Event::Start(_)
        | Event::Sample(_)
        | Event::End(_)
        | Event::Ceiling(_)
        | Event::Memory(_)
        | Event::Steady(_) => false,
        Event::Experts(_) | Event::Output(_) => true,
    }
}

/// Appends the events of one process, whose repeats follow the earlier ones.
fn join(all: &mut Vec<Event>, mut more: Vec<Event>) {
    let after = |events: &[Event]| {
        events.iter().filter_map(|event| repeat(event).map(|it| it + 1)).max().unwrap_or(0)
    };
    let first = after(all);
    for event in &mut more {
        match event {
            Event::Range(it) => it.repeat += first,
            Event::Op(it) => it.repeat += first,
            Event::Output(it) => it.repeat += first,
            _ => {}
        }
    }
    all.append(&mut more);
}

fn repeat(event: &Event) -> Option<u32> {
    match event {
        Event::Range(it) => Some(it.repeat),
        Event::Op(it) => Some(it.repeat),
        Event::Output(it) => Some(it.repeat),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_among_other_lines_are_read_and_repeats_of_processes_follow_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let range = |repeat: u32| {
            format!(
                "{{\"kind\":\"range\",\"name\":\"prefill\",\"start_ns\":1,\"end_ns\":9,\
                 \"warmup\":false,\"repeat\":{repeat}}}"
            )
        };
        let backwards = range(0).replace("\"end_ns\":9", "\"end_ns\":0");
        std::fs::write(
            &path,
            format!("loading\n{}\n{{\"kind\":\"x\"}}\n{backwards}\n{}\nbye", range(0), range(1)),
        )
        .unwrap();
        let mut all = output_events(&path).unwrap();
        join(&mut all, output_events(&path).unwrap());
        assert_eq!(all.iter().filter_map(repeat).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(output_events(&dir.path().join("none")).unwrap(), []);
    }
}
