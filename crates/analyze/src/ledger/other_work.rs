//! Members of the time in which only work ran that the stage did not launch.

use super::{
    LedgerCause,
    rows::StageRows,
    scale::{Fraction, ScaledParts},
    work::StageSums,
};
use crate::timeline::gpu::split::WindowSplit;

impl StageRows<'_> {
    /// One member for each launcher. Work that runs at once shares the time by its own time.
    pub fn add_other(&self, split: &WindowSplit, parts: &mut ScaledParts, sums: &mut StageSums) {
        let all: i64 = split.other.iter().map(|it| it.ns).sum();
        let mut left = split.other_ns;
        let mut shares = Fraction::new(left.max(0) as u64, all.max(0) as u64).parts();
        for it in split.other.iter().filter(|_| split.other_ns > 0) {
            let ns = shares.next(it.ns);
            let mut member = self.member(LedgerCause::OtherStages, None, Some(it.largest.clone()));
            member.ns = parts.next(ns);
            member.evidence = format!("only {} ran", it.launcher);
            sums.add(member, "launching calls");
        }
        left -= shares.given();
        let mut rest = self.member(LedgerCause::OtherStages, None, None);
        rest.ns = parts.next(left);
        rest.evidence = "only other work ran".into();
        sums.add(rest, "launching calls");
    }
}
