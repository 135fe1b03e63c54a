//! Load of the host while a pass runs: the time that tasks waited for a CPU, and the load average.
//!
//! Reads the kernel's pressure stall information at the start and the end. If the kernel has none,
//! the number of runnable tasks is sampled.

use std::{fs, time::Duration};

use llmprof_core::trace::environment::{HostLoad, LoadSource};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval},
};

/// Time between two samples of the runnable tasks.
const PERIOD: Duration = Duration::from_millis(100);

/// Watches the load from its start to its stop.
pub struct LoadWatch {
    started: Instant,
    stalled_us: Option<u64>,
    load_start: Option<f64>,
    sampler: Option<(oneshot::Sender<()>, JoinHandle<Option<f64>>)>,
}

impl LoadWatch {
    pub fn start() -> Self {
        let stalled_us = stalled_us();
        Self {
            started: Instant::now(),
            stalled_us,
            load_start: load_average().map(|it| it.0),
            sampler: stalled_us.is_none().then(|| {
                let (stop, stopped) = oneshot::channel();
                (stop, tokio::spawn(sample(stopped)))
            }),
        }
    }

    /// Returns the load since the start. `busy_pct` is the share of waiting from which a host is
    /// busy.
    pub async fn stop(self, busy_pct: u32) -> HostLoad {
        let waited = match (self.stalled_us, stalled_us()) {
            (Some(start), Some(end)) => {
                let elapsed_us = self.started.elapsed().as_secs_f64() * 1e6;
                (elapsed_us > 0.0)
                    .then(|| (end.saturating_sub(start) as f64 / elapsed_us * 100.0).min(100.0))
            }
            _ => None,
        };
        let sampled = match self.sampler {
            Some((stop, sampler)) => {
                drop(stop);
                sampler.await.ok().flatten()
            }
            None => None,
        };
        HostLoad {
            cpu_wait_pct: waited.or(sampled).map(|pct| (pct * 10.0).round() / 10.0),
            source: if waited.is_some() { LoadSource::Pressure } else { LoadSource::RunnableTasks },
            load_start: self.load_start,
            load_end: load_average().map(|it| it.0),
            busy_pct,
        }
    }
}

/// Microseconds since boot during which a task waited for a CPU.
fn stalled_us() -> Option<u64> {
    parse_stalled(&fs::read_to_string("/proc/pressure/cpu").ok()?)
}

/// The total of the line `some` of a file of pressure stall information.
fn parse_stalled(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// The load average over one minute, and the number of runnable tasks.
fn load_average() -> Option<(f64, usize)> {
    parse_load(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn parse_load(text: &str) -> Option<(f64, usize)> {
    let mut words = text.split_whitespace();
    let average = words.next()?.parse().ok()?;
    let runnable = words.nth(2)?.split('/').next()?.parse().ok()?;
    Some((average, runnable))
}

/// Share of the samples in which more tasks than CPUs were runnable, percent.
async fn sample(stopped: oneshot::Receiver<()>) -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let cpus = cpus(&stat);
    let (mut samples, mut waiting) = (0_u32, 0_u32);
    let count = async {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some((_, runnable)) = load_average() else { break };
            samples += 1;
            // The reader itself is one of them.
            waiting += u32::from(runnable.saturating_sub(1) > cpus);
        }
    };
    let is_complete = tokio::select! {
        _ = stopped => true,
        () = count => false,
    };
    (is_complete && samples > 0).then(|| f64::from(waiting) / f64::from(samples) * 100.0)
}

/// Number of CPUs of a `/proc/stat`.
fn cpus(stat: &str) -> usize {
    let is_cpu = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|it: char| it.is_ascii_digit()))
    };
    stat.lines().filter(is_cpu).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_and_loads_are_read_from_the_kernels_files() {
        let pressure = "some avg10=1.62 avg60=0.95 avg300=2.52 total=42364143\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(parse_stalled(pressure), Some(42_364_143));
        assert_eq!((parse_stalled(""), parse_stalled("some avg10=1.62")), (None, None));
        assert_eq!(parse_load("1.25 1.65 1.09 3/100 19821\n"), Some((1.25, 3)));
        assert_eq!((parse_load("1.25"), parse_load("")), (None, None));
        assert_eq!(cpus("cpu  1 2\ncpu0 1 1\ncpu1 0 1\nintr 5\n"), 2);
    }

    #[tokio::test]
    async fn the_load_of_this_host_is_a_share_of_the_time() {
        let load = LoadWatch::start().stop(20).await;
        assert!(load.cpu_wait_pct.is_none_or(|pct| (0.0..=100.0).contains(&pct)), "{load:?}");
        assert!(load.load_start.is_some() && load.busy_pct == 20, "{load:?}");
        let (stop, stopped) = oneshot::channel();
        let sampler = tokio::spawn(sample(stopped));
        tokio::task::yield_now().await;
        drop(stop);
        assert!(sampler.await.unwrap().is_none_or(|pct| (0.0..=100.0).contains(&pct)));
    }
}
