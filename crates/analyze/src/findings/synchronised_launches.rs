//! The remedy for a host that synchronises after each launch: the next one starts on an idle GPU.

use foldhash::HashMap;
use llmprof_core::{
    domain::{
        digits::count,
        finding::{
            Finding,
            catalogue::{self, FindingId},
        },
    },
    trace::{Trace, runtime_call::CallKind, timeline::Timeline},
};

use super::ledger::{FEW_STEPS, LONG_GAPS, SAMPLED_GAPS};
use crate::stats::percent;

/// Findings on gaps before launches, whose remedy this one replaces.
const ON_GAPS: [FindingId; 2] = [catalogue::LEDGER_GAP_HOST, catalogue::DECODE_LAUNCH_BOUND];
/// Remedies that stay: these gaps have another reason than the synchronisation.
const OF_OTHER_REASONS: [&str; 3] = [FEW_STEPS, LONG_GAPS, SAMPLED_GAPS];
/// The host waits after each launch from this share of the launches, percent.
const EACH_PCT: f64 = 90.0;
/// Min launches: a few may each have a reason to be awaited.
const MIN_LAUNCHES: u64 = 10;

/// Launches of kernels and graphs, and those of single kernels that a synchronisation follows on
/// their thread before other work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct SynchronisedLaunches {
    launches: u64,
    awaited: u64,
}

/// State of a thread between two calls.
struct LaunchingThread {
    /// End of its last call that is not inside another one.
    until_ns: i64,
    /// True if its last work is the launch of a kernel.
    is_launched: bool,
}

impl SynchronisedLaunches {
    /// Counts the calls of a capture, without those inside earlier calls of their thread.
    fn of(trace: &Timeline) -> Self {
        let kinds = trace.call_kinds();
        let mut threads: HashMap<i64, LaunchingThread> = HashMap::default();
        let mut all = Self::default();
        for (site, call) in trace.cuda_calls.with_sites() {
            let new = LaunchingThread { until_ns: i64::MIN, is_launched: false };
            let thread = threads.entry(call.global_tid).or_insert(new);
            if call.end_ns <= thread.until_ns {
                continue;
            }
            thread.until_ns = call.end_ns;
            let kind = kinds[site as usize];
            if kind.is_launch() {
                all.launches += 1;
                thread.is_launched = kind == CallKind::Kernel;
            } else if kind.writes_memory() {
                thread.is_launched = false;
            } else if matches!(kind, CallKind::Synchronise(_)) && thread.is_launched {
                all.awaited += 1;
                thread.is_launched = false;
            }
        }
        all
    }

    /// The remedy, if the host waits after each launch or nearly each.
    fn remedy(self) -> Option<String> {
        let share = percent(self.awaited as f64, self.launches as f64)?;
        (share >= EACH_PCT && self.launches >= MIN_LAUNCHES).then(|| {
            format!(
                "Remove the synchronisation after each launch ({} of {} launches).",
                count(self.awaited),
                count(self.launches)
            )
        })
    }
}

/// The findings, with this remedy of gaps of the host in a capture whose launches are awaited.
pub(super) fn with_remedy(found: Vec<Finding>, trace: &Trace) -> Vec<Finding> {
    let is_on_gaps = |it: &Finding| {
        ON_GAPS.iter().any(|id| it.id == *id)
            && it.advice.as_deref().is_none_or(|it| !OF_OTHER_REASONS.contains(&it))
    };
    let timeline = trace.timeline.as_ref().filter(|_| found.iter().any(is_on_gaps));
    let Some(remedy) = timeline.and_then(|it| SynchronisedLaunches::of(it).remedy()) else {
        return found;
    };
    let with_remedy = |it: Finding| if is_on_gaps(&it) { it.advise(remedy.as_str()) } else { it };
    found.into_iter().map(with_remedy).collect()
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::timeline::ApiCall;

    use super::*;
    use crate::kernels::tests::capture;

    /// A capture whose thread makes these calls in turn, `rounds` times: each contains a call of
    /// the driver of the same name.
    fn calls(names: &[&str], rounds: usize) -> Trace {
        let all: Vec<&str> = names.repeat(rounds);
        let line = |at: usize| {
            let (outer, inner) = (100 * at, 100 * at + 10);
            let (id, to) = (2 * at + 1, outer + 90);
            format!("call 1 {id} {outer}..{to}\ncall 1 {} {inner}..{}\n", id + 1, inner + 20)
        };
        let mut trace = capture(&(0..all.len()).map(line).collect::<String>());
        let first = trace.strings.len() as u32;
        trace.strings.extend(all.iter().map(|it| (*it).to_owned()));
        let named = trace.cuda_calls.iter().zip(0u32..);
        let named = named.map(|(it, at)| ApiCall { name: first + at / 2, ..it });
        trace.cuda_calls = named.collect();
        Trace { timeline: Some(trace), ..Trace::default() }
    }

    #[test]
    fn a_synchronisation_after_nearly_each_launch_is_the_remedy_of_gaps_of_the_host() {
        let (launch, wait) = ("cudaLaunchKernel", "cudaDeviceSynchronize");
        let few = "Let the host do less between launches.";
        for (names, rounds, expected) in [
            (&[launch, wait][..], 20, Some("20 of 20")),
            (&[launch, "cudaGetLastError", wait][..], 20, Some("20 of 20")),
            (&[launch, wait][..], 5, None),
            (&[launch, launch, wait][..], 20, None),
            (&[launch, "cudaMemcpyAsync", wait][..], 20, None),
            (&["cudaGraphLaunch", "cudaStreamSynchronize"][..], 20, None),
        ] {
            let found = Finding::new(catalogue::LEDGER_GAP_HOST, "Gaps.").advise(few);
            let other = Finding::new(catalogue::LEDGER_GAP_COPY, "Copies.").advise("Copy less.");
            let advised = with_remedy(vec![found, other], &calls(names, rounds));
            let expected = expected.map_or_else(
                || few.to_owned(),
                |it| format!("Remove the synchronisation after each launch ({it} launches)."),
            );
            assert_eq!(advised[0].advice.as_deref(), Some(expected.as_str()), "{names:?}");
            assert_eq!(advised[1].advice.as_deref(), Some("Copy less."));
        }
        for other in OF_OTHER_REASONS {
            let found = Finding::new(catalogue::LEDGER_GAP_HOST, "Gaps.").advise(other);
            let advised = with_remedy(vec![found], &calls(&[launch, wait], 20));
            assert_eq!(advised[0].advice.as_deref(), Some(other));
        }
    }
}
