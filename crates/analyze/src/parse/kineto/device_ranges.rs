//! Ranges by their work on the device. They stand for the host's ranges if the profiler recorded
//! only activities of the GPU.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};

use super::rows::{FileRows, range_name};
use llmprof_core::trace::interval::{Interval, extended};

/// First start and last end of the work of each range, over all streams.
#[derive(Debug, Default)]
pub struct DeviceRanges {
    names: HashMap<String, u32>,
    /// By name and `External id`; ranges without an id are ranges of their own.
    rows: BTreeMap<(u32, u32), Interval>,
    unnumbered: Vec<(u32, Interval)>,
}

impl DeviceRanges {
    pub fn add(&mut self, name: &str, external_id: u32, at: Interval) {
        let name = range_name(name);
        let known = self.names.get(name).copied();
        let name = known.unwrap_or_else(|| {
            let next = self.names.len() as u32;
            self.names.insert(name.to_owned(), next);
            next
        });
        if external_id == 0 {
            return self.unnumbered.push((name, at));
        }
        let window = self.rows.entry((name, external_id)).or_insert(at);
        *window = extended(Some(*window), at);
    }
}

impl FileRows {
    /// Adds the ranges whose name no range of the host has.
    pub fn add_device_ranges(&mut self) {
        let ranges = std::mem::take(&mut self.device_ranges);
        let on_host: HashSet<&str> = self.ranges.iter().map(|it| it.name.as_str()).collect();
        let missing: HashMap<u32, String> = ranges
            .names
            .into_iter()
            .filter(|(name, _)| !on_host.contains(name.as_str()))
            .map(|(name, number)| (number, name))
            .collect();
        if missing.is_empty() {
            return;
        }
        let process = self.main_process();
        let thread = self.thread_of((process, DEVICE_THREAD));
        let numbered = ranges.rows.into_iter().map(|((name, _), at)| (name, at));
        for (name, (start_ns, end_ns)) in numbered.chain(ranges.unnumbered) {
            if let Some(name) = missing.get(&name) {
                self.range_on(thread, (start_ns, Some(end_ns)), name);
            }
        }
    }
}

/// No thread of a host has this number.
const DEVICE_THREAD: i64 = 0;

#[cfg(test)]
mod tests {
    use crate::parse::kineto::tests::trace;

    #[test]
    fn a_range_of_the_device_stands_for_one_that_the_host_lacks() {
        let range = |cat: &str, name: &str, id: u32, stream: u32, ts: u32| {
            format!(
                r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 0, "tid": {stream},
                    "ts": {ts}, "dur": 2, "args": {{"External id": {id}}}}}"#
            )
        };
        let step = "execute_context_0(0)_generation_8(8)";
        let read = trace(&[
            &range("gpu_user_annotation", step, 3, 7, 10),
            &range("gpu_user_annotation", step, 3, 8, 11),
            &range("gpu_user_annotation", step, 4, 7, 20),
            &range("gpu_user_annotation", "prefill", 5, 7, 30),
            &range("user_annotation", "prefill", 5, 7, 25),
        ]);
        let ranges: Vec<(&str, i64, Option<i64>)> =
            read.ranges.iter().map(|it| (it.name.as_str(), it.start_ns, it.end_ns)).collect();
        let expected = [
            (step, 0, Some(3_000)),
            (step, 10_000, Some(12_000)),
            ("prefill", 15_000, Some(17_000)),
        ];
        assert_eq!(ranges, expected, "the streams of one range are one range");
    }
}
