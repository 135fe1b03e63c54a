//! Events of the runner grouped by kind, for borrowing by each analysis.
//!
//! No event is dropped; warm-up events are included.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use llmprof_core::{
    domain::units::Nanos,
    trace::{
        event::{
            Ceiling, End, Event, Experts, MemoryUse, OperatorCall, Output, SampleStart, StageRange,
            Start, Steady,
        },
        interval::Interval,
        range::Range,
        timeline::process_of,
    },
};

use crate::model_work::step_loads::StepLoads;

/// Events of one pass by kind, in the order in which they were written.
#[derive(Debug, Default)]
pub struct Events<'a> {
    pub start: Option<&'a Start>,
    /// Samples of a run with several.
    pub samples: Vec<&'a SampleStart>,
    pub ranges: Vec<&'a StageRange>,
    /// Thread or process of each range, of a capture.
    pub places: &'a [i64],
    pub calls: CallList<'a>,
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

/// Calls of operators, in the order in which they were written.
#[derive(Debug)]
pub enum CallList<'a> {
    Recorded(Vec<&'a OperatorCall>),
    /// Ranges of a capture, with the kind of each.
    Ranges(&'a [Range], &'a RangeCalls),
}

/// Ranges that are calls of operators. A capture has millions of them, of a few kinds.
#[derive(Debug, Default)]
pub struct RangeCalls {
    /// Calls without their times, thread and repeat.
    pub kinds: Vec<OperatorCall>,
    /// Index of its kind, and repeat, by range; [`NONE`] for other ranges.
    pub of_range: Vec<(u32, u32)>,
}

/// A call of an operator.
#[derive(Debug, Clone, Copy)]
pub struct TimedCall<'a> {
    /// Everything but the times, the thread and the repeat.
    pub of: &'a OperatorCall,
    /// Number of this kind of call, if calls share `of`.
    pub kind: Option<u32>,
    pub start_ns: i64,
    pub end_ns: i64,
    pub thread: i64,
    pub repeat: u32,
}

impl TimedCall<'_> {
    pub fn ns(&self) -> i64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

impl Default for CallList<'_> {
    fn default() -> Self {
        Self::Recorded(Vec::new())
    }
}

impl<'a> CallList<'a> {
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = TimedCall<'a>> + '_ {
        let count = match self {
            Self::Recorded(calls) => calls.len(),
            Self::Ranges(_, calls) => calls.of_range.len(),
        };
        (0..count).filter_map(|at| self.get(at))
    }

    /// The call at an index; `None` for a range that is none.
    fn get(&self, at: usize) -> Option<TimedCall<'a>> {
        match self {
            Self::Recorded(calls) => {
                let of = calls[at];
                let OperatorCall { start_ns, end_ns, thread, repeat, .. } = *of;
                Some(TimedCall { of, kind: None, start_ns, end_ns, thread, repeat })
            }
            Self::Ranges(ranges, calls) => {
                let (kind, repeat) = calls.of_range[at];
                let of = calls.kinds.get(kind as usize)?;
                let it = &ranges[at];
                let (start_ns, thread) = (it.start_ns, it.global_tid);
                let end_ns = it.end_ns.unwrap_or(start_ns);
                Some(TimedCall { of, kind: Some(kind), start_ns, end_ns, thread, repeat })
            }
        }
    }

    /// The measured calls with times of their own, outer ones first: in the order of their starts,
    /// the longer first. Calls are written when they return: of two with the same times, the later
    /// one encloses the earlier.
    pub fn outer_first(&self) -> impl Iterator<Item = TimedCall<'a>> + '_ {
        let is_timed = |it: &TimedCall| !it.of.warmup && !it.of.captured;
        let mut order: Vec<u32> = match self {
            Self::Recorded(calls) => (0..calls.len() as u32).collect(),
            Self::Ranges(_, calls) => (0..calls.of_range.len() as u32).collect(),
        };
        order.retain(|at| self.get(*at as usize).is_some_and(|it| is_timed(&it)));
        order.reverse();
        let key = |at: &u32| self.get(*at as usize).map(|it| (it.start_ns, Reverse(it.end_ns)));
        order.sort_by_key(key);
        order.into_iter().filter_map(|at| self.get(at as usize))
    }
}

