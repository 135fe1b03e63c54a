//! Launches in a capture, and whether the capture holds what they launched.
//!
//! A launch into a stream that is being captured runs nothing then, and is none here.

use std::collections::HashSet;

use crate::{
    analyze::{
        coverage::{Kind, kind},
        launches::{Cursor, Launches},
        scopes::NONE,
    },
    trace::nsys::NsysTrace,
};

/// The launches of a capture.
pub struct Launched {
    /// By call: whether a kernel of it is recorded.
    held: Vec<bool>,
    kinds: Vec<Kind>,
}

impl Launched {
    /// Joins calls to kernels.
    pub fn of(trace: &NsysTrace, launches: &Launches) -> Self {
        let mut held = vec![false; trace.cuda_calls.len()];
        launches.kernels.iter().filter(|(call, _)| *call != NONE).for_each(|(call, _)| held[*call as usize] = true);
        let kind = |name: u32| kind(trace.strings.get(name as usize).map_or("", String::as_str));
        Self { held, kinds: trace.cuda_calls.sites().iter().map(|(name, _)| kind(*name)).collect() }
    }

    /// Launches of single kernels for which `wanted` holds, by thread, time and instance of a stage; and those whose kernel is recorded.
    pub fn kernels(&self, trace: &NsysTrace, launches: &Launches, mut wanted: impl FnMut(i64, i64, u32) -> bool) -> (u64, u64) {
        let (mut all, mut recorded) = (0, 0);
        let mut capturing = HashSet::new();
        let mut cursor = Cursor::default();
        for at in 0..trace.cuda_calls.len() {
            let kind = &self.kinds[trace.cuda_calls.site(at) as usize];
            if matches!(kind, Kind::Other | Kind::Graph) {
                continue;
            }
            let call = trace.cuda_calls.get(at);
            match kind {
                Kind::BeginCapture => _ = capturing.insert(call.global_tid),
                Kind::EndCapture => _ = capturing.remove(&call.global_tid),
                _ if capturing.contains(&call.global_tid) => {}
                _ => {
                    let instance = cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread));
                    if wanted(call.global_tid, call.start_ns, instance) {
                        all += 1;
                        recorded += u64::from(self.held[at]);
                    }
                }
            }
        }
        (all, recorded)
    }

    /// Launches of graphs in instances that count, and those without a single kernel.
    pub fn graphs(&self, trace: &NsysTrace, launches: &Launches, here: &impl Fn(u32) -> bool) -> (u64, u64) {
        let (mut all, mut empty) = (0, 0);
        if !self.kinds.iter().any(|kind| matches!(kind, Kind::Graph)) {
            return (all, empty);
        }
        let mut cursor = Cursor::default();
        for at in 0..trace.cuda_calls.len() {
            if !matches!(self.kinds[trace.cuda_calls.site(at) as usize], Kind::Graph) {
                continue;
            }
            let call = trace.cuda_calls.get(at);
            if here(cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread))) {
                all += 1;
                empty += u64::from(!self.held[at]);
            }
        }
        (all, empty)
    }
}
