//! Steps of the ranks that read no tokens.
//!
//! Ranks of tensor parallelism launch the same forwards in the same order, and wait for each other
//! in collectives. One of them reads the chosen tokens: a forward that another rank launches
//! between two of these reads is the step of the second one. Each step must have exactly one such
//! forward of the same kind and rows on the other rank, with two exceptions: before the first read,
//! where the warm-up is, the last one counts; and the capture may lack the first and the last step
//! of a rank.

use super::{BatchStep, Launched, TimedForward};

/// Max steps that the capture of a rank lacks: the first and the last.
const MAX_MISSING: usize = 2;

/// Steps of a rank whose forwards are `own`, by the forwards and steps of the rank that reads the
/// tokens; `None` if they are not the same.
pub fn follow(
    reader: &[TimedForward],
    steps: &[BatchStep],
    own: &[TimedForward],
) -> Option<Vec<BatchStep>> {
    let reads: Vec<i64> =
        reader.iter().filter(|it| it.forward.chosen_bytes.is_some()).map(|it| it.end_ns).collect();
    let mut found = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        let to_ns = step.forward.end_ns;
        let before = reads.partition_point(|end_ns| *end_ns < to_ns).checked_sub(1);
        let from_ns = before.map_or(i64::MIN, |before| reads[before]);
        let first = own.partition_point(|it| it.start_ns < from_ns);
        let after = own.partition_point(|it| it.start_ns < to_ns);
        let between = own.get(first..after)?;
        let forward = match between {
            [] if at == 0 || at + 1 == steps.len() => continue,
            [forward] => forward,
            [.., forward] if at == 0 => forward,
            _ => return None,
        };
        if !is_same(forward.forward.launched, step.forward.forward.launched) {
            return None;
        }
        let forward = forward.clone();
        found.push(BatchStep { forward, is_follower: true, ..step.clone() });
    }
    (found.len() > MAX_MISSING).then_some(found)
}

fn is_same(a: Launched, b: Launched) -> bool {
    matches!((a, b), (Launched::Graph(_), Launched::Graph(_))) || a == b
}
