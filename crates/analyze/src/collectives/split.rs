//! Groups of ranks that a capture does not record, by the ends of their operations: within a group
//! these are nearly simultaneous, and independent groups end at other times.

use super::{join::has_one_clock, members::MemberGroup};
use crate::stats::median_of;

/// Distance of ends below which ranks are of one group, nanoseconds.
const NEAR_NS: i64 = 20_000;
/// The same in percent of the median time of an operation, if that is longer.
const NEAR_PCT: i64 = 25;
/// Operations that are compared.
const MAX_COMPARED: usize = 1_000;

/// Divides the ranks of an unrecorded group. It stays whole unless each part has two ranks or more.
pub fn split(group: MemberGroup) -> Vec<MemberGroup> {
    if group.members.len() < 4 || !has_one_clock(&group) {
        return vec![group];
    }
    let ends: Vec<Vec<(i64, i64)>> = group
        .members
        .iter()
        .map(|member| {
            let needed = member.launches.iter().filter(|it| it.operation.needs_all_ranks());
            needed.map(|it| (it.end_ns, it.ns())).collect()
        })
        .collect();
    let mut parts: Vec<Vec<usize>> = Vec::new();
    for at in 0..ends.len() {
        match parts.iter_mut().find(|part| is_near(&ends[part[0]], &ends[at])) {
            Some(part) => part.push(at),
            None => parts.push(vec![at]),
        }
    }
    if parts.len() == 1 || parts.iter().any(|part| part.len() < 2) {
        return vec![group];
    }
    let mut members: Vec<_> = group.members.into_iter().map(Some).collect();
    let part = |part: Vec<usize>| {
        let members: Vec<_> = part.iter().filter_map(|at| members[*at].take()).collect();
        let ranks: Vec<String> = members.iter().map(|it| it.rank.to_string()).collect();
        let name = format!("{}, ranks {}", group.name, ranks.join(", "));
        MemberGroup { name, size: group.size, members }
    };
    parts.into_iter().map(part).collect()
}

/// True if the ends and times of two ranks belong to one sequence of operations.
fn is_near(a: &[(i64, i64)], b: &[(i64, i64)]) -> bool {
    let step = a.len().div_ceil(MAX_COMPARED).max(1);
    let pairs = || a.iter().zip(b).step_by(step);
    let apart = median_of(pairs().map(|(a, b)| a.0.saturating_sub(b.0).saturating_abs()));
    let time = median_of(pairs().map(|(a, b)| a.1.min(b.1)));
    let near = time.map(|ns| NEAR_NS.max(ns.saturating_mul(NEAR_PCT) / 100));
    a.len() == b.len() && apart.zip(near).is_some_and(|(ns, near)| ns <= near)
}
