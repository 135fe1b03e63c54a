//! The alignments of a part with the whole model: computed from a run's folder, and kept there.
//!
//! It blocks, and starts nothing. Values that the folder lacks stay unknown.

use std::{collections::BTreeMap, io, path::Path};

use llmprof_analyze::{
    align::{
        Alignment, align,
        settings::{Operation, Question, Thresholds},
    },
    parse::{self, ParseError},
    stages::DECODE,
    stats::Spread,
    timeline::decode_timeline::STEP,
};
use llmprof_core::{
    domain::{model::parts::has_decode_steps, runner},
    layout,
    trace::{
        event::{Event, StageRange},
        stage::StageRules,
        timeline::Timeline,
    },
};

use crate::{
    align::stem,
    part::PartStage,
    pipeline::align_pair::{CapturedSide, PairError, write},
};

/// Stages, by their name and their range's name.
pub const STAGES: [(&str, &str); 2] = [("prefill", "prefill"), ("decode", "decode_all")];

/// The alignments of one stage.
pub struct AlignedStage {
    pub stage: &'static str,
    pub mock: Alignment,
    pub extracted: Alignment,
}

/// Aligns the mock and the extracted part in `dir` with the whole model's run there, stage by
/// stage, and writes the reports. `timeline`: the whole model's capture, if it is parsed already;
/// the capture is returned.
pub fn align_part(
    dir: &Path,
    part: &str,
    timeline: Option<Timeline>,
) -> Result<(Vec<AlignedStage>, Timeline), PairError> {
    let read = |name: &str, folder: &Path| CapturedSide::read(name, folder, StageRules::default());
    let whole = CapturedSide::of_run("the whole model", dir, timeline, StageRules::default())?;
    let mock = read("the mock", &dir.join(layout::MOCK))?;
    let extracted = read("extracted from its layer", &dir.join(layout::EXTRACTED))?;
    let mut found = Vec::new();
    for (stage, range) in
        STAGES.into_iter().filter(|(stage, _)| *stage == "prefill" || has_decode_steps(part))
    {
        let question = Question {
            operation: Operation::Operator(part.to_owned()),
            stage: Some(range.to_owned()),
            thresholds: Thresholds::default(),
            waivers: vec![],
            forwards: None,
            today: String::new(), // no waivers, so none expires
        };
        let against = |side: &CapturedSide| {
            align(&side.side(Some(range)), &whole.side(Some(range)), &question)
        };
        let aligned = AlignedStage { stage, mock: against(&mock), extracted: against(&extracted) };
        write(&aligned.mock, dir, &stem(stage))?;
        write(&aligned.extracted, dir, &stem(&format!("extracted-{stage}")))?;
        found.push(aligned);
    }
    Ok((found, whole.into_timeline()))
}

/// Reads the files of [`align_part`], with the unprofiled times of the part; empty for a run
/// without alignments.
pub fn read(dir: &Path) -> Result<Vec<PartStage>, ParseError> {
    let mut stages = Vec::new();
    let mut plain = None;
    for (stage, range) in STAGES {
        let Some(mock) = alignment(dir, stage)? else { continue };
        let plain = match &mut plain {
            Some(plain) => plain,
            none => none.insert([events(dir, layout::MOCK)?, events(dir, layout::EXTRACTED)?]),
        };
        let [mock_ms, extracted_ms] = [0, 1].map(|side| times(&plain[side], range));
        let same_outputs =
            output(&plain[0]).zip(output(&plain[1])).map(|(mock, extracted)| mock == extracted);
        let extracted = alignment(dir, &format!("extracted-{stage}"))?;
        stages.push(PartStage { stage, mock, extracted, mock_ms, extracted_ms, same_outputs });
    }
    Ok(stages)
}

fn alignment(dir: &Path, stage: &str) -> Result<Option<Alignment>, ParseError> {
    let path = dir.join(format!("{}.json", stem(stage)));
    match parse::stored::read_own(&path) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(alignment) => Ok(Some(alignment)),
            Err(error) => {
                Err(ParseError::Foreign { path, what: format!("not an alignment: {error}") })
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ParseError::Read { path, source }),
    }
}

/// The runner's events in the unprofiled pass of one side.
fn events(dir: &Path, side: &str) -> Result<Vec<Event>, ParseError> {
    let path = dir.join(side).join(layout::BASELINE).join(runner::EVENTS);
    if path.exists() { parse::events::read(&path).map(|log| log.events) } else { Ok(Vec::new()) }
}

/// Times of a stage, milliseconds. For decode, the GPU times of its steps if they were measured:
/// the time between them does not belong to the part.
fn times(events: &[Event], stage: &str) -> Option<Spread> {
    let mut steps: BTreeMap<u32, f64> = BTreeMap::new();
    for event in events {
        if let Event::Range(StageRange { name, warmup: false, repeat, device_ns: Some(ns), .. }) =
            event
            && stage == DECODE
            && name == STEP
        {
            *steps.entry(*repeat).or_default() += *ns as f64 / 1e6;
        }
    }
    if !steps.is_empty() {
        return Spread::of(steps.into_values());
    }
    Spread::of(events.iter().filter_map(|event| match event {
        Event::Range(it) if it.name == stage && !it.warmup => {
            Some(it.device_ns.unwrap_or(it.end_ns - it.start_ns) as f64 / 1e6)
        }
        _ => None,
    }))
}

/// Hash of the first repeat's output.
fn output(events: &[Event]) -> Option<&str> {
    events.iter().find_map(|event| match event {
        Event::Output(it) if !it.warmup => Some(it.logits_sha256.as_str()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, repeat: u32, wall_ms: i64, device_ns: Option<i64>) -> Event {
        let (name, end_ns) = (name.to_owned(), wall_ms * 1_000_000);
        Event::Range(StageRange {
            name,
            start_ns: 0,
            end_ns,
            device_ns,
            warmup: false,
            repeat,
            step: None,
        })
    }

    #[test]
    fn time_between_the_steps_of_a_part_is_not_counted() {
        let steps = |repeat| [1_000_000, 2_000_000].map(|ns| range(STEP, repeat, 9, Some(ns)));
        let events: Vec<Event> = [range(DECODE, 0, 50, Some(50_000_000))]
            .into_iter()
            .chain(steps(0))
            .chain(steps(1))
            .chain([range("prefill", 0, 7, None)])
            .collect();
        let decode = times(&events, DECODE).unwrap();
        assert_eq!((decode.mean, decode.n), (3.0, 2));
        assert_eq!(times(&events, "prefill").unwrap().mean, 7.0);
        assert_eq!(
            times(&events[..1], DECODE).unwrap().mean,
            50.0,
            "without GPU times of the steps: the whole stage"
        );
        assert_eq!(times(&[], DECODE), None);
    }
}
