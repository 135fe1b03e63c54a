//! Names of the parts of a cause. A kernel with several operators or grids is several parts, so its
//! name alone would stand for their sum.

use llmprof_core::{domain::digits::sides, trace::kernel::known_sides};

use super::{Ledger, LedgerMember};

impl LedgerMember {
    /// Sets grid and block, if the capture states them.
    pub fn set_launch(&mut self, launch: Option<([u32; 3], [u32; 3])>) {
        let (grid, block) = launch.unzip();
        (self.grid, self.block) = (grid.and_then(known_sides), block.and_then(known_sides));
    }

    /// Kernel and operator in one text, each shortened; empty of a gap that follows no work.
    pub fn name_by(&self, shortened: impl Fn(&str) -> String) -> String {
        // A compiled kernel has the name of its operator.
        let operator = self.operator.as_ref().filter(|it| Some(*it) != self.kernel.as_ref());
        match (operator, &self.kernel) {
            (Some(operator), Some(kernel)) => {
                format!("{} of {}", shortened(kernel), shortened(operator))
            }
            (Some(name), None) | (None, Some(name)) => shortened(name),
            (None, None) => String::new(),
        }
    }

    /// Kernel and operator in one text.
    pub fn name(&self) -> String {
        self.name_by(str::to_owned)
    }
}

impl Ledger {
    /// The name of a part in sentences, by [`part_name`].
    pub fn part_name(
        &self,
        of: &LedgerMember,
        shown: impl FnOnce(&LedgerMember) -> String,
    ) -> String {
        part_name(of, &self.members, shown)
    }
}

/// Kernel and operator of a part as `shown`, with the grid and block by which it differs from other
/// parts of this kernel in its stage.
pub fn part_name<'a>(
    of: &LedgerMember,
    all: impl IntoIterator<Item = &'a LedgerMember>,
    shown: impl FnOnce(&LedgerMember) -> String,
) -> String {
    let name = shown(of);
    // Copies, graphs and gaps have no grid.
    let Some((grid, block)) = of.grid.zip(of.block) else { return name };
    let is_alike =
        |it: &&LedgerMember| it.stage == of.stage && it.kernel == of.kernel && it.grid.is_some();
    let (mut is_in_operators, mut has_grids, mut has_blocks) = (false, false, false);
    for it in all.into_iter().filter(is_alike) {
        is_in_operators |= it.operator.is_some();
        has_grids |= it.grid != of.grid;
        has_blocks |= it.block != of.block;
    }
    let outside = match of.operator.is_none() && is_in_operators {
        true => " outside all operators",
        false => "",
    };
    let launch = match (has_grids, has_blocks) {
        (false, false) => String::new(),
        (true, false) => format!(" (grid {})", sides(grid)),
        (false, true) => format!(" (block {})", sides(block)),
        (true, true) => format!(" (grid {}, block {})", sides(grid), sides(block)),
    };
    format!("{name}{outside}{launch}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::ledger::LedgerCause;

    fn part(operator: Option<&str>, launch: Option<(u32, u32)>) -> LedgerMember {
        LedgerMember {
            stage: "decode_all".into(),
            cause: LedgerCause::Unexplained,
            operator: operator.map(str::to_owned),
            kernel: Some("gemm".into()),
            full_name: None,
            grid: launch.map(|it| [it.0, 1, 1]),
            block: launch.map(|it| [it.1, 1, 1]),
            calls: 1.0,
            ns: 1,
            share_pct: None,
            pass: String::new(),
            samples: 0,
            gap_parts: 0,
            evidence: String::new(),
            max_saving_ns: 0,
            longest_ns: None,
        }
    }

    #[test]
    fn sides_that_a_capture_does_not_state_are_in_no_name() {
        let of = |grid: [u32; 3], block: [u32; 3]| {
            let mut it = part(None, None);
            it.set_launch(Some((grid, block)));
            it
        };
        let (unstated, other) = (of([0; 3], [0; 3]), of([8, 1, 1], [64, 1, 1]));
        assert_eq!((unstated.grid, unstated.block), (None, None));
        let all = [unstated, other];
        assert_eq!(part_name(&all[0], &all, LedgerMember::name), "gemm");
        assert_eq!(part_name(&all[1], &all, LedgerMember::name), "gemm");
    }

    #[test]
    fn a_part_of_a_kernel_is_named_by_its_differences_from_other_parts_of_the_kernel() {
        let mlp = Some("mlp");
        let one = Some((4, 128));
        for (of, other, expected) in [
            (part(None, one), part(None, one), "gemm"),
            (part(mlp, one), part(Some("attn"), one), "gemm of mlp"),
            (part(None, one), part(mlp, one), "gemm outside all operators"),
            (part(mlp, one), part(mlp, Some((8, 128))), "gemm of mlp (grid 4×1×1)"),
            (part(None, one), part(None, Some((4, 64))), "gemm (block 128×1×1)"),
            (part(None, one), part(None, Some((8, 64))), "gemm (grid 4×1×1, block 128×1×1)"),
            (part(None, None), part(mlp, one), "gemm"),
        ] {
            let all = [of.clone(), other];
            assert_eq!(part_name(&of, &all, LedgerMember::name), expected);
        }
        let (of, mut other) = (part(None, one), part(None, Some((8, 64))));
        other.stage = "prefill".into();
        assert_eq!(part_name(&of, &[other], LedgerMember::name), "gemm", "of another stage");
    }

    proptest! {
        #[test]
        fn two_launches_of_one_stage_never_have_one_name(
            launches in prop::collection::btree_set((0usize..3, 1u32..4, 1u32..3), 1..12),
        ) {
            let operators = [None, Some("mlp"), Some("attn")];
            let all: Vec<LedgerMember> = launches
                .iter()
                .map(|(at, grid, block)| part(operators[*at], Some((*grid, *block))))
                .collect();
            let name = |it| part_name(it, &all, LedgerMember::name);
            let names: BTreeSet<String> = all.iter().map(name).collect();
            prop_assert_eq!(names.len(), all.len());
        }
    }
}
