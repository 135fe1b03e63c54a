//! GPUs of the launches of each thread: if threads of a process drive a GPU each, the stages of one
//! thread have no windows on the GPUs of the others.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::timeline::{ON_HOST, process_of};

use crate::timeline::{activity::activities, capture::Capture};

/// GPUs by process, and by thread in a process with several GPUs.
pub struct ThreadDevices<'a> {
    used: &'a BTreeSet<(i64, u32)>,
    of_thread: BTreeMap<i64, BTreeSet<u32>>,
}

impl<'a> ThreadDevices<'a> {
    pub fn of(capture: &Capture, used: &'a BTreeSet<(i64, u32)>) -> Self {
        let mut of_thread: BTreeMap<i64, BTreeSet<u32>> = BTreeMap::new();
        let has_several = used.iter().zip(used.iter().skip(1)).any(|(a, b)| a.0 == b.0);
        let mut calls = capture.trace.cuda_calls.reader();
        let work = activities(capture).filter(|it| has_several && it.join.has_call());
        for it in work.filter(|it| it.device != ON_HOST) {
            let thread = calls.get(it.join.call).global_tid;
            of_thread.entry(thread).or_default().insert(it.device);
        }
        Self { used, of_thread }
    }

    /// The GPUs of a thread that launches work, else the GPUs of its process.
    pub fn of_place(&self, place: i64) -> Vec<u32> {
        let process = process_of(place);
        match self.of_thread.get(&place).filter(|_| place != process) {
            Some(devices) => devices.iter().copied().collect(),
            None => self.used.range((process, 0)..=(process, u32::MAX)).map(|it| it.1).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        kernels::tests::capture,
        timeline::{
            capture::Capture,
            gpu::{device_tables, step_idle::WantedSteps},
        },
    };

    /// Instances and window of decode on each GPU, of kernels with these numbers on the second.
    fn windows(on_second: &[i64]) -> Vec<(u64, i64)> {
        let sketch = "range 1 decode_all 0..40\nrange 2 decode_all 20..80
            range 1 decode_all 60..100
            call 1 1 1..2\ncall 2 2 21..22\ncall 1 3 61..62
            kernel 1 a 10..20 7\nkernel 2 a 30..40 7\nkernel 3 a 70..80 7";
        let mut trace = capture(sketch);
        trace.kernels = trace
            .kernels
            .map(|_, it| it.device = u32::from(on_second.contains(&it.correlation_id)));
        let found = device_tables(&Capture::of(&trace), None, &WantedSteps::default()).0.devices;
        let ns = |ms: Option<f64>| (ms.unwrap() * 1e6).round() as i64;
        found.iter().map(|it| (it.instances, ns(it.window_ms))).collect()
    }

    #[test]
    fn a_stage_has_windows_on_the_gpus_of_its_thread_alone() {
        assert_eq!(windows(&[2]), [(2, 80), (1, 60)], "a GPU for each thread");
        assert_eq!(windows(&[3]), [(3, 100), (2, 80)], "the first thread launches on both");
    }
}
