//! Events of the runner grouped by kind, for borrowing by each analysis.
//!
//! No event is dropped; warm-up events are included.

use std::collections::BTreeMap;

use llmprof_core::trace::event::{
    Ceiling, End, Event, Experts, MemoryUse, OperatorCall, Output, SampleStart, StageRange, Start,
    Steady,
};

/// Events of one pass by kind, in the order in which they were written.
#[derive(Debug, Default)]
pub struct Events<'a> {
    pub start: Option<&'a Start>,
    /// Samples of a run with several.
    pub samples: Vec<&'a SampleStart>,
    pub ranges: Vec<&'a StageRange>,
    pub calls: Vec<&'a OperatorCall>,
    pub experts: Vec<&'a Experts>,
    pub outputs: Vec<&'a Output>,
    pub steady: Vec<&'a Steady>,
    pub memory: Vec<&'a MemoryUse>,
    pub ceilings: Vec<&'a Ceiling>,
    pub end: Option<&'a End>,
    pub source: EventSource<'a>,
    /// Stages besides prefill and decode, which steps of engines have.
    pub other_stages: Vec<&'a str>,
}

/// Source of the events of a pass.
#[derive(Debug, Clone, Copy, Default)]
pub enum EventSource<'a> {
    /// The model runner: each repeat is a whole pass, and each step generates a token of each
    /// sequence of the batch.
    #[default]
    Runner,
    /// The ranges of a capture: stages of one pass have one repeat number. Tokens that the steps
    /// of a repeat generated, where they are known.
    Capture {
        tokens: &'a BTreeMap<u32, u64>,
        /// False where a step may have made several tokens of one sequence: by speculation.
        one_token_a_step: bool,
    },
}

impl<'a> Events<'a> {
    /// Number of sequences that the pass computes at the same time.
    pub fn batch(&self) -> u64 {
        self.start.map_or(1, Start::batch)
    }

    /// Tokens of all sequences that the decode steps of a repeat generated.
    pub fn generated(&self, repeat: u32, steps: u64) -> Option<u64> {
        match self.source {
            EventSource::Runner => Some(steps * self.batch()),
            EventSource::Capture { tokens, .. } => tokens.get(&repeat).copied(),
        }
    }

    /// True if each decode step makes one token of each sequence.
    pub fn has_one_token_a_step(&self) -> bool {
        match self.source {
            EventSource::Runner => true,
            EventSource::Capture { one_token_a_step, .. } => one_token_a_step,
        }
    }

    /// Groups the events of one pass by kind.
    pub fn of(events: &'a [Event]) -> Self {
        let mut sorted = Self::default();
        for event in events {
            match event {
                Event::Start(it) => sorted.start = sorted.start.or(Some(it)),
                Event::Sample(it) => sorted.samples.push(it),
                Event::Range(it) => sorted.ranges.push(it),
                Event::Op(it) => sorted.calls.push(it),
                Event::Experts(it) => sorted.experts.push(it),
                Event::Output(it) => sorted.outputs.push(it),
                Event::Steady(it) => sorted.steady.push(it),
                Event::Memory(it) => sorted.memory.push(it),
                Event::Ceiling(it) => sorted.ceilings.push(it),
                Event::End(it) => sorted.end = Some(it),
            }
        }
        sorted
    }

    /// The sample of a measured repeat; 0 where there is one.
    pub fn sample_of(&self, repeat: u32) -> u32 {
        self.samples.iter().find(|it| it.contains(repeat)).map_or(0, |it| it.sample)
    }

    /// Ranges of measured repeats named `name`.
    pub fn measured<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'a StageRange> + 's {
        self.ranges.iter().copied().filter(move |range| !range.warmup && range.name == name)
    }
}
