//! Copies between host and device: the number of large ones of pageable memory, and an upper bound
//! of the time that pinned memory saves.

use std::collections::BTreeMap;

use crate::{
    stats::{percent, ratio},
    timeline::gpu::split::{WindowSplit, WindowSplits, WorkKind},
};

/// Copies between host and device in one stage, over all instances.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HostCopies {
    pub calls: u64,
    /// Large copies of pageable memory.
    pub staged: u64,
    /// Upper bound of the time that pinned memory saves, percent of the stage.
    pub saving_pct: f64,
}

impl HostCopies {
    fn of(split: &WindowSplit) -> Self {
        let (mut all, mut staged_ns) = (Self::default(), 0.0);
        for (of, time) in &split.work {
            if !matches!(of.kind, WorkKind::Copy(kind) if kind.is_of_host()) {
                continue;
            }
            all.calls += time.calls;
            all.staged += time.staged_calls;
            staged_ns += time.staged_ns.min(time.ns) as f64;
        }
        Self { saving_pct: percent(staged_ns, split.window_ns as f64).unwrap_or(0.0), ..all }
    }

    /// Large copies of pageable memory as a share of all, from 0 to 1.
    pub fn staged_share(&self) -> f64 {
        ratio(self.staged as f64, self.calls as f64).unwrap_or(0.0)
    }
}

/// The copies of each stage that has some.
pub fn host_copies(splits: &WindowSplits) -> BTreeMap<String, HostCopies> {
    let of_stage = |split: &WindowSplit| (split.stage.clone(), HostCopies::of(split));
    splits.stages.iter().map(of_stage).filter(|(_, copies)| copies.calls > 0).collect()
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::timeline::CopyKind;

    use super::*;
    use crate::timeline::gpu::split::{WorkOf, WorkTime};

    #[test]
    fn only_copies_of_the_host_count_and_save_at_most_their_own_time() {
        let work = |kind, staged_ns| {
            let time = WorkTime { calls: 2, ns: 100, alone_ns: 0, staged_calls: 1, staged_ns };
            (WorkOf { operator: None, kind: WorkKind::Copy(kind) }, time)
        };
        let split = WindowSplit {
            stage: "prefill".into(),
            window_ns: 1000,
            work: [
                work(CopyKind::HostToDevice, 500),
                work(CopyKind::DeviceToHost, 50),
                work(CopyKind::DeviceToDevice, 70),
            ]
            .into(),
            ..WindowSplit::default()
        };
        let copies = HostCopies::of(&split);
        assert_eq!(copies, HostCopies { calls: 4, staged: 2, saving_pct: 15.0 });
        assert_eq!((copies.staged_share(), HostCopies::default().staged_share()), (0.5, 0.0));
    }
}
