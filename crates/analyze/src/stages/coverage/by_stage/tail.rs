//! Launches that the end of a capture may cut off: they were queued on the GPU and did not run.

/// Max launches that a GPU queues, and so the most that the end of a capture cuts off per process.
/// CUDA's software queue holds 1,024 entries by default, after which a launch blocks.
const MAX_QUEUED: u64 = 1024;

/// A launch that lacks kernels, after which its process waited for nothing so far.
pub struct LaunchAtEnd {
    pub start_ns: i64,
    /// Number of its stage.
    pub stage: usize,
    pub missing: u64,
    /// A graph without any recorded work.
    pub is_silent: bool,
}

/// State of a process used to find the launches cut off by the end of the capture.
#[derive(Default)]
pub struct ProcessTail {
    /// Start of the last synchronising call.
    pub last_sync: Option<i64>,
    /// True after a launch with a recorded kernel.
    has_recorded: bool,
    /// Kernels missing from the last such launch on.
    missing: u64,
    /// Launches that lack kernels, from the last such launch on, and at most [`MAX_QUEUED`].
    launches: Vec<LaunchAtEnd>,
}

impl ProcessTail {
    /// Adds a launch in the order of time.
    pub fn add(&mut self, launch: LaunchAtEnd, is_recorded: bool) {
        if is_recorded {
            (self.has_recorded, self.missing) = (true, 0);
            self.launches.clear();
        }
        self.missing += launch.missing;
        // More missing kernels than a GPU queues are lost.
        if self.has_recorded && launch.missing > 0 && self.missing <= MAX_QUEUED {
            self.launches.push(launch);
        }
    }

    /// The launches cut off by the end of the capture: those that no later call waited for may
    /// still have been queued.
    pub fn cut_off(&self) -> impl Iterator<Item = &LaunchAtEnd> {
        let few = self.missing <= MAX_QUEUED;
        let is_queued =
            move |it: &&LaunchAtEnd| self.last_sync.is_none_or(|sync| it.start_ns > sync);
        self.launches.iter().filter(move |it| few && is_queued(it))
    }
}