/// Source of the events of a pass.
#[derive(Debug, Clone, Copy, Default)]
pub enum EventSource<'a> {
    /// The model runner: each repeat is whole, and each step generates a token of each
    /// sequence of the batch.
    #[default]
    Runner,
    /// The ranges of a capture: stages of one pass have one repeat number.
    Capture {
        /// Tokens that the decode steps of a repeat generated, if they are known.
        tokens: &'a BTreeMap<u32, u64>,
        /// Decode steps of a repeat without times of their own, which have no ranges.
        untimed_steps: &'a BTreeMap<u32, u64>,
        /// False if a step may have made several tokens of one sequence: by speculation.
        one_token_a_step: bool,
        /// Repeats whose decode is cut by the recording.
        cut: &'a BTreeSet<u32>,
        /// Nanoseconds of a range that do not count, by its times: a range filter leaves them out,
        /// or they are of steps that are left out.
        excluded: &'a BTreeMap<Interval, i64>,
        /// Counts of the steps that an engine scheduled, by stage.
        loads: &'a StepLoads,
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

    /// Decode steps by repeat that have no times.
    pub fn untimed_steps(&self) -> Option<&'a BTreeMap<u32, u64>> {
        match self.source {
            EventSource::Runner => None,
            EventSource::Capture { untimed_steps, .. } => Some(untimed_steps),
        }
    }

    /// Counts of the steps that an engine scheduled, by stage.
    pub fn step_loads(&self) -> Option<&'a StepLoads> {
        match self.source {
            EventSource::Runner => None,
            EventSource::Capture { loads, .. } => Some(loads),
        }
    }

    /// True if the recording cuts the decode of a repeat; the recorded steps are whole.
    pub fn is_cut(&self, repeat: u32) -> bool {
        match self.source {
            EventSource::Runner => false,
            EventSource::Capture { cut, .. } => cut.contains(&repeat),
        }
    }

    /// True if each decode step makes one token of each sequence.
    pub fn has_one_token_a_step(&self) -> bool {
        match self.source {
            EventSource::Runner => true,
            EventSource::Capture { one_token_a_step, .. } => one_token_a_step,
        }
    }

    /// Time of a range on the host, without the parts that do not count.
    pub fn host_time(&self, range: &StageRange) -> Nanos {
        let excluded = match self.source {
            EventSource::Runner => None,
            EventSource::Capture { excluded, .. } => excluded.get(&(range.start_ns, range.end_ns)),
        };
        Nanos(range.end_ns) - Nanos(range.start_ns) - Nanos(excluded.copied().unwrap_or(0))
    }

    /// Time of a range inside a stage: GPU time if it was measured, else host time.
    pub fn range_time(&self, range: &StageRange) -> Nanos {
        range.device_ns.map_or_else(|| self.host_time(range), Nanos)
    }

    /// Groups the events of one pass by kind.
    pub fn of(events: &'a [Event]) -> Self {
        let (mut sorted, mut calls) = (Self::default(), Vec::new());
        for event in events {
            match event {
                Event::Start(it) => sorted.start = sorted.start.or(Some(it)),
                Event::Sample(it) => sorted.samples.push(it),
                Event::Range(it) => sorted.ranges.push(it),
                Event::Op(it) => calls.push(it),
                Event::Experts(it) => sorted.experts.push(it),
                Event::Output(it) => sorted.outputs.push(it),
                Event::Steady(it) => sorted.steady.push(it),
                Event::Memory(it) => sorted.memory.push(it),
                Event::Ceiling(it) => sorted.ceilings.push(it),
                Event::End(it) => sorted.end = Some(it),
            }
        }
        Self { calls: CallList::Recorded(calls), ..sorted }
    }

    /// The sample of a measured repeat; 0 if there is one.
    pub fn sample_of(&self, repeat: u32) -> u32 {
        self.samples.iter().find(|it| it.contains(repeat)).map_or(0, |it| it.sample)
    }

    /// Ranges of measured repeats named `name`.
    pub fn measured<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'a StageRange> + 's {
        self.ranges.iter().copied().filter(move |range| !range.warmup && range.name == name)
    }

    /// The same, each with its process in a capture.
    pub fn measured_in_processes<'s>(
        &'s self,
        name: &'s str,
    ) -> impl Iterator<Item = (&'a StageRange, Option<i64>)> + 's {
        let places = self.places;
        let ranges = self.ranges.iter().copied().enumerate();
        let measured = ranges.filter(move |it| !it.1.warmup && it.1.name == name);
        measured.map(move |(at, range)| (range, places.get(at).map(|it| process_of(*it))))
    }
}
