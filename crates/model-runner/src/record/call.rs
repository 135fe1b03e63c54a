//! Operator calls in a recorder's buffer, captured ones and their replays.

use std::rc::Rc;

use candle_core::DType;
use llmprof_core::trace::event::{Event, OperatorCall};

use super::{OpName, OperatorWork};

/// One call; its operands' shapes are kept apart.
#[derive(Clone)]
pub struct RecordedCall {
    pub name: Rc<OpName>,
    pub start_ns: i64,
    pub end_ns: i64,
    pub warmup: bool,
    pub repeat: u32,
    pub stage: &'static str,
    pub operands: usize,
    pub dtype: DType,
    pub work: OperatorWork,
}

/// Calls recorded while a graph was captured, to be recorded again at each of its replays.
#[derive(Clone)]
pub struct CapturedCalls(pub(super) Rc<RecordedCalls>);

/// Calls with their operands' shapes.
pub struct RecordedCalls {
    pub calls: Vec<RecordedCall>,
    pub shapes: Vec<u64>,
}

/// One replay of captured calls.
pub struct Replay {
    pub captured: CapturedCalls,
    pub t_ns: i64,
    pub warmup: bool,
    pub repeat: u32,
    pub stage: &'static str,
    /// Number of positions by which the text is longer than at the capture.
    pub moved: u64,
}

impl RecordedCall {
    /// The event of this call, with its operands' shapes taken from `shapes`.
    pub fn event(self, shapes: &mut impl Iterator<Item = u64>, captured: bool) -> Event {
        let mut shape = || -> Vec<u64> {
            let rank = shapes.next().unwrap_or(0) as usize;
            shapes.by_ref().take(rank).collect()
        };
        Event::Op(OperatorCall {
            path: self.name.path.clone(),
            op: self.name.kind.to_owned(),
            start_ns: self.start_ns,
            end_ns: self.end_ns,
            thread: 0,
            captured,
            warmup: self.warmup,
            repeat: self.repeat,
            stage: self.stage.to_owned(),
            shapes: (0..self.operands).map(|_| shape()).collect(),
            dtype: self.dtype.as_str().to_owned(),
            flops: self.work.flops,
            bytes: self.work.read + self.work.deferred.map_or(0, |bytes| bytes.get()),
        })
    }
}

impl Replay {
    /// Appends the events of the captured calls.
    pub fn push_events(self, events: &mut Vec<Event>) {
        let RecordedCalls { calls, shapes } = &*self.captured.0;
        let mut shapes = shapes.iter().copied();
        for call in calls {
            let (flops, bytes) = call.work.per_position;
            let work = OperatorWork {
                flops: call.work.flops + flops * self.moved,
                read: call.work.read + bytes * self.moved,
                ..call.work.clone()
            };
            let (start_ns, end_ns, warmup, repeat, stage) =
                (self.t_ns, self.t_ns, self.warmup, self.repeat, self.stage);
            events.push(
                RecordedCall { start_ns, end_ns, warmup, repeat, stage, work, ..call.clone() }
                    .event(&mut shapes, true),
            );
        }
    }
}
