//! Targets of waits: events of category `cuda_sync`, next to the event of the waiting call.

use foldhash::HashMap;
use llmprof_core::trace::{clocks::WaitTarget, timeline::ON_HOST};

use super::event::ArgsFields;

/// Waits of one file, with the file's own numbers of devices.
#[derive(Debug, Default)]
pub struct FileWaits(Vec<WaitTarget>);

impl FileWaits {
    /// Adds the event of a wait. A wait for a device or an event has stream -1.
    pub fn add(&mut self, args: &ArgsFields) {
        let number = |value: Option<i64>| value.and_then(|it| u32::try_from(it).ok());
        let Some(correlation) = args.correlation.value.filter(|it| *it > 0) else { return };
        self.0.push(WaitTarget {
            process: 0,
            correlation,
            device: number(args.device.value),
            stream: number(args.stream.value),
        });
    }

    /// The waits of a process. `devices` has the numbers of devices with work; a wait for another
    /// device waits for no recorded work.
    pub fn of(self, process: i64, devices: &HashMap<u32, u32>) -> impl Iterator<Item = WaitTarget> {
        let number = |device: u32| devices.get(&device).copied().unwrap_or(ON_HOST);
        self.0.into_iter().map(move |it| WaitTarget {
            process,
            device: it.device.map(number),
            ..it
        })
    }
}
